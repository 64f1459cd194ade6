"""What pruning and erasing have to tell everything that is folded from the log, inside of their own transaction."""

from __future__ import annotations

import sqlite3

from eventlog.store import projections, snapshots, usage


def before_pruning(connection: sqlite3.Connection, session: int, now_us: int) -> None:
    """Fold what is still behind, before events of a session go: its usage, turns and jobs stay as they are.

    States of other projections keep what they have folded, and miss what they had not reached.
    """
    usage.catch_up(connection, now_us)
    projections.mark_incomplete(connection, session)
    snapshots.forget(connection, session)


def forget(connection: sqlite3.Connection, session: int, _session_id: str, now_us: int) -> dict[str, int]:
    """Remove what was folded from a session whose payloads are gone; says how much of what.

    Its usage and its snapshots go. The states of other projections go as a whole, and are folded again from what is
    left: nobody knows which part of them came from it.
    """
    usage.catch_up(connection, now_us)
    projections.mark_incomplete(connection, session)
    projections.forget_errors(connection, session)
    return {
        "usage": usage.forget(connection, session),
        "snapshots": snapshots.forget(connection, session),
        "projectionStates": projections.forget_states(connection, [usage.NAME]),
    }
