"""The WAL's file as its owner last saw it: whoever cuts it under a living owner is noticed before more harm is done.

SQLite would write on behind the hole, and the next checkpoint would bring the hole into the database. The file only
ever grows, but for the owner's own emptying of it; so before each commit and each checkpoint its size is looked up,
which takes two microseconds. A cut that takes no more than the last commit is not seen so: the next opening sees it.
"""

from __future__ import annotations

import os
from pathlib import Path

from eventlog.errors import DamagedFile


class WalFile:
    """Looked at on the writer's thread, and never opened: closing it would drop SQLite's locks."""

    def __init__(self, database: Path) -> None:
        self.is_cut = False
        self._database = database
        self._path = f"{database}-wal"
        self._bytes = 0

    def check(self) -> None:
        """Raise DamagedFile if the file is shorter than at the last look, and from then on always."""
        found = self._size()
        self.is_cut = self.is_cut or found < self._bytes
        if self.is_cut:
            why = f"its -wal was cut to {found:,} bytes while it was open, and nothing more is written"
            raise DamagedFile(self._database, f"{why}; end this process and open the log again")
        self._bytes = found

    def emptied(self) -> None:
        """The owner itself made it shorter."""
        self._bytes = 0

    def _size(self) -> int:
        try:
            return os.stat(self._path).st_size  # noqa: PTH116 (a third of the time of Path.stat)
        except FileNotFoundError:
            return 0
