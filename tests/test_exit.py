"""A process ends by itself, in whatever way it leaves the log, and everything acknowledged is there afterwards."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from eventlog.log import EventLog
from tests.log_kit import all_of, indexes, line_of, start_child, whole

EXIT_S = 5.0

BEGIN = """
async def begin():
    log = await EventLog(path).open()
    session = await log.start_session("s")
    for n in range(20):
        say("stored", (await session.append("own.type", {"n": n})).index)
    return log, session
"""

ENDINGS: dict[str, tuple[str, int, str]] = {
    "returns without closing": (
        """
async def main():
    await begin()
asyncio.run(main())
""",
        0,
        "",
    ),
    "keeps the log in a global": (
        """
async def main():
    global kept
    kept = await begin()
asyncio.run(main())
""",
        0,
        "",
    ),
    "raises": (
        """
async def main():
    log, session = await begin()
    raise LookupError("of the program")
asyncio.run(main())
""",
        1,
        "LookupError: of the program",
    ),
    "raises inside of the log": (
        """
async def main():
    async with EventLog(path) as log:
        session = await log.start_session("s")
        for n in range(20):
            say("stored", (await session.append("own.type", {"n": n})).index)
        raise LookupError("of the program")
asyncio.run(main())
""",
        1,
        "LookupError: of the program",
    ),
    "leaves appends behind": (
        """
async def main():
    log, session = await begin()
    for n in range(3_000):
        asyncio.ensure_future(session.append("own.type", {"n": n}))
    await asyncio.sleep(0)
asyncio.run(main())
""",
        0,
        "",
    ),
    "leaves tails and readers behind": (
        """
async def follow(tail):
    async for event in tail:
        pass

async def main():
    log, session = await begin()
    reader = await EventLog(path, read_only=True).open()
    for tail in (session.tail(), log.tail(), reader.tail(), (await reader.session("s")).tail()):
        asyncio.ensure_future(follow(tail))
    for _ in range(50):
        await asyncio.sleep(0)
asyncio.run(main())
""",
        0,
        "",
    ),
    "closes a tail in the middle": (
        """
async def main():
    log, session = await begin()
    async for event in session.tail():
        if event.index == 5:
            break
    await log.close()
asyncio.run(main())
""",
        0,
        "",
    ),
    "exits with a code": (
        """
async def main():
    log, session = await begin()
    sys.exit(7)
asyncio.run(main())
""",
        7,
        "",
    ),
    "stops its loop": (
        """
loop = asyncio.new_event_loop()
loop.run_until_complete(begin())
loop.close()
""",
        0,
        "",
    ),
    "closes its loop with appends in flight": (
        """
loop = asyncio.new_event_loop()
log, session = loop.run_until_complete(begin())
async def submit():
    return [asyncio.ensure_future(session.append("own.type", {})) for n in range(500)]
tasks = loop.run_until_complete(submit())
loop.run_until_complete(asyncio.sleep(0))
for task in tasks:
    task._log_destroy_pending = False  # that they are lost is what this is about
loop.close()
""",
        0,
        "",
    ),
    "cancels everything while it closes": (
        """
async def main():
    log, session = await begin()
    for n in range(3_000):
        asyncio.ensure_future(session.append("own.type", {"n": n}))
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(log.close())
    await asyncio.sleep(0)
asyncio.run(main())
""",
        0,
        "",
    ),
    "cannot open a folder that is a file": (
        """
async def main():
    log, session = await begin()
    await log.close()
    await EventLog(path / "agent.db").open()
asyncio.run(main())
""",
        1,
        "Error",
    ),
    "cannot open what is no log": (
        """
async def main():
    log, session = await begin()
    await log.close()
    text = path.with_name("text.db")
    text.write_text("no database, but a text")
    for read_only in (False, True):
        try:
            await EventLog(text, read_only=read_only).open()
        except EventLogError:
            pass
    await EventLog(text).open()
asyncio.run(main())
""",
        1,
        "NotALog",
    ),
    "waits for an owner that does not leave": (
        """
async def main():
    log, session = await begin()
    waiting = asyncio.ensure_future(EventLog(path, wait_for_owner_s=600).open())
    for _ in range(50):
        await asyncio.sleep(0)
asyncio.run(main())
""",
        0,
        "",
    ),
}


def stored_by(said: str) -> list[int]:
    return [int(line.split()[1]) for line in said.splitlines() if line.startswith("stored")]


async def assert_everything_is_there(path: Path, said: str) -> None:
    acknowledged = stored_by(said)
    assert acknowledged
    async with EventLog(path) as log:
        stored = indexes(await all_of((await log.session("s")).read()))
        assert set(acknowledged) <= set(stored)
        assert stored == list(range(len(stored)))
        await whole(log)


@pytest.mark.parametrize("name", ENDINGS)
async def test_a_process_ends_by_itself(tmp_path: Path, name: str) -> None:
    """C1: Within 5 s, with its own exit code; on stderr is what the program itself has to say, and nothing else."""
    code, expected, complaint = ENDINGS[name]
    with start_child(BEGIN + code, tmp_path / "agent.db") as process:
        try:
            said, complained = process.communicate(timeout=EXIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == expected, complained
    if complaint:
        assert complaint in complained.splitlines()[-1]
        assert complained.count("Traceback") == 1
    else:
        assert complained == ""
    await assert_everything_is_there(tmp_path / "agent.db", said)


INTERRUPTED = {
    "while it appends": """
    n = 0
    while True:
        say("stored", (await session.append("own.type", {})).index)
""",
    "while many append": """
    async def work():
        while True:
            say("stored", (await session.append("own.type", {})).index)
    await asyncio.gather(*[work() for _ in range(100)])
""",
    "while it waits for room": """
    say("stored", 1)
    while True:
        await asyncio.gather(*[session.append("own.type", {}) for _ in range(12_000)])
""",
    "while it follows a tail": """
    async for event in session.tail():
        say("stored", event.index)
""",
    "while it follows another process": """
    async with EventLog(path, read_only=True) as reader:
        async for event in reader.tail():
            say("stored", event.index)
""",
    "while it does nothing": """
    say("stored", 1)
    await asyncio.Event().wait()
""",
}


@pytest.mark.parametrize("closes", [True, False])
@pytest.mark.parametrize("name", INTERRUPTED)
async def test_an_interrupted_process_ends_by_itself(tmp_path: Path, name: str, closes: bool) -> None:
    """C1: SIGINT while it is busy: it ends within 5 s as Python programs do, and what was acknowledged is there."""
    body = INTERRUPTED[name]
    if closes:
        body = "    async with log:\n" + "\n".join(f"    {line}" for line in body.splitlines())
    code = f"async def main():\n    log, session = await begin()\n{body}\nasyncio.run(main())\n"
    with start_child(BEGIN + code, tmp_path / "agent.db") as process:
        said = [line_of(process) for _ in range(21)]
        process.send_signal(signal.SIGINT)
        try:
            rest, complained = process.communicate(timeout=EXIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert process.returncode == -signal.SIGINT, complained
    assert complained.splitlines()[-1] == "KeyboardInterrupt"
    assert "never retrieved" not in complained
    assert "was destroyed" not in complained
    await assert_everything_is_there(tmp_path / "agent.db", "\n".join(said) + "\n" + rest)


async def test_an_interruption_of_the_closing_itself_ends_the_process(tmp_path: Path) -> None:
    """Two signals: the second one comes while the log settles what was appended."""
    code = """
async def main():
    log, session = await begin()
    async with log:
        for n in range(8_000):
            asyncio.ensure_future(session.append("own.type", {"v": "x" * 2_000}))
        await asyncio.sleep(0)
        os.kill(os.getpid(), signal.SIGINT)
        asyncio.get_running_loop().call_later(0.02, os.kill, os.getpid(), signal.SIGINT)
        await asyncio.Event().wait()
asyncio.run(main())
"""
    with start_child(BEGIN + code, tmp_path / "agent.db") as process:
        said, complained = process.communicate(timeout=EXIT_S * 2)
    assert process.returncode in (1, -signal.SIGINT), complained
    await assert_everything_is_there(tmp_path / "agent.db", said)
