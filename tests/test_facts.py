"""Facts stay as they are: what triggers refuse on every table of facts, on our own writing connection too."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from eventlog.errors import BrokenInvariant
from eventlog.log import EventLog
from eventlog.store.gate import Purpose, gate
from tests.log_kit import whole

# A row in every table of facts.
ROWS = """
    INSERT INTO turn_version VALUES (1, 't', 1, 1);
    INSERT INTO event_type VALUES (1000, 'own.type');
    INSERT INTO imported VALUES (5, 6);
    INSERT INTO removed VALUES (2, 3, 0);
    INSERT INTO hook VALUES (1, 'a', 'h', 'skip', 'h.py', '[]', 0, NULL, 0, 0, 1);
    INSERT INTO hook_gap VALUES (1, 1, NULL, 1, 2, 2, 0);
    INSERT INTO extension (extension, name, id, version, path, manifest, state, installed_at)
        VALUES (1, 'x', 'p.x', '1.0.0', '/x', '{}', 'enabled', 0);
    INSERT INTO delivery (extension, place, state, position, session, project, type, attempts, spent, due_at,
                          recorded_at, generation)
        VALUES (1, 1, 'pending', 1, 1, 'p', 7, 1, 0, 0, 0, 1);
    INSERT INTO attempt VALUES (1, 1, 1, 'r', 0, 'failed', 'it broke', NULL);
    INSERT INTO delivery_gap VALUES (1, 1, 'p', 'capacity', 1, 2, 2, 0, NULL), (2, 1, 'p', 'capacity', 3, 4, 2, 0, 1);
"""

REFUSED = [
    "UPDATE session SET auth = '{}'",
    "UPDATE session SET project = 'other'",
    "UPDATE session SET started_at = 0",
    "DELETE FROM session",
    "REPLACE INTO session (session, id, project, channel_id, mode, purpose, started_at)"
    " VALUES (1, 's', 'p', 'c', 'chat', 'live', 0)",
    "UPDATE event_type SET name = 'x' WHERE type = 1000",
    "DELETE FROM event_type WHERE type = 1000",
    "UPDATE era SET first_position = 2",
    "DELETE FROM era",
    "UPDATE turn_version SET version = 2",
    "DELETE FROM turn_version",
    "REPLACE INTO turn_version VALUES (1, 't', 1, 2)",
    "UPDATE imported SET last = 7",
    "DELETE FROM imported",
    "UPDATE removed SET last = 9",
    "DELETE FROM removed",
    "REPLACE INTO removed VALUES (2, 9, 0)",
    "UPDATE floor SET position = 9",
    "DELETE FROM floor",
    "UPDATE hook_gap SET at_most = 1",
    "DELETE FROM hook_gap",
    "UPDATE delivery_gap SET last = 9 WHERE open IS NULL",
    "UPDATE delivery_gap SET count = 1 WHERE open = 1",
    "UPDATE delivery_gap SET first = 1 WHERE open = 1",
    "UPDATE delivery_gap SET reason = 'forgotten' WHERE open = 1",
    "DELETE FROM delivery_gap",
    "UPDATE attempt SET error = 'fine'",
    "DELETE FROM attempt",
    "REPLACE INTO attempt VALUES (1, 1, 1, 'r', 0, 'failed', 'fine', NULL)",
]


@pytest.mark.parametrize("statement", REFUSED)
async def test_r57_a_fact_is_neither_changed_nor_taken_away(tmp_path: Path, statement: str) -> None:
    """R57: not by UPDATE, not by DELETE, not by REPLACE, whatever is known beside the events themselves."""
    await _on_a_log_with_facts(tmp_path, statement, refused=True)


ALLOWED: list[tuple[Purpose | None, str]] = [
    (None, "UPDATE session SET title = 'it follows its events'"),
    (None, "UPDATE delivery_gap SET last = 9, count = 7 WHERE open = 1"),
    (None, "UPDATE delivery_gap SET open = NULL WHERE open = 1"),
    (None, "DELETE FROM delivery"),
    ("import", "UPDATE imported SET last = 7"),
    ("prune", "UPDATE removed SET last = 9"),
    ("prune", "DELETE FROM removed"),
    ("prune", "UPDATE floor SET position = 9"),
    ("forget", "UPDATE session SET auth = NULL"),
]


@pytest.mark.parametrize(("purpose", "statement"), ALLOWED)
async def test_what_a_fact_needs_is_allowed_to_the_work_that_needs_it(
    tmp_path: Path, purpose: Purpose | None, statement: str
) -> None:
    await _on_a_log_with_facts(tmp_path, statement, purpose, refused=False)


@pytest.mark.parametrize(
    ("purpose", "statement"),
    [
        ("forget", "UPDATE imported SET last = 7"),
        ("import", "UPDATE removed SET last = 9"),
        ("forget", "UPDATE floor SET position = 9"),
        ("prune", "UPDATE floor SET position = 0"),
        ("prune", "UPDATE session SET auth = NULL"),
        ("forget", "DELETE FROM attempt"),
        ("prune", "DELETE FROM era"),
    ],
)
async def test_a_gate_opens_no_fact_that_it_is_not_for(tmp_path: Path, purpose: Purpose, statement: str) -> None:
    await _on_a_log_with_facts(tmp_path, statement, purpose, refused=True)


async def _on_a_log_with_facts(
    tmp_path: Path, statement: str, purpose: Purpose | None = None, *, refused: bool
) -> None:
    async with EventLog(tmp_path / "agent.db") as log:
        await log.start_session("s", auth={"user": 1})

        def run(connection: sqlite3.Connection) -> None:
            for row in ROWS.split(";"):
                connection.execute(row)
            if purpose is not None:
                connection.execute("INSERT INTO gate VALUES (1, ?)", (purpose,))
            if refused:
                with pytest.raises(sqlite3.IntegrityError):
                    connection.execute(statement)
            else:
                assert connection.execute(statement).rowcount >= 1
            connection.execute("DELETE FROM gate")

        await log.store.write(run)


async def test_the_gate_is_opened_inside_a_transaction_alone_and_shut_at_its_end(tmp_path: Path) -> None:
    async with EventLog(tmp_path / "agent.db") as log:

        def outside(connection: sqlite3.Connection, _events: object) -> None:
            with pytest.raises(BrokenInvariant, match="outside of a transaction"), gate(connection, "prune"):
                pass

        def inside(connection: sqlite3.Connection) -> tuple[int, int]:
            with gate(connection, "prune"):
                opened = _gates(connection)
            return opened, _gates(connection)

        def failing(connection: sqlite3.Connection) -> None:
            with gate(connection, "prune"):
                raise RuntimeError("in the midst of it")

        await log.store.with_writer(outside)
        assert await log.store.write(inside) == (1, 0)
        with pytest.raises(RuntimeError):
            await log.store.write(failing)
        assert await log.store.read(_gates) == 0
        await whole(log)


def _gates(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM gate").fetchone()[0])
