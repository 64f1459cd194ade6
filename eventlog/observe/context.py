"""What a handler is called with beside the event: its session, agent and channel as they are at the call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from eventlog.events import SessionInfo
from eventlog.host import Append, Artifacts, Host, KeyValue


class AgentView(msgspec.Struct, frozen=True, gc=False):
    """The agent that the event belongs to (R102)."""

    name: str


class ChannelView(msgspec.Struct, frozen=True, gc=False):
    """The channel of the session (R103); the token is None when the session cannot take follow-ups (R104)."""

    id: str
    continuation_token: str | None


class HookContext(msgspec.Struct, frozen=True):
    """What a hook's handler gets (R99 to R117): it can look, measure and keep, but change nothing of the run.

    `state_root` is an absolute path that a hosted replace resets: what must last belongs in `host.kv` or `host.files`.
    """

    session: SessionInfo
    agent: AgentView
    channel: ChannelView
    host: Host
    artifacts: Artifacts
    state_root: Path


class OwnedChannel(msgspec.Struct, frozen=True):
    """The channel of the session, as its own handlers get it (R130): with a durable `state`, and a token to set."""

    id: str
    continuation_token: str | None
    state: KeyValue
    append: Append
    session_id: str

    async def set_continuation_token(self, token: str) -> None:
        """Record the session's new token as `session.updated`; hooks that are called later see it (R131)."""
        await self.append(self.session_id, "session.updated", {"continuationToken": token}, turn_id=None)


class ChannelContext(msgspec.Struct, frozen=True):
    """What a channel's handler gets: a hook's context, with the channel in its own hands."""

    session: SessionInfo
    agent: AgentView
    channel: OwnedChannel
    host: Host
    artifacts: Artifacts
    state_root: Path


class Contexts:
    """Makes the contexts of one agent. A context is the state at the call, so make it right before.

    `state_for` gives what the channel of a session keeps for that session, `host_for` that session's host.
    """

    def __init__(
        self,
        *,
        agent: str,
        state_root: Path,
        append: Append,
        host_for: Callable[[SessionInfo], Host],
        state_for: Callable[[SessionInfo], KeyValue],
    ) -> None:
        self._agent = agent
        self._state_root = state_root.absolute()
        self._append = append
        self._host_for = host_for
        self._state_for = state_for

    def for_hook(self, session: SessionInfo, turn_id: str | None) -> HookContext:
        """The context of a hook's handler, for an event of that session and turn."""
        return HookContext(
            session=_handed_out(session),
            agent=AgentView(session.agent or self._agent),
            channel=ChannelView(session.channel_id, open_token(session)),
            host=self._host_for(session),
            artifacts=Artifacts(self._append, session.id, turn_id),
            state_root=self._state_root,
        )

    def for_channel(self, session: SessionInfo, turn_id: str | None) -> ChannelContext:
        """The context of a channel's handler, for an event of that session and turn."""
        state = self._state_for(session)
        return ChannelContext(
            session=_handed_out(session),
            agent=AgentView(session.agent or self._agent),
            channel=OwnedChannel(session.channel_id, open_token(session), state, self._append, session.id),
            host=self._host_for(session),
            artifacts=Artifacts(self._append, session.id, turn_id),
            state_root=self._state_root,
        )


def open_token(session: SessionInfo) -> str | None:
    """The token under which the session takes follow-ups: None for a task session and for one that ended (R104)."""
    takes_follow_ups = session.mode == "chat" and session.status in ("active", "waiting")
    return session.continuation_token if takes_follow_ups else None


def _handed_out(session: SessionInfo) -> SessionInfo:
    """With JSON of its own, which a handler could change: the log goes on using what is in this one (R99)."""
    if session.auth is None and session.abs is None:
        return session
    return msgspec.structs.replace(session, auth=_copied(session.auth), abs=_copied(session.abs))


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _copied(inner) for name, inner in value.items()}
    return [_copied(inner) for inner in value] if isinstance(value, list) else value
