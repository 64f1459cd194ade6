"""Every number that was decided is told by `eventlog policy`, with what it means."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

import eventlog
from eventlog import EventLog, Runtime
from eventlog.errors import InvalidName
from eventlog.observe import ObserveLimits
from eventlog.settings import SECTIONS
from tests.log_kit import until
from tests.observing import Gate, append, hook_of

PACKAGE = Path(eventlog.__file__).parent
LIMITS = ("MAX_", "KEEP_", "KEPT_")

# Not decided by us, or of no effect that anybody could see.
UNTOLD = {
    "MAX_NAMES": "SQLite's",
    "MAX_POSITION": "SQLite's",
    "MAX_VERSION": "SQLite's",
    "MAX_PREPARED_STATEMENTS": "how many statements are kept, not what they may do",
    "MAX_PATH_BYTES": "the kernels'; a longer path is replaced",
    "MAX_SESSION_TYPE": "a key of the vocabulary",
    "MAX_LOCK_BYTES": "of a file that only we write",
}


def limits_of_the_package() -> Iterator[tuple[str, str]]:
    """The module and the name of each constant that bounds something."""
    for path in sorted(PACKAGE.rglob("*.py")):
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for node in ast.parse(path.read_text()).body:
            targets = node.targets if isinstance(node, ast.Assign) else []
            for target in targets:
                if isinstance(target, ast.Name) and target.id.startswith(LIMITS):
                    yield module, target.id


def test_every_limit_of_the_package_is_told_or_has_a_reason_not_to_be() -> None:
    told = (PACKAGE / "settings.py").read_text()
    untold = {name for module, name in limits_of_the_package() if f"{module.rpartition('.')[2]}.{name}" not in told}
    assert untold == set(UNTOLD), "add it to eventlog/settings.py"


def test_every_number_says_what_it_means_in_words_of_its_own() -> None:
    meanings = [number.means for numbers in SECTIONS.values() for number in numbers.values()]
    assert all(meanings)
    same = {means for means in meanings if meanings.count(means) > 1}
    assert same <= {"the same in bytes"}


@pytest.mark.parametrize("setting", fields(ObserveLimits), ids=lambda setting: str(setting.name))
def test_an_observe_limit_has_a_least_value(setting: Any) -> None:
    least: Any = setting.metadata["least"]
    assert getattr(replace(ObserveLimits(), **{setting.name: least}), setting.name) == least
    bad: list[Any] = [least - 1, float("nan"), None, "1", True]
    for value in bad:
        with pytest.raises(InvalidName, match=setting.name):
            replace(ObserveLimits(), **{setting.name: value})


async def test_a_runtime_takes_the_limits_of_observe_hooks(tmp_path: Path) -> None:
    gate = Gate()
    async with EventLog(tmp_path / "a.db") as log:
        runtime = Runtime(log, observe_limits=ObserveLimits(lane_events=3))
        runtime.add_hook("waits", hook_of({"*": gate.handler}))
        async with runtime:
            await log.start_session("s1")
            await gate.reached.wait()
            await append(log, "s1", 10)
            assert runtime._parts is not None
            lane = runtime._parts.dispatcher._lanes.by_session["s1"]
            await until(lambda: lane.missed is not None)
            assert len(lane.queue) == 3
            gate.opened.set()
            await runtime.settled()
            assert runtime.hooks[0].calls == 11
