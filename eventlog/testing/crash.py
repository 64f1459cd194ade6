"""What a kill would leave, without killing anything: a log on a copy of another one's files."""

from __future__ import annotations

import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from eventlog import EventLog

FILES = ("", "-wal", ".head")
"""By their ends. The lock dies with the process; SQLite makes `-shm` anew."""


@asynccontextmanager
async def crashed(log: EventLog, folder: Path | None = None, **settings: Any) -> AsyncIterator[EventLog]:
    """A log as it would be opened after a SIGKILL at this moment; the one that was given goes on undisturbed.

    What has been committed is there, what was underway is not: appends that were not answered, calls of handlers,
    cursors that were not written down. The copy goes into `folder`, which must be empty or missing, or into a
    temporary one. `settings` are those of `EventLog`; without a `clock` the time goes on as it did.
    """
    settings.setdefault("clock", log.clock)
    with nullcontext(folder) if folder else TemporaryDirectory(prefix="eventlog-crashed-") as into:
        async with EventLog(await _copied(log, Path(into)), **settings) as copy:
            yield copy


async def _copied(log: EventLog, folder: Path) -> Path:
    """On the writer's thread, where nothing is written meanwhile, and by another process: closing an open database as a
    plain file would drop the locks that SQLite holds on it here."""
    path = log.path.absolute()
    files = [str(file) for end in FILES if (file := path.with_name(path.name + end)).exists()]

    def copy(*_: object) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        subprocess.run(["/bin/cp", "--", *files, str(folder)], check=True, capture_output=True)

    await log.store.with_writer(copy)
    return folder / path.name
