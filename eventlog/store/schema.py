"""Find schema.sql, make a new file from it, and check the version of an old one."""

import sqlite3
from functools import cache
from pathlib import Path

from eventlog.errors import NotALog, StoreError, UnsupportedSchema
from eventlog.store.database import MIN_SQLITE, transaction
from eventlog.store.owner import APPLICATION_ID

SCHEMA_VERSION = 1


@cache
def schema_sql() -> str:
    """The DDL: inside the package when it was installed from a wheel, beside the package in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for candidate in (package / "schema.sql", package.parent / "schema.sql"):
        if candidate.is_file():
            return candidate.read_text(encoding="utf-8")
    raise StoreError(f"schema.sql is neither in {package} nor beside it; install eventlog again")


def check_sqlite() -> None:
    """Raise StoreError when the SQLite library is too old for STRICT tables."""
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        wanted = ".".join(map(str, MIN_SQLITE))
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old; eventlog needs {wanted} or newer")


def is_empty(connection: sqlite3.Connection) -> bool:
    """Whether nothing was made in the file yet."""
    (version,) = connection.execute("PRAGMA schema_version").fetchone()
    return int(version) == 0


def create(connection: sqlite3.Connection, era: str, now_us: int) -> None:
    """Make all tables in one transaction, in a rollback journal, so that a kill leaves nothing or everything.

    It begins deferred, because the first page is made when it is first written to: before that, auto_vacuum has to be
    chosen, and outside of the transaction that would commit a page which belongs to no application yet.
    """
    with transaction(connection, "BEGIN"):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        for statement in statements(schema_sql()):
            connection.execute(statement)
        connection.execute("INSERT INTO era VALUES (?, 1, ?, 'created')", (era, now_us))


def statements(script: str) -> list[str]:
    """Cut a script into statements. `executescript` would commit before it begins."""
    found, statement = [], ""
    for line in script.splitlines(keepends=True):
        statement += line
        if line.rstrip().partition(" --")[0].rstrip().endswith(";") and sqlite3.complete_statement(statement):
            found.append(statement.strip())
            statement = ""
    return [text for text in found if text]


def check_version(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a foreign or newer file, and one whose objects are not exactly the schema's; changes nothing.

    This has to come before anything else that touches a table: a crafted file must not make a trigger, view or
    CHECK of its own run. (`trusted_schema = OFF` would forbid SQLite's JSON functions to our own triggers as well.)
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise NotALog(str(path), "it is another application's database")
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version != SCHEMA_VERSION:
        raise UnsupportedSchema(str(path), version, SCHEMA_VERSION)
    strange = _objects(connection) ^ _expected_objects()
    if strange:
        kind, name, _ = min(strange)
        raise NotALog(str(path), f"its {kind} {name!r} is not what eventlog makes")


def _objects(connection: sqlite3.Connection) -> set[tuple[str, str, str]]:
    rows = connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'")
    return {(kind, name, sql) for kind, name, sql in rows}


@cache
def _expected_objects() -> frozenset[tuple[str, str, str]]:
    connection = sqlite3.connect(":memory:")
    try:
        for statement in statements(schema_sql()):
            connection.execute(statement)
        return frozenset(_objects(connection))
    finally:
        connection.close()
