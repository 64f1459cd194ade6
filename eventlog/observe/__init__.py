"""Observe hooks, which are shown each event at most once: how they are written, how found, and what they are handed."""

from __future__ import annotations

from eventlog.observe.ab import AbDefinition, OnSample, Sample, arm_of, define_ab
from eventlog.observe.channel import ChannelDefinition, ChannelHandler, define_channel
from eventlog.observe.context import AgentView, ChannelContext, ChannelView, Contexts, HookContext, OwnedChannel
from eventlog.observe.discover import Discovered, LoadedExperiment, LoadedHook, discover
from eventlog.observe.hook import DisabledHook, Handler, HookDefinition, OnRestart, define_hook, disable_hook
from eventlog.observe.limits import ObserveLimits
from eventlog.observe.memory import MemoryLine, memory_hook, read_memory
from eventlog.observe.plain import PlainContext, PlainHost
from eventlog.observe.spans import otel_hook

__all__ = [
    "AbDefinition",
    "AgentView",
    "ChannelContext",
    "ChannelDefinition",
    "ChannelHandler",
    "ChannelView",
    "Contexts",
    "DisabledHook",
    "Discovered",
    "Handler",
    "HookContext",
    "HookDefinition",
    "LoadedExperiment",
    "LoadedHook",
    "MemoryLine",
    "ObserveLimits",
    "OnRestart",
    "OnSample",
    "OwnedChannel",
    "PlainContext",
    "PlainHost",
    "Sample",
    "arm_of",
    "define_ab",
    "define_channel",
    "define_hook",
    "disable_hook",
    "discover",
    "memory_hook",
    "otel_hook",
    "read_memory",
]
