"""Whether appending stays as quick when the log has a million events, and what is written and stored for them.

256 tasks append until the log has 1,000,000 events; the rate of the last 100,000 is held against that of the first,
after as many to warm up. `python -m benchmarks --only flat --large` goes on to 10,000,000, which takes minutes. The
bytes are those that this process caused to be written (`write_bytes` of /proc/self/io, so on Linux only, and only where
the disk is a real one), and those of the file, both by byte of `data`. Once more with a `key=` on every event. Not
measured: peers, which are in `peers` with a fresh file.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter

from eventlog.bench import Figure, Run, Subject
from eventlog.bench.limits import append_rate
from eventlog.bench.measuring import seconds
from eventlog.bench.report import percentile
from eventlog.bench.workload import Appender, as_json, opened, payload

EVENTS = 1_000_000
LARGE_SHARE = 10.0
PARTS = 10
LATENCIES = 20_000
IO = Path("/proc/self/io")

FRESH, KEYS_FRESH = "fresh", "fresh, with keys"

FIGURES = (
    Figure("R", "events/s", "sqlite3 alone on a new file, as many events as the first part"),
    Figure(FRESH, "events/s", "the first tenth, after a warm-up of as many"),
    Figure("full", "events/s", "the last tenth", FRESH, at_least=0.65),
    Figure("full: an append, p99", "ms", "256 tasks at that size: 99 of 100 took no longer", at_most=30),
    Figure("written", "ratio", "bytes written by byte of data, from the first event to the last", at_most=6),
    Figure("stored", "ratio", "bytes of the closed file by byte of data", at_most=1.3),
    Figure(KEYS_FRESH, "events/s", "a tenth with a key= on every event, on a new log"),
    Figure("full, with keys", "events/s", "the same when the log is full", KEYS_FRESH),
)


def written_bytes() -> int | None:
    """What this process caused to be written so far; None where nobody counts it."""
    if not IO.exists():
        return None
    return int(dict(line.split(": ") for line in IO.read_text().splitlines())["write_bytes"])


async def measure(run: Run) -> None:
    """One round."""
    part = run.scaled(EVENTS, 1_000) // PARTS
    run.note("R", append_rate(run.folder, part, "full"))
    async with opened(run.folder, sessions=run.sessions) as appender:
        run.note(KEYS_FRESH, part / await seconds(lambda: appender.many_with_keys(part)))
    with run.a_folder() as folder:
        async with opened(folder, sessions=run.sessions) as appender:
            path, before = appender.log.path, written_bytes()
            await appender.many(part)
            run.note(FRESH, part / await seconds(lambda: appender.many(part)))
            await appender.many((PARTS - 3) * part)
            run.note("full", part / await seconds(lambda: appender.many(part)))
            await appender.log.close()
            payload_bytes = PARTS * part * len(as_json(payload()))
            if before is not None and (written := written_bytes()):
                run.note("written", (written - before) / payload_bytes)
            run.note("stored", path.stat().st_size / payload_bytes)
            await appender.log.open()
            reopened = Appender(appender.log, [await appender.log.session(each.id) for each in appender.sessions])
            took_s = await _latencies(reopened, min(LATENCIES, part))
            run.note("full: an append, p99", percentile(took_s, 99) * 1e3)
            run.note("full, with keys", part / await seconds(lambda: reopened.many_with_keys(part)))


async def _latencies(appender: Appender, events: int) -> list[float]:
    took_s = list[float]()

    async def one() -> None:
        began_s = perf_counter()
        await appender.one()
        took_s.append(perf_counter() - began_s)

    await appender.repeat(one, events)
    return took_s


FLAT = Subject("flat", __doc__, FIGURES, measure)
