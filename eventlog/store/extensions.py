"""Installed extensions, what they subscribe to and may read; every change that clears deliveries is one commit."""

import json
import sqlite3
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from eventlog.encoding import check_id
from eventlog.errors import InvalidName
from eventlog.events import TYPE_KEYS
from eventlog.store.attempts import FREE
from eventlog.store.events import as_time, last_position
from eventlog.store.store import Store

ExtensionState = Literal["enabled", "disabled", "uninstalled"]

TYPE_OF_CAPABILITY = {"conversations.turns.read": TYPE_KEYS["turn.completed"], "jobs.read": TYPE_KEYS["job.completed"]}
_NAME_OF_TYPE = {key: name for name, key in TYPE_KEYS.items()}


class Installation(msgspec.Struct, frozen=True):
    """What a folder says of itself: `name` is the folder's, `handlers` maps the log's event types to handler names."""

    name: str
    id: str
    version: str
    path: str
    manifest: str
    handlers: Mapping[str, str]


class Grant(msgspec.Struct, frozen=True):
    """A capability of an extension in a project."""

    capability: str
    project: str


class InstalledExtension(msgspec.Struct, frozen=True):
    """An extension as the file knows it. It `asks` for capabilities, and has `live` deliveries and `dead` letters.

    `refused` counts the events that are in its gaps; `failure` says why it could not be activated the last time.
    """

    key: int
    name: str
    id: str
    version: str
    path: str
    state: ExtensionState
    paused: bool
    generation: int
    cursor: int
    installed_at: datetime
    live: int
    dead: int
    refused: int
    failure: str | None
    handlers: dict[str, str]
    asks: tuple[str, ...]
    grants: tuple[Grant, ...]


class Cleared(msgspec.Struct, frozen=True):
    """How many deliveries went, live ones and dead letters."""

    live: int
    dead: int


class Extensions:
    """The extensions of one file. Each takes a folder's name or a manifest id; InvalidName for one that is unknown."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def install(
        self, installation: Installation, projects: Sequence[str] = (), *, by_operator: bool = False
    ) -> InstalledExtension:
        """Add an extension at the head of the log (H10), or bring a known one up to date.

        `projects` are granted all that it asks for when it is new, or `by_operator`; without one an uninstalled
        extension stays as it is. InvalidName if another installed one has its manifest id.
        """
        return await self._store.write(install, installation, projects, by_operator, self._store.clock.now_us())

    async def all(self) -> list[InstalledExtension]:
        """All of them, uninstalled ones too, by name."""
        return await self._store.read(list_extensions)

    async def find(self, name: str) -> InstalledExtension:
        """One of them."""
        return await self._store.read(find, name)

    async def enable(self, name: str) -> InstalledExtension:
        """Let it get what is recorded from now on (R48)."""
        return await self._store.write(enable, name)

    async def disable(self, name: str) -> Cleared:
        """Stop it, and clear its deliveries (R46)."""
        return await self._store.write(disable, name)

    async def uninstall(self, name: str) -> Cleared:
        """Stop it for good, take back its grants and clear its deliveries (R47)."""
        return await self._store.write(uninstall, name)

    async def pause(self, name: str) -> InstalledExtension:
        """Call it no more; its queue goes on filling."""
        return await self._store.write(set_paused, name, True)

    async def resume(self, name: str) -> InstalledExtension:
        """Call it again."""
        return await self._store.write(set_paused, name, False)

    async def activated(self, key: int, failure: str | None) -> None:
        """Keep why it could not be activated, or that it was."""
        await self._store.write(activated, key, failure)

    async def grant(self, name: str, project: str, capability: str | None = None) -> InstalledExtension:
        """Let it read a project from now on (R48); without a capability, all that its manifest asks for.

        InvalidEvent for a project that no session can have.
        """
        return await self._store.write(grant, name, project, capability, self._store.clock.now_us())

    async def revoke(self, name: str, project: str, capability: str | None = None) -> Cleared:
        """Take that back, all of it without a capability, and clear what it was owed by it (R45)."""
        return await self._store.write(revoke, name, project, capability)


# ----------------------------------------------------------------------------------------------------- to find them

_SELECT = """
    SELECT extension, name, id, version, path, state, paused, generation, stopped_at, installed_at,
           (SELECT count(*) FROM delivery AS d INDEXED BY delivery_lane
            WHERE d.extension = e.extension AND d.state <> 'dead'),
           (SELECT count(*) FROM delivery AS d WHERE d.extension = e.extension AND d.state = 'dead'),
           (SELECT coalesce(sum(g.count), 0) FROM delivery_gap AS g WHERE g.extension = e.extension), failure,
           (SELECT json_group_array(json_extract(value, '$.capability')) FROM json_each(e.manifest, '$.permissions')
            WHERE json_extract(value, '$.scope') = 'project')
    FROM extension AS e
"""


def list_extensions(connection: sqlite3.Connection) -> list[InstalledExtension]:
    """All extensions, by name."""
    rows = connection.execute(f"{_SELECT} ORDER BY name").fetchall()
    return [_extension(connection, row) for row in rows]


def find(connection: sqlite3.Connection, name: str) -> InstalledExtension:
    """The extension with this name, else the installed one with this manifest id; raises InvalidName."""
    by_name = f"{_SELECT} WHERE name = :it OR id = :it ORDER BY name = :it DESC, state = 'uninstalled' LIMIT 1"
    row = connection.execute(by_name, {"it": name}).fetchone()
    if row is None:
        raise InvalidName("extension", name, "is not installed; `eventlog extensions` lists those that are")
    return _extension(connection, row)


def _extension(connection: sqlite3.Connection, row: tuple[Any, ...]) -> InstalledExtension:
    key, name, id, version, path, state, paused, generation, stopped_at, installed_at, *counts, failure, asks = row
    live, dead, refused = counts
    handlers = connection.execute("SELECT type, handler FROM subscription WHERE extension = ?", (key,)).fetchall()
    grants = connection.execute(
        "SELECT capability, project FROM extension_grant WHERE extension = ? ORDER BY project, capability", (key,)
    ).fetchall()
    return InstalledExtension(
        key=key,
        name=name,
        id=id,
        version=version,
        path=path,
        state=state,
        paused=bool(paused),
        generation=generation,
        cursor=last_position(connection) if stopped_at is None else stopped_at,
        installed_at=as_time(installed_at),
        live=live,
        dead=dead,
        refused=refused,
        failure=failure,
        handlers={_NAME_OF_TYPE[type_key]: handler for type_key, handler in handlers},
        asks=tuple(json.loads(asks)),
        grants=tuple(Grant(*each) for each in grants),
    )


# ----------------------------------------------------------------------------------------------- what operators do

_INSERT = """
    INSERT INTO extension (name, id, version, path, manifest, state, stopped_at, installed_at)
    VALUES (:name, :id, :version, :path, :manifest, 'uninstalled', 0, :now)
"""
_UPDATE = "UPDATE extension SET id = :id, version = :version, path = :path, manifest = :manifest WHERE name = :name"
_START = "UPDATE extension SET state = 'enabled', stopped_at = NULL WHERE extension = ?"
_STOP = """
    UPDATE extension SET state = ?, stopped_at = coalesce(stopped_at, ?), generation = generation + 1, failure = NULL
    WHERE extension = ? AND state <> 'uninstalled'
"""


def install(
    connection: sqlite3.Connection, it: Installation, projects: Sequence[str], by_operator: bool, now_us: int
) -> InstalledExtension:
    """Make or renew the row of an extension; a new one, and one that an operator installs again, starts at the head."""
    if isinstance(projects, str):  # a sequence too, of letters
        raise InvalidName("grants", projects, "give a list of projects")
    _refuse_taken_id(connection, it)
    row = connection.execute("SELECT state FROM extension WHERE name = ?", (it.name,)).fetchone()
    state = None if row is None else row[0]
    if state == "uninstalled" and not by_operator:
        return find(connection, it.name)
    values = {"name": it.name, "id": it.id, "version": it.version, "path": it.path, "manifest": it.manifest}
    connection.execute(_INSERT if row is None else _UPDATE, {**values, "now": now_us})
    starts = state in (None, "uninstalled")
    found = find(connection, it.name)
    _subscribe(connection, found.key, it.handlers)
    if starts:
        connection.execute("UPDATE extension SET paused = 0, installed_at = ? WHERE extension = ?", (now_us, found.key))
        connection.execute(_START, (found.key,))
    if starts or by_operator:
        for project in projects:
            _grant(connection, found.key, project, found.asks, now_us)
    return find(connection, it.name)


def enable(connection: sqlite3.Connection, name: str) -> InstalledExtension:
    """Start a disabled extension at the head of the log."""
    found = _installed(connection, name)
    connection.execute(_START, (found.key,))
    return find(connection, found.name)


def disable(connection: sqlite3.Connection, name: str) -> Cleared:
    """Stop an enabled extension; one that is disabled stays so."""
    found = _installed(connection, name)
    if found.state == "disabled":
        return Cleared(0, 0)
    connection.execute(_STOP, ("disabled", last_position(connection), found.key))
    return _clear(connection, found.key)


def uninstall(connection: sqlite3.Connection, name: str) -> Cleared:
    """Stop an extension and remember that it was taken away."""
    found = _installed(connection, name)
    connection.execute(_STOP, ("uninstalled", last_position(connection), found.key))
    connection.execute("DELETE FROM extension_grant WHERE extension = ?", (found.key,))
    connection.execute("DELETE FROM subscription WHERE extension = ?", (found.key,))
    return _clear(connection, found.key)


def set_paused(connection: sqlite3.Connection, name: str, paused: bool) -> InstalledExtension:
    """Stop or go on calling an extension; nothing is cleared."""
    found = _installed(connection, name)
    connection.execute("UPDATE extension SET paused = ? WHERE extension = ?", (paused, found.key))
    return find(connection, found.name)


def activated(connection: sqlite3.Connection, key: int, failure: str | None) -> None:
    """Keep why an extension could not be activated, or that it was."""
    connection.execute("UPDATE extension SET failure = ? WHERE extension = ?", (failure, key))


def grant(
    connection: sqlite3.Connection, name: str, project: str, capability: str | None, now_us: int
) -> InstalledExtension:
    """Grant what an extension asks for, all of it or one capability; InvalidName for one that it does not ask for."""
    found = _installed(connection, name)
    if capability is not None and capability not in found.asks:
        asks = ", ".join(found.asks) or "nothing"
        raise InvalidName("capability", capability, f"the manifest of {found.name} does not ask for it (but: {asks})")
    _grant(connection, found.key, project, found.asks if capability is None else (capability,), now_us)
    return find(connection, found.name)


def revoke(connection: sqlite3.Connection, name: str, project: str, capability: str | None) -> Cleared:
    """Take grants of a project back, and with each the deliveries that it was for."""
    found = _installed(connection, name)
    if capability is not None and capability not in TYPE_OF_CAPABILITY:
        raise InvalidName("capability", capability, f"there are {' and '.join(TYPE_OF_CAPABILITY)}")
    taken = connection.execute(
        "DELETE FROM extension_grant WHERE extension = :key AND project = :project"
        " AND (:capability IS NULL OR capability = :capability) RETURNING capability",
        {"key": found.key, "project": project, "capability": capability},
    ).fetchall()
    if not taken:
        return Cleared(0, 0)
    connection.execute("UPDATE extension SET generation = generation + 1 WHERE extension = ?", (found.key,))
    return _clear(connection, found.key, project, [TYPE_OF_CAPABILITY[capability] for (capability,) in taken])


# --------------------------------------------------------------------------------------------------------- the parts


def _installed(connection: sqlite3.Connection, name: str) -> InstalledExtension:
    found = find(connection, name)
    if found.state == "uninstalled":
        raise InvalidName("extension", name, "was uninstalled; install it again")
    return found


def _refuse_taken_id(connection: sqlite3.Connection, it: Installation) -> None:
    other = connection.execute(
        "SELECT name FROM extension WHERE id = ? AND name <> ? AND state <> 'uninstalled'", (it.id, it.name)
    ).fetchone()
    if other is not None:
        raise InvalidName("extension", it.name, f"{it.id} is installed already, as {other[0]}; uninstall that first")


def _subscribe(connection: sqlite3.Connection, key: int, handlers: Mapping[str, str]) -> None:
    connection.execute("DELETE FROM subscription WHERE extension = ?", (key,))
    rows = [(key, TYPE_KEYS[type_name], handler) for type_name, handler in handlers.items()]
    connection.executemany("INSERT INTO subscription (extension, type, handler) VALUES (?, ?, ?)", rows)


def _grant(connection: sqlite3.Connection, key: int, project: str, capabilities: Sequence[str], now_us: int) -> None:
    check_id("project", project)
    connection.executemany(
        "INSERT OR IGNORE INTO extension_grant (extension, capability, project, granted_at) VALUES (?, ?, ?, ?)",
        [(key, capability, project, now_us) for capability in capabilities],
    )


def _clear(
    connection: sqlite3.Connection, key: int, project: str | None = None, types: Sequence[int] | None = None
) -> Cleared:
    """Delete deliveries, live and dead; a call that runs for one of them finds nothing to settle."""
    parameters = {"key": key, "project": project, "types": None if types is None else json.dumps(types)}
    return Cleared(
        dead=connection.execute(f"DELETE FROM delivery {_CLEARED} AND state = 'dead'", parameters).rowcount,
        live=connection.execute(f"{FREE} {_CLEARED} AND state <> 'dead'", parameters).rowcount,
    )


_CLEARED = """
    WHERE extension = :key AND (:project IS NULL OR project = :project)
      AND (:types IS NULL OR type IN (SELECT value FROM json_each(:types)))
"""
