"""What a handler that is a plain function is called with: what can be looked at and measured from a thread.

It runs on a thread, where nothing can be awaited. Whatever would have to be is refused by name when it is touched, and
by type checkers before.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from eventlog.errors import NeedsCoroutine
from eventlog.events import SessionInfo
from eventlog.host import Host, Otel, service_of
from eventlog.observe.context import AgentView, ChannelContext, ChannelView, HookContext


class ForCoroutines:
    """The type of what a plain function does not get: it has no members."""


class PlainHost(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """What a plain function gets of its session's host: measurements, and the server's own clients by their names."""

    otel: Otel
    services: Mapping[str, Any] = {}

    @property
    def kv(self) -> ForCoroutines:
        """Raises NeedsCoroutine."""
        _refuse("host.kv")

    @property
    def files(self) -> ForCoroutines:
        """Raises NeedsCoroutine."""
        _refuse("host.files")

    @property
    def reminders(self) -> ForCoroutines:
        """Raises NeedsCoroutine."""
        _refuse("host.reminders")

    def __getattr__(self, name: str) -> Any:
        """Only asked for what is no member."""
        return service_of(self.services, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.services})


class PlainContext(msgspec.Struct, frozen=True):
    """What a plain function gets as a hook's or a channel's handler: the members of HookContext that need no await."""

    session: SessionInfo
    agent: AgentView
    channel: ChannelView
    host: PlainHost
    state_root: Path

    @property
    def artifacts(self) -> ForCoroutines:
        """Raises NeedsCoroutine."""
        _refuse("artifacts")


class PlainOwnedChannel(ChannelView, frozen=True, gc=False):
    """The channel of the session, as a plain function gets it that handles events for the channel itself."""

    @property
    def state(self) -> ForCoroutines:
        """Raises NeedsCoroutine."""
        _refuse("channel.state")

    @property
    def set_continuation_token(self) -> ForCoroutines:
        """Raises NeedsCoroutine."""
        _refuse("channel.set_continuation_token")


def reduced(context: Any) -> Any:
    """What a plain function gets of a handler's context; what a test puts in its place stays as it is."""
    match context:
        case HookContext():
            return _reduced(context, context.channel)
        case ChannelContext(channel=channel):
            return _reduced(context, PlainOwnedChannel(channel.id, channel.continuation_token))
        case _:
            return context


def _reduced(context: HookContext | ChannelContext, channel: ChannelView) -> PlainContext:
    return PlainContext(context.session, context.agent, channel, _of_host(context.host), context.state_root)


def _of_host(host: Host) -> PlainHost:
    return PlainHost(otel=host.otel, services=host.services)


def _refuse(member: str) -> NoReturn:
    raise NeedsCoroutine(member)
