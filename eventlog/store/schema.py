"""The schema of a file: its one text, the migrations to it, and what stands in a file of each version."""

from __future__ import annotations

import re
import sqlite3
from functools import cache, cached_property
from pathlib import Path

from eventlog.errors import BrokenInvariant, NotALog, StoreError, UnsupportedSchema
from eventlog.store.database import MIN_SQLITE, transaction
from eventlog.store.owner import APPLICATION_ID

Objects = frozenset[tuple[str, str, str]]
"""What a file is made of: (kind, name, SQL) of each table, index, trigger and view."""

_VERSION = re.compile(r"^PRAGMA user_version = (\d+);", re.MULTILINE)
_SCRIPT = re.compile(r"(\d{4})_\w+\.sql")
_TOKEN = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|--[^\n]*|/\*.*?\*/|\s+|\w+|.""", re.DOTALL)
_QUOTED_TABLE = re.compile(r'^CREATE TABLE "(\w+)"')


class Schema:
    """`schema.sql` of a folder, and the scripts in `migrations/` beside it that lead to it from older versions."""

    def __init__(self, folder: Path) -> None:
        self.sql = (folder / "schema.sql").read_text(encoding="utf-8")
        found = _VERSION.search(self.sql)
        if found is None:
            raise BrokenInvariant(f"{folder / 'schema.sql'} does not say its version")
        self.version = int(found[1])
        self._scripts = {
            int(match[1]): path.read_text(encoding="utf-8")
            for path in sorted((folder / "migrations").glob("*.sql"))
            if (match := _SCRIPT.fullmatch(path.name))
        }
        if self.version == 1:
            self._scripts.setdefault(1, self.sql)
        if set(self._scripts) != set(range(1, self.version + 1)):
            raise BrokenInvariant(f"{folder} has not one migration for each version up to {self.version}")

    def scripts(self, after: int, upto: int) -> list[str]:
        """The statements that lead from one version to another; from 0: those that make a file."""
        return [text for number in range(after + 1, upto + 1) for text in statements(self._scripts[number])]

    @cached_property
    def objects(self) -> Objects:
        """What a new file is made of."""
        return _made_by(statements(self.sql))

    @cache  # noqa: B019 (one instance lives as long as the process)
    def objects_of(self, version: int) -> Objects:
        """What a file of a version is made of, however it came to that version."""
        return _plain(self.objects if version == self.version else _made_by(self.scripts(0, version)))


@cache
def installed() -> Schema:
    """The schema of this library: inside the package when it was installed from a wheel, beside it in a checkout."""
    package = Path(__file__).resolve().parents[1]
    for folder in (package, package.parent):
        if (folder / "schema.sql").is_file():
            return Schema(folder)
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


def create(connection: sqlite3.Connection, schema: Schema, era: str, now_us: int) -> None:
    """Make all tables in one transaction, in a rollback journal, so that a kill leaves nothing or everything.

    It begins deferred, because the first page is made when it is first written to: before that, auto_vacuum has to be
    chosen, and outside of the transaction that would commit a page which belongs to no application yet.
    """
    with transaction(connection, "BEGIN"):
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        for statement in statements(schema.sql):
            connection.execute(statement)
        connection.execute("INSERT INTO era VALUES (?, 1, ?, 'created')", (era, now_us))


def migrate(connection: sqlite3.Connection, schema: Schema) -> None:
    """Bring a checked file up to the schema's version, in one transaction: a kill leaves the old one or the new one.

    Raises BrokenInvariant, and leaves the old version, if the scripts do not lead to what the schema says.
    """
    version = _version(connection)
    if version == schema.version:
        return
    connection.execute("PRAGMA legacy_alter_table = ON")  # a table may be replaced under triggers that name it
    try:
        with transaction(connection, "BEGIN IMMEDIATE"):
            for statement in schema.scripts(version, schema.version):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {schema.version:d}")
            strange = _plain(_objects(connection)) ^ schema.objects_of(schema.version)
            if strange:
                kind, name, _ = min(strange)
                raise BrokenInvariant(f"the migration to version {schema.version} does not make the {kind} {name!r}")
    finally:
        connection.execute("PRAGMA legacy_alter_table = OFF")


def check_version(connection: sqlite3.Connection, schema: Schema, path: Path, *, migrates: bool = False) -> None:
    """Refuse a foreign or newer file, and one whose objects are not exactly its version's; changes nothing.

    An older file is refused too, unless it is about to be migrated. This has to come before anything else that
    touches a table: a crafted file must not make a trigger, view or CHECK of its own run. (`trusted_schema = OFF` would
    forbid SQLite's JSON functions to our own triggers as well.)
    """
    (application_id,) = connection.execute("PRAGMA application_id").fetchone()
    if application_id != APPLICATION_ID:
        raise NotALog(str(path), "it is another application's database")
    version = _version(connection)
    if not (1 if migrates else schema.version) <= version <= schema.version:
        raise UnsupportedSchema(str(path), version, schema.version)
    found = _objects(connection)
    if version == schema.version and found == schema.objects:
        return  # as it was made; a file that was migrated says the same in other words
    strange = _plain(found) ^ schema.objects_of(version)
    if strange:
        kind, name, _ = min(strange)
        raise NotALog(str(path), f"its {kind} {name!r} is not what eventlog makes")


def statements(script: str) -> list[str]:
    """Cut a script into statements. `executescript` would commit before it begins."""
    found, statement = [], ""
    for line in script.splitlines(keepends=True):
        statement += line
        if line.rstrip().partition(" --")[0].rstrip().endswith(";") and sqlite3.complete_statement(statement):
            found.append(statement.strip())
            statement = ""
    return [text for text in found if text]


def _version(connection: sqlite3.Connection) -> int:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    return int(version)


def _objects(connection: sqlite3.Connection) -> Objects:
    rows = connection.execute("SELECT type, name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'")
    return frozenset((kind, name, sql) for kind, name, sql in rows)


def _made_by(texts: list[str]) -> Objects:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    try:
        connection.execute("PRAGMA legacy_alter_table = ON")
        for text in texts:
            connection.execute(text)
        return _objects(connection)
    finally:
        connection.close()


def _plain(objects: Objects) -> Objects:
    """The same without comments and spaces: ALTER TABLE writes a column behind the comment of the one before.

    What it renames it also puts into quotes.
    """
    return frozenset((kind, name, _plain_text(sql or "")) for kind, name, sql in objects)


def _plain_text(sql: str) -> str:
    words = [word for word in _TOKEN.findall(_QUOTED_TABLE.sub(r"CREATE TABLE \1", sql)) if not _says_nothing(word)]
    return " ".join(words)


def _says_nothing(word: str) -> bool:
    return word.isspace() or word.startswith(("--", "/*"))
