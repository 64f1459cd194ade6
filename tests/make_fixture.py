"""Makes the fixture of the present schema version: `python -m tests.make_fixture`.

`tests/fixtures/v<N>.sql` is the dump of a closed log with something in every kind of table, and `v<N>.jsonl` is what
an export of it says. They are kept for ever, so that a later version can be shown to read them.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory

from eventlog import Event, EventLog, HookContext, NewEvent, Runtime, define_hook
from eventlog.folding import FoldLimits
from eventlog.store import folded, schema, usage
from eventlog.store.extensions import Extensions
from eventlog.store.owner import APPLICATION_ID
from eventlog.testing import ManualClock
from tests.extension_kit import installation
from tests.folding_kit import COUNTS, count_types, turn

FIXTURES = Path(__file__).parent / "fixtures"


def dump_of(version: int) -> Path:
    """The database of a version, as SQL."""
    return FIXTURES / f"v{version}.sql"


def export_of(version: int) -> Path:
    """What its export says."""
    return FIXTURES / f"v{version}.jsonl"


def restore(version: int, path: Path) -> None:
    """Make a database of a fixture."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.executescript(dump_of(version).read_text(encoding="utf-8"))
        connection.execute("PRAGMA journal_mode = WAL").fetchone()


async def fill(path: Path) -> list[bytes]:
    """Make a log and close it; returns its export."""
    async with EventLog(path, clock=ManualClock(), fold_limits=FoldLimits(snapshot_every_events=1)) as log:
        await Extensions(log.store).install(installation("acme"), ["p"])
        runtime = Runtime(log, projections=[COUNTS])
        runtime.add_hook("keeps", define_hook(events={"turn.completed": _keep}))
        async with runtime:
            await _live(log)
            await runtime.settled()
        return [line async for line in log.export()]


async def _keep(event: Event[object], ctx: HookContext) -> None:
    await ctx.host.kv.put("last", {"index": event.index})
    await ctx.host.files.write("notes.md", "kept")
    if event.turn_id == "t2":
        raise ValueError("on purpose")


async def _live(log: EventLog) -> None:
    session = await log.start_session("s1", project="p", title="kept", auth={"user": "u1"})
    call = {"callId": "c1", "toolName": "pay", "args": {"eur": 5}}
    question = {"requestId": "q1", "kind": "approval", "prompt": "Pay?"}
    for turn_id in ("t1", "t2"):
        await session.append("turn.started", {}, turn_id=turn_id)
        await session.append("message.received", {"text": "grüß Gott"}, turn_id=turn_id, key=f"received:{turn_id}")
        await session.append("turn.completed", {"result": {"turn": turn_id}}, turn_id=turn_id)
    await session.append("job.queued", {"jobId": "j1", "name": "render"})
    await session.append("job.started", {"jobId": "j1"})
    await session.append("reminder.created", {"reminderId": "r1", "at": "2999-01-01T00:00:00Z", "text": "later"})
    await session.append_many([NewEvent("acme.note", {"n": n}) for n in range(3)])
    await session.append("turn.started", {}, turn_id="t3")
    await session.append("actions.requested", {"calls": [call]}, turn_id="t3")
    await session.append("input.requested", {"requests": [question]}, turn_id="t3")
    nothing: dict[str, int] = {}
    await session.fold(count_types, nothing)
    too_many = turn("m", inputTokens=usage.MAX_TOKENS_PER_TURN + 1)
    await session.append("turn.completed", too_many, turn_id="t2")  # usage passes it, with a record
    await (await log.start_session("s2")).append("session.completed", {})
    await log.store.write(folded.before_pruning, 2, log.clock.now_us())
    await log.import_events(
        b'{"type":"acme.old","index":%d,"sessionId":"old","at":"2020-01-01T00:00:00Z","data":{}}' % n for n in range(2)
    )


def main() -> None:
    """Write both files."""
    logging.getLogger("eventlog").addHandler(logging.NullHandler())  # what a handler throws is in the fixture
    version = schema.installed().version
    FIXTURES.mkdir(exist_ok=True)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "agent.db"
        lines = asyncio.run(fill(path))
        with closing(sqlite3.connect(path)) as connection:
            dump = "\n".join(connection.iterdump())
    header = f"PRAGMA application_id = {APPLICATION_ID};\nPRAGMA user_version = {version};\n"
    dump_of(version).write_text(header + dump + "\n", encoding="utf-8")
    export_of(version).write_bytes(b"\n".join(lines) + b"\n")
    print(f"wrote {dump_of(version)} and {export_of(version)}")


if __name__ == "__main__":
    main()
