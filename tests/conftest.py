"""What every test shares."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import settings

from eventlog import vocabulary
from tests.torture.counts import COUNTS, Counts

# No deadline: how long one example takes says more about the machine than about the code.
settings.register_profile("eventlog", deadline=None, print_blob=True)
settings.load_profile("eventlog")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make faults` asks for more than a taste."""
    parser.addoption("--counts", choices=[*COUNTS], default="quick", help="how often tests of faults try each fault")


@pytest.fixture(scope="session")
def counts(pytestconfig: pytest.Config) -> Counts:
    """How often each fault is tried in this run."""
    return COUNTS[str(pytestconfig.getoption("--counts"))]


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where a disk that is only replayed takes no time."""
    if not (shared := Path("/dev/shm")).is_dir():  # noqa: S108 (the folder in it has a name of its own)
        yield tmp_path
        return
    with TemporaryDirectory(dir=shared, prefix="eventlog-torture-") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def _own_event_types_end_with_their_test() -> Iterator[None]:
    """`define_event` is for the whole process; what one test defines is no business of the next."""
    known, structs = dict(vocabulary._KNOWN), dict(vocabulary.VOCABULARY)
    yield
    vocabulary._KNOWN.clear()
    vocabulary._KNOWN.update(known)
    vocabulary.VOCABULARY.clear()
    vocabulary.VOCABULARY.update(structs)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Tests log texts that cannot be encoded, and a report has to go from one process to another."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
