"""Observe hooks, which are shown each event at most once: how they are written, how found, and what they are handed."""

from __future__ import annotations

from eventlog.observe.channel import ChannelDefinition, ChannelHandler, define_channel
from eventlog.observe.context import AgentView, ChannelContext, ChannelView, Contexts, HookContext, OwnedChannel
from eventlog.observe.discover import Discovered, LoadedHook, discover
from eventlog.observe.hook import DisabledHook, Handler, HookDefinition, OnRestart, define_hook, disable_hook

__all__ = [
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
    "LoadedHook",
    "OnRestart",
    "OwnedChannel",
    "define_channel",
    "define_hook",
    "disable_hook",
    "discover",
]
