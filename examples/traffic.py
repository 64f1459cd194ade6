"""Reads recorded sessions from JSONL envelopes, as the traffic that a server is to see."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

Line: TypeAlias = dict[str, Any]
"""One envelope: {type, index, sessionId, turnId?, at, data}."""


class Unplayable(Exception):
    """The file is no traffic that can be played from its beginning."""


@dataclass(frozen=True)
class Traffic:
    """The lines of each session, in order of their index."""

    sessions: dict[str, list[Line]]

    @property
    def lines(self) -> list[Line]:
        """All lines, session by session."""
        return [line for lines in self.sessions.values() for line in lines]

    def project_of(self, session: str) -> str:
        """The project that a session belongs to."""
        return str(self.sessions[session][0]["data"].get("projectId", "default"))

    def live_projects(self) -> list[str]:
        """The projects that have a session which is no evaluation."""
        live = [name for name, lines in self.sessions.items() if lines[0]["data"].get("purpose") != "eval"]
        return sorted({self.project_of(session) for session in live})

    def live_turns(self) -> list[str]:
        """The completed turns of these projects as `<session>/<turn>`, about in the order in which they will end."""
        ends = [line for line in self.lines if line["type"] == "turn.completed"]
        live = [line for line in ends if self.project_of(line["sessionId"]) in self.live_projects()]
        return [f"{line['sessionId']}/{line['turnId']}" for line in sorted(live, key=lambda line: int(line["index"]))]


def read_traffic(path: Path) -> Traffic:
    """Read a file of envelopes; raises Unplayable."""
    sessions: dict[str, list[Line]] = {}
    for number, text in enumerate(path.read_text("utf-8").splitlines(), 1):
        try:
            line = json.loads(text)
            sessions.setdefault(line["sessionId"], []).append(line)
        except (ValueError, TypeError, KeyError) as error:
            raise Unplayable(f"{path}, line {number} is no envelope of an event: {error!r}") from error
    for session, lines in sessions.items():
        _check_from_the_beginning(session, lines)
    return Traffic(sessions)


def _check_from_the_beginning(session: str, lines: Sequence[Line]) -> None:
    if lines[0].get("type") != "session.started":
        raise Unplayable(f"session {session} does not begin with session.started, but with {lines[0].get('type')}")
    for index, line in enumerate(lines):
        if line.get("index") != index:
            raise Unplayable(f"session {session} has index {line.get('index')} where {index} should follow")
