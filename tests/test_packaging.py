"""Proves that a wheel, an editable install and a checkout all find the schema and run the command line.

Each is looked at from outside, by its own Python in a child process. ``.ci/run`` names a wheel and the Python of a
clean environment that it was installed into with its dependencies (``EVENTLOG_WHEEL``, ``EVENTLOG_WHEEL_PYTHON``);
otherwise the tests build the wheel and put it beside the dependencies that are there.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]
SCHEMA = (CHECKOUT / "schema.sql").read_bytes()
MIGRATIONS = {f"eventlog/migrations/{path.name}" for path in (CHECKOUT / "migrations").iterdir()}

# Creating a log runs schema.sql, wherever it was found.
CREATE_A_LOG = """
import asyncio, pathlib, sys
import eventlog

async def main():
    async with eventlog.EventLog(sys.argv[1]) as log:
        session = await log.start_session("s1")
        print(session.id, session.next_index, pathlib.Path(eventlog.__file__).parent)

asyncio.run(main())
"""


def run(*command: str | Path, cwd: Path, changes: Mapping[str, str] | None = None) -> str:
    """What it prints; a failure shows what it complained of."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "EVENTLOG_"))}
    environment |= changes or {}
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(target: str, into: Path) -> Path:
    run(sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", into, cwd=CHECKOUT)
    [built] = into.iterdir()
    return built


def environment_with(*installed: str | Path, folder: Path) -> Path:
    """The Python of a new environment with that installed, and with the dependencies of this one in reach."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=CHECKOUT)
    python = folder / "bin" / "python"
    [site_packages] = folder.glob("lib/python3.*/site-packages")
    # A path of a .pth file is not searched for .pth files, so the checkout does not come along with the dependencies.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    offline = ("--quiet", "--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    run(sys.executable, "-m", "pip", "--python", python, "install", *offline, *installed, cwd=folder)
    return python


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("EVENTLOG_WHEEL")
    return Path(given) if given else build("wheel", into=tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def wheel_python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    given = os.environ.get("EVENTLOG_WHEEL_PYTHON")
    return Path(given) if given else environment_with(wheel, folder=tmp_path_factory.mktemp("wheel-environment"))


@pytest.fixture(scope="module")
def editable_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return environment_with("--editable", CHECKOUT, folder=tmp_path_factory.mktemp("editable-environment"))


def test_the_wheel_has_one_schema_and_says_that_it_is_typed(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        texts = {name for name in names if name.endswith(".sql")} - MIGRATIONS
        assert texts == {"eventlog/schema.sql"}
        assert archive.read("eventlog/schema.sql") == SCHEMA
        assert {name for name in names if name.startswith("eventlog/migrations/")} == MIGRATIONS
    assert "eventlog/py.typed" in names


def test_the_wheel_has_the_package_and_nothing_else_at_its_top(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        top = {name.split("/")[0] for name in archive.namelist()}
    assert {name for name in top if not name.endswith(".dist-info")} == {"eventlog"}


def test_the_sdist_has_what_building_and_testing_need(tmp_path: Path) -> None:
    with tarfile.open(build("sdist", into=tmp_path)) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = {"schema.sql", "cli.py", "eventlog/py.typed", "Makefile", "pyproject.toml", "README.md", "LICENSE"}
    folders = {"eventlog", "migrations", "tests", "benchmarks", "examples", "docs", ".ci"}
    assert files - names == set()
    assert folders - {name.partition("/")[0] for name in names} == set()


def test_the_checkout_has_no_second_schema() -> None:
    assert list((CHECKOUT / "eventlog").rglob("*.sql")) == []


def test_a_wheel_finds_its_own_schema(wheel_python: Path, tmp_path: Path) -> None:
    session, next_index, package = run(wheel_python, "-c", CREATE_A_LOG, "agent.db", cwd=tmp_path).split(" ", 2)
    assert (session, next_index) == ("s1", "1")
    assert (Path(package.strip()) / "schema.sql").read_bytes() == SCHEMA
    assert CHECKOUT not in Path(package).parents


@pytest.mark.parametrize("where", ["editable", "checkout"])
def test_the_others_find_the_schema_of_the_checkout(where: str, editable_python: Path, tmp_path: Path) -> None:
    python, folder = (editable_python, tmp_path) if where == "editable" else (Path(sys.executable), CHECKOUT)
    printed = run(python, "-c", CREATE_A_LOG, tmp_path / "agent.db", cwd=folder)
    assert printed == f"s1 1 {CHECKOUT / 'eventlog'}\n"


@pytest.mark.parametrize("command", [("eventlog",), ("python", "-m", "eventlog")], ids=" ".join)
@pytest.mark.parametrize("where", ["wheel_python", "editable_python"])
def test_an_installation_runs_the_command_line(
    where: str, command: tuple[str, ...], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    scripts = request.getfixturevalue(where).parent
    assert "Usage: " in run(scripts / command[0], *command[1:], "--help", cwd=tmp_path)


def test_an_installation_brings_its_fixtures_to_pytest(editable_python: Path, tmp_path: Path) -> None:
    (tmp_path / "test_fixture.py").write_text("def test_it(recording):\n    assert recording.events == []\n")
    assert "1 passed" in run(editable_python, "-m", "pytest", "-q", tmp_path, cwd=tmp_path)
    assert "eventlog.testing.plugin" in run(editable_python, "-m", "pytest", "--fixtures", cwd=tmp_path)
    turned_off = run(editable_python, "-m", "pytest", "--fixtures", "-p", "no:eventlog", tmp_path, cwd=tmp_path)
    assert "manual_clock" not in turned_off


def test_a_wheel_names_its_fixtures_to_pytest(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith("entry_points.txt")]
        assert "[pytest11]\neventlog = eventlog.testing.plugin\n" in archive.read(name).decode()
        assert "eventlog/testing/plugin.py" in archive.namelist()


def test_a_checkout_runs_the_command_line(tmp_path: Path) -> None:
    assert "Usage: " in run(sys.executable, "-m", "eventlog", "--help", cwd=CHECKOUT)
    assert "Usage: " in run(sys.executable, CHECKOUT / "cli.py", "--help", cwd=tmp_path)


# ------------------------------------------------------------------------------------------- what the documents install


def typed(beginning: str) -> dict[str, str]:
    """The lines of the documents that begin so, in a block or between backticks, and the document of each."""
    documents = [CHECKOUT / "README.md", *(CHECKOUT / "docs").glob("*.md")]
    pattern = re.compile(rf"^({beginning}.*?)(?:  .*)?$|`({beginning}[^`]*)`", re.MULTILINE)
    found = [(line, document.name) for document in documents for line in pattern.findall(document.read_text())]
    return {block or inline: name for (block, inline), name in found}


by_ci = pytest.mark.skipif("EVENTLOG_WHEEL" not in os.environ, reason="takes long, or the network; .ci/run does it")

IMPORTS = {
    "sse": "eventlog.sse, uvicorn",
    "otel": "eventlog.host.otel, opentelemetry",
    "openai-agents": "eventlog.adapters.openai_agents",
}


@by_ci
def test_the_lines_of_the_documents_that_install_leave_what_they_are_for(wheel: Path, tmp_path: Path) -> None:
    """One after the other in one environment, with the wheel in the place of the checkout that it was built from."""
    lines = sorted(typed("pip install"))
    assert {extra_of(line) for line in lines} == {None, *IMPORTS}
    python, pip = bare(tmp_path / "venv")
    for line in lines:
        _, *words = shlex.split(line.replace("PATH-OF-THIS-CHECKOUT", str(wheel)))
        run(*pip, *words, "--no-compile", cwd=tmp_path)
        extra = extra_of(line)
        run(python, "-c", f"import {'eventlog' if extra is None else IMPORTS[extra]}", cwd=tmp_path)


def bare(folder: Path) -> tuple[Path, tuple[str | Path, ...]]:
    """The Python of a new environment with nothing in it, and the pip that installs into it."""
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    python = folder / "bin" / "python"
    return python, (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check")


def extra_of(line: str) -> str | None:
    found = re.search(r"\[(.*)\]", line)
    return None if found is None else found[1]


@by_ci
def test_datasette_shows_what_the_documents_say(tmp_path: Path) -> None:
    """It is no package of the tests' own: its dependencies are many, and would rule over those of others."""
    python, pip = bare(tmp_path / "venv")
    run(*pip, "install", "--no-compile", "datasette", cwd=tmp_path)
    again = (sys.executable, "-m", "pytest", "-q", "-rs", "-k", "datasette", "tests/test_open_file.py")
    with_it = {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    told = run(*again, "-n", "0", "-p", "no:cacheprovider", cwd=CHECKOUT, changes=with_it)
    assert "1 passed" in told
    assert "SKIPPED" not in told


@by_ci
@pytest.mark.parametrize("line", sorted(typed("eventlog bench")))
def test_the_benchmark_of_an_installation_runs_as_the_documents_say(
    line: str, wheel_python: Path, tmp_path: Path
) -> None:
    """In one short round, and of one subject: all of it takes a minute, and test_bench.py measures every subject."""
    command, *words = shlex.split(line)
    less = [] if "--only" in words else ["--only", "append"]
    assert "append" in run(wheel_python.parent / command, *words, *less, "--quick", cwd=tmp_path)
    assert list(tmp_path.iterdir()) == []
