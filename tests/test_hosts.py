"""The hosts of sessions: one object for all who ask, and no more of them than are kept."""

from __future__ import annotations

from pathlib import Path

import msgspec

from eventlog import EventLog, SessionInfo
from eventlog.host import Meter
from eventlog.host.hosts import HOSTS_KEPT, Hosts
from eventlog.host.reminding import Reminding


async def test_r113_r114_the_hosts_that_were_used_last_are_the_same_objects(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        hosts = Hosts(log, "desk", Meter("desk"), Reminding(log, "desk"), {"github": (github := object())})
        start = (await log.start_session("s1")).info
        first = hosts.of(start)
        assert first.github is github
        for number in range(HOSTS_KEPT - 1):
            hosts.of(session(start, number))
        assert hosts.of(start) is first  # at the limit, and used again
        second = hosts.of(session(start, 0))
        hosts.of(session(start, HOSTS_KEPT))  # one past it: the one that was unused for the longest time goes
        assert hosts.of(start) is first
        assert hosts.of(session(start, 0)) is second
        assert len(hosts) == HOSTS_KEPT


def session(like: SessionInfo, number: int) -> SessionInfo:
    """Another session."""
    return msgspec.structs.replace(like, id=f"n{number}")
