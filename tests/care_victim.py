"""A process that cares for a log, to be killed at any moment; its units of work are small."""

from __future__ import annotations

from multiprocessing.connection import Connection
from pathlib import Path

from eventlog.log import EventLog
from eventlog.store import backup, erasure, pruning, space


async def care(what: str, path: Path, said: Connection) -> None:
    """Say "begin" when the log is open, do it, and say "done" before the log is closed."""
    pruning.CHUNK_EVENTS = erasure.CHUNK_EVENTS = 20
    pruning.SCANNED_ROWS = 500
    backup.STEP_PAGES = space.PAGES_PER_STEP = 4
    async with EventLog(path) as log:
        said.send("begin")
        if what == "prune":
            await log.prune(older_than_s=0.0, deltas=True)
        elif what == "forget":
            await log.forget("a0", "b0")
        elif what == "backup":
            await log.backup(path.with_name("backup.db"))
        else:
            await log.vacuum(full=what == "full vacuum")
        said.send("done")
