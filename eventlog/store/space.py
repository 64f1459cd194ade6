"""The room that a file takes: given back page by page, or by writing the whole file anew."""

from __future__ import annotations

import sqlite3

PAGES_PER_STEP = 500


def free_pages(connection: sqlite3.Connection) -> int:
    """How many pages are in the file and not in use."""
    return int(connection.execute("PRAGMA freelist_count").fetchone()[0])


def give_back(connection: sqlite3.Connection, _events: object) -> int:
    """Give some unused pages back; returns how many are left."""
    connection.execute(f"PRAGMA incremental_vacuum({PAGES_PER_STEP})").fetchall()
    return free_pages(connection)


def write_anew(connection: sqlite3.Connection, _events: object) -> None:
    """Write the whole file anew, every page full and nothing in it that is not stored; needs as much room again.

    The copy passes through a file, because it may be larger than the memory.
    """
    connection.execute("PRAGMA temp_store = FILE")
    try:
        connection.execute("VACUUM")
    finally:
        connection.execute("PRAGMA temp_store = MEMORY")


def size_bytes(connection: sqlite3.Connection) -> int:
    """The size of the database, as its pages say."""
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int(pages * size)


def used_bytes(connection: sqlite3.Connection) -> int:
    """What the pages take that are in use."""
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    return size_bytes(connection) - free_pages(connection) * int(size)
