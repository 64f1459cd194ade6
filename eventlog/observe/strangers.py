"""Says once of each other agent that no hook here sees its sessions: a name that differs is easily overlooked."""

from __future__ import annotations

import logging
from collections.abc import Container

from eventlog.errors import shown

MAX_NAMES = 1_000
"""Agents that are told apart; of further ones nothing is said."""

log = logging.getLogger("eventlog.observe")


class Strangers:
    """The other agents whose sessions were seen. `served` has those with a runtime of their own in this process."""

    def __init__(self, agent: str, served: Container[str]) -> None:
        self._agent = agent
        self._served = served
        self._told: set[str] = set()

    def note(self, agent: str, session_id: str) -> None:
        """An event of such a session came by."""
        if agent in self._told or agent in self._served or len(self._told) >= MAX_NAMES:
            return
        self._told.add(agent)
        log.warning(
            "session %s is of agent %s, and this runtime serves %s: its hooks see no session of that agent; "
            "start sessions with agent=%s, or without one",
            shown(session_id),
            shown(agent),
            shown(self._agent),
            shown(self._agent),
        )
