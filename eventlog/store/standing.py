"""Whether this process may still write: some errors end that for good, since whatever it wrote then would be wrong."""

import logging
from pathlib import Path

from eventlog.errors import BrokenInvariant, EventLogError, OwnershipLost
from eventlog.store.database import map_error
from eventlog.store.owner import Lock

log = logging.getLogger("eventlog.store")


class Standing:
    """The owner's right to write one file. It is looked at on the writer's thread."""

    def __init__(self, path: Path, lock: Lock) -> None:
        self.ended_by: EventLogError | None = None
        """What ended it."""
        self._path = path
        self._lock = lock

    def check(self) -> None:
        """Raise what ended it."""
        if self.ended_by is not None:
            raise own_copy(self.ended_by)

    def is_good(self) -> bool:
        """Whether this process may write; looks at the lock too, which costs a microsecond."""
        if self.ended_by is None:
            try:
                self._lock.check_held()
            except OwnershipLost as lost:
                self._end(lost)
        return self.ended_by is None

    def met(self, caught: BaseException) -> BaseException:
        """An error as one of ours. A rule that is broken, or a lock that is lost, ends the right to write."""
        error = map_error(caught, self._path)
        if self.is_good() and isinstance(error, BrokenInvariant):
            self._end(error)
        return error if self.ended_by is None else own_copy(self.ended_by)

    def _end(self, error: EventLogError) -> None:
        self.ended_by = error
        log.critical("nothing more is written: %s", error)


def own_copy(error: BaseException) -> BaseException:
    """An error of its own for each caller: a traceback that several tasks append to grows without end."""
    copy: BaseException
    try:
        copy = error.__class__.__new__(error.__class__, *error.args)
        copy.args = error.args
        copy.__dict__.update(error.__dict__)
    except TypeError:
        return error
    copy.__cause__ = error.__cause__
    return copy
