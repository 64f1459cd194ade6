"""A file of an older version is brought up to the newest one, wholly or not at all; a newer one is not touched."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from eventlog.clock import SystemClock
from eventlog.errors import BrokenInvariant, NotALog, UnsupportedSchema
from eventlog.log import EventLog
from eventlog.store import schema
from eventlog.store.schema import Schema, statements
from eventlog.store.store import Store
from tests.log_kit import child, fill, line_of, tell_child, whole
from tests.make_fixture import dump_of, export_of, restore
from tests.torture.counts import Counts

PRESENT = schema.installed()
VERSIONS = range(1, PRESENT.version + 1)
NEXT, LAST = PRESENT.version + 1, PRESENT.version + 2

# Two versions that do not exist: each has what is hard about a migration.
FIRST_STEP = """
-- A table of its own, with a trigger that has statements of its own, and a column more of one that is there.
CREATE TABLE shelf (
    shelf  INTEGER NOT NULL PRIMARY KEY,
    name   TEXT    NOT NULL  -- not unique; really
) STRICT;
INSERT INTO shelf SELECT session, 'shelf of ' || id FROM session;
ALTER TABLE kv ADD COLUMN size INTEGER NOT NULL DEFAULT 0 CHECK (size >= 0);
UPDATE kv SET size = length(value);
CREATE TRIGGER kv_measures AFTER INSERT ON kv
BEGIN
    UPDATE kv SET size = length(value) WHERE agent = NEW.agent AND key = NEW.key;
    DELETE FROM shelf WHERE shelf < 0;
END;
"""
SECOND_STEP = """
CREATE TABLE new_shelf (
    shelf  INTEGER NOT NULL PRIMARY KEY,
    name   TEXT    NOT NULL UNIQUE
) STRICT;
INSERT INTO new_shelf SELECT shelf, name FROM shelf;
DROP TABLE shelf;
ALTER TABLE new_shelf RENAME TO shelf;
DROP VIEW hooks;
CREATE VIEW hooks AS SELECT name FROM hook;
CREATE INDEX shelf_by_length ON shelf (length(name));
"""


def next_schemas(folder: Path) -> Path:
    """A folder with the schema of the last version, which is written anew, and the scripts that lead there."""
    scripts = folder / "migrations"
    scripts.mkdir()
    for number in VERSIONS:
        texts = PRESENT.scripts(number - 1, number)
        (scripts / f"{number:04}_known.sql").write_text("\n".join(texts))
    (scripts / f"{NEXT:04}_first_step.sql").write_text(FIRST_STEP)
    (scripts / f"{LAST:04}_second_step.sql").write_text(SECOND_STEP)
    text = PRESENT.sql
    text = text.replace(
        "    value  TEXT NOT NULL CHECK (json_valid(value)),\n    PRIMARY KEY (agent, key)",
        "    value  TEXT NOT NULL CHECK (json_valid(value)),  -- of any size\n"
        "    size   INTEGER NOT NULL DEFAULT 0 CHECK (size >= 0),\n    PRIMARY KEY (agent, key)",
    )
    text = text[: text.index("CREATE VIEW hooks AS")]
    text += f"PRAGMA application_id = 0x45564c47;\nPRAGMA user_version = {LAST};\n"
    text += (
        "CREATE VIEW hooks AS SELECT name FROM hook;\n"
        "CREATE TABLE shelf (shelf INTEGER NOT NULL PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;\n"
        "CREATE INDEX shelf_by_length ON shelf (length(name));\n"
    )
    text += FIRST_STEP[FIRST_STEP.index("CREATE TRIGGER") :]
    (folder / "schema.sql").write_text(text)
    return folder


@pytest.fixture
def later(tmp_path: Path) -> Path:
    folder = tmp_path / "later"
    folder.mkdir()
    return next_schemas(folder)


async def a_log(path: Path) -> Path:
    async with EventLog(path) as log:
        await fill(await log.start_session("s"), 20)
        await log.store.write(lambda c: c.execute("INSERT INTO kv VALUES ('a', 'k', '[1]')").rowcount)
    return path


async def opened(path: Path, folder: Path) -> dict[str, Any]:
    """Open a file by the schema of a folder and close it; what stands in it then."""
    store = Store(path, SystemClock(), made_of=Schema(folder))
    await store.open(lambda recorded, appends: None)
    await store.close()
    return content(path)


def content(path: Path) -> dict[str, Any]:
    """All rows of all tables, and the version; those that every opening changes are left out."""
    with closing(sqlite3.connect(path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        rows = {name: sorted(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in tables}  # noqa: S608
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    return {**{name: found for name, found in rows.items() if name != "epoch"}, "version": version}


# ------------------------------------------------------------------------------------------------ the present version


def test_the_schema_is_what_its_migrations_make() -> None:
    """From version 1 on, script by script: the same tables, indexes, triggers, views, and rows."""
    made = [dump(PRESENT.scripts(0, PRESENT.version)), dump(statements(PRESENT.sql))]
    assert made[0] == made[1]


def dump(texts: list[str]) -> tuple[object, list[str]]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("PRAGMA legacy_alter_table = ON")
        for text in texts:
            connection.execute(text)
        rows = [line for line in connection.iterdump() if line.startswith("INSERT")]
        return schema._plain(schema._objects(connection)), sorted(rows)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_file_of_every_version_is_opened_and_holds_what_it_held(tmp_path: Path, version: int) -> None:
    """After a change of a version that is not released yet: `python -m tests.make_fixture`."""
    path = tmp_path / "agent.db"
    restore(version, path)
    with closing(sqlite3.connect(path)) as connection:
        assert schema._plain(schema._objects(connection)) == PRESENT.objects_of(version), "make the fixture again"
    async with EventLog(path) as log:
        await whole(log)
        assert [line async for line in log.export()] == export_of(version).read_bytes().splitlines()
        assert (await (await log.session("s1")).append("acme.note", {})).index > 0
    async with EventLog(path, read_only=True) as log:
        await whole(log)
    assert content(path)["version"] == PRESENT.version


@pytest.mark.parametrize("version", VERSIONS)
def test_the_fixture_has_something_in_it(tmp_path: Path, version: int) -> None:
    restore(version, tmp_path / "agent.db")
    empty = {name for name, rows in content(tmp_path / "agent.db").items() if not rows}
    rebuilt = {"session_anew", "turn_version_anew", "job_anew"}  # empty outside of a rebuild
    assert empty <= {"gate", "removed", "hook_gap", "delivery_gap", "attempt", *rebuilt}, (
        "nothing shows that these are kept"
    )
    assert dump_of(version).stat().st_size < 100_000


# ---------------------------------------------------------------------------------------------------- later versions


async def test_an_older_file_is_migrated_by_its_owner(tmp_path: Path, later: Path) -> None:
    """Over two versions at once; a table that ALTER changed, and one that was renamed, are as the schema says."""
    path = await a_log(tmp_path / "agent.db")
    before = content(path)
    after = await opened(path, later)
    assert after["version"] == LAST
    assert after["shelf"] == [(1, "shelf of s")]
    assert after["kv"] == [("a", "k", "[1]", 3)]
    assert after["log"] == before["log"]
    assert await opened(path, later) == after
    fresh = await opened(tmp_path / "fresh.db", later)
    assert set(fresh) == set(after)


async def test_a_reader_does_not_migrate_and_says_who_does(tmp_path: Path, later: Path) -> None:
    path = await a_log(tmp_path / "agent.db")
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    with pytest.raises(UnsupportedSchema, match="open it once without read_only"):
        await Store(path, SystemClock(), made_of=Schema(later), read_only=True).open(lambda recorded, appends: None)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before


async def test_a_newer_file_is_refused_and_not_touched(tmp_path: Path, later: Path) -> None:
    path = await a_log(tmp_path / "agent.db")
    await opened(path, later)
    before = (path.read_bytes(), path.stat().st_mtime_ns)
    for options in ({}, {"read_only": True}, {"accept_loss": True}):
        with pytest.raises(UnsupportedSchema, match="use a matching version") as caught:
            await EventLog(path, **options).open()  # type: ignore[arg-type]
        assert (caught.value.found, caught.value.supported) == (LAST, PRESENT.version)
        assert (path.read_bytes(), path.stat().st_mtime_ns) == before


@pytest.mark.parametrize(
    "statement",
    ["CREATE TABLE mine (x)", "DROP INDEX log_by_key", "CREATE TRIGGER t AFTER UPDATE ON epoch BEGIN SELECT 1; END"],
)
async def test_an_older_file_that_is_not_as_it_was_made_is_not_migrated(
    tmp_path: Path, later: Path, statement: str
) -> None:
    path = await a_log(tmp_path / "agent.db")
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
    before = path.read_bytes()
    with pytest.raises(NotALog):
        await opened(path, later)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "step",
    [
        "CREATE TABLE surplus (x);",
        "INSERT INTO shelf VALUES (1, 'twice');",
        "this is no SQL;",
        "DROP TABLE kv;",
    ],
)
async def test_a_migration_that_fails_or_leads_elsewhere_leaves_the_old_version(
    tmp_path: Path, later: Path, step: str
) -> None:
    path = await a_log(tmp_path / "agent.db")
    before = content(path)
    with (later / f"migrations/{LAST:04}_second_step.sql").open("a") as script:
        script.write(f"{step}\n")
    with pytest.raises(Exception, match=r"migration|nothing was stored"):
        await opened(path, later)
    assert content(path) == before
    async with EventLog(path) as log:
        await whole(log)


@pytest.mark.parametrize("number", range(1, LAST + 1))
def test_a_missing_script_is_noticed(later: Path, number: int) -> None:
    [script] = (later / "migrations").glob(f"{number:04}_*.sql")
    script.unlink()
    with pytest.raises(BrokenInvariant, match="one migration for each version"):
        Schema(later)


def test_words_in_a_text_or_a_comment_do_not_make_two_tables_alike() -> None:
    def alike(one: str, other: str) -> bool:
        return schema._plain_text(one) == schema._plain_text(other)

    assert alike("CREATE TABLE t (a, b)", 'CREATE TABLE "t" (a, -- first\n  b) ')
    assert not alike("CREATE TABLE t (a CHECK (a <> '--'), b)", "CREATE TABLE t (a CHECK (a <> ''), b)")
    assert not alike("SELECT 'a  b'", "SELECT 'a b'")
    assert not alike("SELECT a /* ' */ , b", "SELECT a /* ' */ , c")
    assert not alike("CREATE TABLE t (a, b)", "CREATE TABLE t (ab)")
    assert not alike('SELECT "NEW"', "SELECT NEW")


# ------------------------------------------------------------------------------------------------------------- kills

# Forked children that are killed when SQLite begins their n-th statement, or has done n times 20 steps of its machine.
MIGRATING = """
import sqlite3
from eventlog.store import schema

def run(how, when):
    with_schema = schema.Schema(Path(sys.argv[2]))
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = FULL")
    schema.check_version(connection, with_schema, path, migrates=True)
    left = when

    def count(*_):
        nonlocal left
        left -= 1
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)

    if how == "statements":
        connection.set_trace_callback(count)
    else:
        connection.set_progress_handler(count, 20)
    schema.migrate(connection, with_schema)

say("ready")
for line in sys.stdin:
    how, when = line.split()
    if not (pid := os.fork()):
        run(how, int(when))
        os._exit(0)
    say(os.waitpid(pid, 0)[1])
"""


def kills(migrating: Any, how: str, step: int) -> Iterator[int]:
    """Migrate again and again, and be killed later each time, until it is not killed."""
    when = 1
    while True:
        tell_child(migrating, f"{how} {when}")
        if int(line_of(migrating)) == 0:
            return
        yield when
        when += step


@pytest.mark.faults
@pytest.mark.parametrize(("how", "step", "at_least"), [("statements", 1, 15), ("steps", 3, 15)])
async def test_a_kill_at_any_statement_of_a_migration_leaves_the_old_version_or_the_new_one(
    tmp_path: Path, later: Path, counts: Counts, how: str, step: int, at_least: int
) -> None:
    """And at any step within a statement: the rows are the old ones or the new ones, and the file is whole."""
    path = await a_log(tmp_path / "agent.db")
    old, image = content(path), path.read_bytes()
    rounds = 0
    with child(MIGRATING, path, later) as migrating:
        assert line_of(migrating) == "ready"
        for when in kills(migrating, how, step * counts.every):
            rounds += 1
            found = content(path)
            assert found == old or found["version"] == LAST, f"killed at {when}"
            with closing(sqlite3.connect(path)) as connection:
                assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
            if rounds % 5 == 0:
                assert (await opened(path, later))["shelf"] == [(1, "shelf of s")]
                path.write_bytes(image)
    print(f"\n{rounds} kills, one at each {counts.every * step} of the {how} of a migration: all held")
    assert rounds >= at_least // counts.every
    assert content(path)["version"] == LAST
