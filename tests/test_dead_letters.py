"""Dead letters: looked at without a change, retried with six new attempts, discarded for a reason."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import pytest

from eventlog.durable import Reject
from eventlog.durable.dead_letters import DeadLetters, parse_event_id
from eventlog.errors import InvalidName
from eventlog.events import NewEvent
from eventlog.log import EventLog
from eventlog.store.buried import RETRIES_PER_COMMIT, Filter, Retried, retry_chunk
from eventlog.store.deliveries import Deliveries
from eventlog.store.extensions import Extensions
from tests import victims
from tests.extension_kit import DAY_S, Bench, Recorder, bench, hang, installation, start
from tests.log_kit import whole

NO = Reject("no")


async def bury(it: Bench, *sessions: str) -> list[str]:
    """Let a turn of each session be rejected; the ids of the events."""
    ids = [(await it.turn(session_id, "t1")).id for session_id in sessions]
    await it.worker.idle()
    assert len(it.letters) >= len(sessions)
    return ids


async def test_r35_dead_letters_are_listed_by_extension_and_reason(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.install("one", handler=Recorder(always=NO))
        await it.install("two", handler=Recorder(always=NO))
        first, second = await bury(it, "a", "b")
        assert [each.event_id for each in await it.dead_letters.list("one")] == [first, second]
        assert len(await it.dead_letters.list()) == 4
        assert len(await it.dead_letters.list(reason="rejected", limit=3)) == 3
        assert await it.dead_letters.list("test.two", "exhausted") == []
        with pytest.raises(InvalidName, match="is not installed"):
            await it.dead_letters.list("three")


async def test_looking_changes_nothing_and_works_on_a_read_only_log(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.install(handler=Recorder(ValueError("first"), NO))
        event_id = (await it.turn("a", "t1")).id
        await it.worker.idle()
        await it.pass_time(6)
        async with EventLog(it.log.path, read_only=True) as reader:
            before = await reader.store.data_version()
            (listed,) = await DeadLetters(reader).list()
            letter = await DeadLetters(reader).get(event_id, "acme")
            assert await DeadLetters(reader).get("00000000:999", "acme") is None
            assert await reader.store.data_version() == before
    assert letter is not None
    assert (listed.failures, letter.reason, letter.session_id) == ((), "rejected", "a")
    assert [(each.number, each.outcome, each.error) for each in letter.failures] == [
        (1, "failed", "ValueError: first"),
        (2, "rejected", "Reject: no"),
    ]
    assert "Traceback" in str(letter.failures[0].traceback)


async def test_a_retry_gives_six_new_attempts_whose_numbers_go_on(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder(NO, always=ValueError("still not"))
        await it.install(handler=handler)
        (event_id,) = await bury(it, "a")
        assert (await it.dead_letters.retry(event_id, "acme")).retried == 1
        await it.worker.idle()
        for _ in range(5):
            await it.pass_time(1_200)
        letter = await it.dead_letters.get(event_id, "acme")
    assert letter is not None
    assert (letter.reason, letter.attempts) == ("exhausted", 7)
    assert [each.number for each in letter.failures] == [1, 2, 3, 4, 5, 6, 7]
    assert {each.event_id for each in handler.events} == {event_id}
    assert len({context.request_id for context in handler.contexts}) == 7


async def test_a_retried_letter_waits_for_the_running_call_of_its_lane(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        handler = Recorder(NO, hang)
        await it.install(handler=handler)
        await it.turn("a", "t1")
        await it.turn("a", "t2")
        while len(handler.events) < 2:
            await it.worker.run_once()
        assert (await it.dead_letters.retry()).retried == 1
        await it.worker.run_once()
        await it.worker.run_once()
        assert handler.turns == ["t1", "t2"]
        await it.pass_time(30)  # the running call times out, and its retry is due behind the older event
    assert handler.turns == ["t1", "t2", "t1"]


async def test_a_retry_is_refused_without_grant_or_while_disabled(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.install(handler=Recorder(always=NO))
        await bury(it, "a")
        await it.log.store.write(lambda c: c.execute("DELETE FROM extension_grant").rowcount)
        assert (await it.dead_letters.retry()).refused == {"not granted": 1}
        disabled = "UPDATE extension SET state = 'disabled', stopped_at = 0"
        await it.log.store.write(lambda c: c.execute(disabled).rowcount)
        assert (await it.dead_letters.retry()).refused == {"not enabled": 1}
        assert len(await it.dead_letters.list()) == 1


@pytest.mark.parametrize(("age_s", "refused"), [(7 * DAY_S - 1, {}), (7 * DAY_S, {"too old": 1})])
async def test_a_retry_is_refused_once_the_event_is_seven_days_old(
    tmp_path: Path, age_s: int, refused: dict[str, int]
) -> None:
    async with bench(tmp_path) as it:
        await it.install(handler=Recorder(NO))
        await bury(it, "a")
        await it.pass_time(age_s)
        retried = await it.dead_letters.retry()
        assert (retried.refused, retried.retried) == (refused, 1 - len(refused))


async def test_a_retry_stops_when_the_queue_is_full_and_says_so(tmp_path: Path) -> None:
    async with bench(tmp_path, capacity=3) as it:
        handler = Recorder(always=NO)
        await it.install(handler=handler)
        await bury(it, *"abcde")
        await it.extensions.pause("acme")
        retried = await it.dead_letters.retry(extension="acme", reason="rejected")
        assert (retried.retried, retried.refused, retried.full) == (3, {}, ("acme",))
        assert [each.session_id for each in await it.live()] == ["a", "b", "c"]
        assert {each.session_id for each in await it.dead_letters.list()} == {"d", "e"}
        again = await it.dead_letters.retry()
        assert (again.retried, again.refused, again.full) == (0, {}, ("acme",))


async def test_a_retry_looks_at_no_letter_behind_a_full_queue_and_goes_on_with_other_extensions(
    tmp_path: Path,
) -> None:
    """Of a hundred in a commit too, and though there are letters behind that would be refused for their own reason."""
    async with bench(tmp_path, capacity=RETRIES_PER_COMMIT + 1) as it:
        await it.install("full", handler=Recorder(always=NO))
        await it.install("other", handler=Recorder(always=NO))
        await it.extensions.grant("other", "q")
        await it.extensions.grant("full", "q")
        await bury(it, *(f"s{number}" for number in range(RETRIES_PER_COMMIT + 2)))
        await start(it.log, "of q", project="q")
        await bury(it, "of q")
        await it.log.store.write(lambda c: c.execute("DELETE FROM extension_grant WHERE project = 'q'").rowcount)
        await it.extensions.pause("full")
        await it.extensions.pause("other")
        await it.dead_letters.discard((await it.dead_letters.list("other"))[0].event_id, "other", "makes room")
        retried = await it.dead_letters.retry()
        assert (retried.retried, retried.refused, retried.full) == (
            2 * (RETRIES_PER_COMMIT + 1),
            {"not granted": 1},  # of the other one
            ("full",),
        )


async def test_a_retry_takes_the_last_place_of_a_queue_that_is_longer_than_its_capacity(tmp_path: Path) -> None:
    """The capacity was lowered under a delivery that has a later place: what is live is counted then, this one not."""
    async with bench(tmp_path, capacity=4) as it:
        await it.install(handler=Recorder(always=NO))
        await bury(it, "a")
        await it.extensions.pause("acme")
        for session_id in "bcd":
            await it.turn(session_id, "t1")
        await it.log.forget("b", "c")
        await it.log.store.write(lambda c: c.execute("UPDATE policy SET capacity = 2").rowcount)
        assert await it.dead_letters.retry() == Retried(1, {})
        assert [each.session_id for each in await it.live()] == ["a", "d"]
        await whole(it.log)


async def test_a_retry_of_all_goes_in_chunks_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    count = 2 * RETRIES_PER_COMMIT + 1
    async with bench(tmp_path) as it:
        await it.install(handler=Recorder(always=NO))
        await bury(it, *(f"s{number}" for number in range(count)))
        await it.extensions.pause("acme")
        # A kill comes behind the first chunk.
        (acme,) = await it.extensions.all()
        chunk = await it.log.store.write(retry_chunk, Filter(acme.key), 0, it.clock.now_us())
        assert (chunk.retried, chunk.goes_on_behind is not None) == (RETRIES_PER_COMMIT, True)
    async with EventLog(tmp_path / "agent.db", clock=it.clock) as log:
        assert (await DeadLetters(log).retry()).retried == count - RETRIES_PER_COMMIT
        assert await DeadLetters(log).list() == []


async def test_a_discarded_letter_is_gone_with_its_attempts_and_the_reason_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with bench(tmp_path) as it:
        await it.install("one", handler=Recorder(always=NO))
        await it.install("two", handler=Recorder(always=NO))
        (event_id,) = await bury(it, "a")
        with pytest.raises(InvalidName, match="say why"):
            await it.dead_letters.discard(event_id, "one", " ")
        assert await it.dead_letters.discard(event_id, "one", "the customer has left")
        assert not await it.dead_letters.discard(event_id, "one", "again")
        assert [each.extension for each in await it.dead_letters.list()] == ["two"]
        left = await it.log.store.read(lambda c: c.execute("SELECT count(*) FROM attempt").fetchone())
    assert left == (1,)
    assert f'event {event_id} of extension "one" was discarded: the customer has left' in caplog.text


async def test_an_id_of_another_era_is_another_event(tmp_path: Path) -> None:
    async with bench(tmp_path) as it:
        await it.install(handler=Recorder(always=NO))
        (event_id,) = await bury(it, "a")
        position, era = parse_event_id(event_id)
        other = f"{era[::-1]}x:{position}"
        assert await it.dead_letters.get(other, "acme") is None
        assert not await it.dead_letters.discard(other, "acme", "wrong one")
        assert (await it.dead_letters.retry(other)).retried == 0


@pytest.mark.parametrize("text", ["", "57", ":57", "abc:", "abc:x", "abc:-1", "abc:" + "9" * 19, "abc:²"])
async def test_what_is_no_event_id_is_refused(text: str) -> None:
    with pytest.raises(InvalidName, match="<era>:<position>"):
        parse_event_id(text)


async def bury_thousands(path: Path, count: int) -> None:
    """Let so many turns be dead letters, of ten conversations."""
    async with EventLog(path) as log:
        await log.store.write(lambda c: c.execute("UPDATE policy SET capacity = 100000"))
        await Extensions(log.store).install(installation("acme"), ["p"])
        for number in range(10):
            session = await log.start_session(f"s{number}", project="p")
            await session.append_many(
                [NewEvent("turn.completed", {}, turn_id=f"t{turn}") for turn in range(count // 10)]
            )
        buried = "UPDATE delivery SET state = 'dead', reason = 'exhausted', attempts = 6, died_at = recorded_at"
        assert await log.store.write(lambda c: c.execute(buried).rowcount) == count


async def retry_all(path: Path) -> None:
    async with EventLog(path) as log:
        await DeadLetters(log).retry()


async def test_of_ten_thousand_letters_a_kill_half_way_leaves_each_dead_or_due_and_the_rest_can_be_retried(
    tmp_path: Path,
) -> None:
    path = tmp_path / "agent.db"
    await bury_thousands(path, 10_000)
    async with EventLog(path, read_only=True) as reader:
        process = victims.start(retry_all, path)
        while not (due := (await Extensions(reader.store).find("acme")).live):
            await asyncio.sleep(0)
        process.kill()
        assert await victims.ended(process) == -signal.SIGKILL
    async with EventLog(path) as log:
        found = await Extensions(log.store).find("acme")
        assert due <= found.live < 10_000, "it was killed too late"
        assert (found.live % RETRIES_PER_COMMIT, found.live + found.dead) == (0, 10_000)
        last_due = max(each.position for each in await Deliveries(log.store).live())
        assert all(each.position > last_due for each in await DeadLetters(log).list())
        assert await DeadLetters(log).retry() == Retried(found.dead, {})
        assert (await log.check()).ok
