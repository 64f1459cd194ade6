"""What operators do to extensions of a running server: exactly what each command clears, with calls in flight too."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from eventlog.clock import SystemClock
from eventlog.control import Retried, Steered, ask, steer
from eventlog.durable import HookCallContext, Reject
from eventlog.errors import InvalidName, ManifestError
from eventlog.log import EventLog
from eventlog.runtime import Runtime
from eventlog.store.extensions import Cleared
from tests.extension_kit import JOB, TURN, Recorder, hang
from tests.steering_kit import Served, extension, serving

NO = Reject("no")


async def in_flight(recorder: Recorder, calls: int) -> None:
    """Return when so many calls have begun."""
    while len(recorder.events) < calls:
        await asyncio.sleep(0)


async def attempts_left(it: Served) -> int:
    """Rows of failed attempts."""
    (count,) = await it.log.store.read(lambda c: c.execute("SELECT count(*) FROM attempt").fetchone())
    return int(count)


class Gate:
    """What a handler does until the test lets it go on."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()

    async def __call__(self, event: Any, context: HookCallContext) -> None:
        await self.opened.wait()


class Stubborn:
    """A handler that goes on when it is aborted and cancelled, until it is told to return."""

    def __init__(self) -> None:
        self.turns: list[str] = []
        self.reasons: list[str | None] = []
        self.may_return = asyncio.Event()
        self.returned = asyncio.Event()

    async def __call__(self, event: Any, context: HookCallContext) -> None:
        self.turns.append(event.turn_id)
        while not self.may_return.is_set():
            try:
                await self.may_return.wait()
            except asyncio.CancelledError:
                self.reasons.append(context.signal.reason)
                if len(self.reasons) > 2:  # the test has failed, and is to end
                    raise
        self.returned.set()


# ------------------------------------------------------------------------------------------------------------ revoke


async def test_r45_a_revoked_project_takes_its_rows_and_no_others(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        await it.install(extension(tmp_path / "one", "acme", Recorder(always=NO)), "p", "q")
        await it.install(extension(tmp_path / "two", "other", Recorder(always=NO)), "p")
        for project in ("p", "q"):
            await it.turn(f"dead-{project}", "t1", project)
        await it.runtime.settled()
        await it.do("pause", name="acme")
        await it.do("pause", name="other")
        for project in ("p", "q"):
            await it.turn(f"live-{project}", "t1", project)
            await it.job(f"live-{project}", f"j-{project}", project)
        before = await it.rows()
        steered = await it.do("revoke", name="acme", project="p")
        assert steered.cleared == Cleared(live=2, dead=1)
        assert (steered.live, steered.dead) == (2, 1)
        assert {grant.project for grant in steered.grants} == {"q"}
        assert await it.rows() == [row for row in before if row[:2] != ("acme", "p")]
        assert len(before) - len(await it.rows()) == 3
        assert await attempts_left(it) == 2  # of acme in q, and of other in p


async def test_r45_a_call_in_flight_of_a_revoked_project_is_aborted_and_the_calls_beside_it_go_on(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as it:
        gate = Gate()
        handler = Recorder(always=gate)
        await it.install(extension(tmp_path, handler=handler), "p", "q")
        await it.turn("a", "t1", "p")
        await it.turn("b", "t1", "q")
        await in_flight(handler, 2)
        assert (await it.do("revoke", name="acme", project="p")).cleared == Cleared(live=1, dead=0)
        await it.turn("a", "t2", "p")
        gate.opened.set()
        await it.runtime.settled()
        reasons = {context.project_id: context.signal.reason for context in handler.contexts}
        assert reasons == {"p": "revoked", "q": None}
        assert len(handler.events) == 2
        assert await it.rows() == []


async def test_r45_one_capability_is_revoked_alone(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        gate = Gate()
        handler = Recorder(always=gate)
        await it.install(extension(tmp_path, handler=handler), "p")
        await it.turn("a", "t1")
        await it.job("b", "j1")
        await in_flight(handler, 2)
        await it.job("b", "j2")
        steered = await it.do("revoke", name="acme", project="p", capability="jobs.read")
        assert steered.cleared == Cleared(live=2, dead=0)
        assert [grant.capability for grant in steered.grants] == ["conversations.turns.read"]
        gate.opened.set()
        await it.runtime.settled()
        calls = zip(handler.events, handler.contexts, strict=True)
        reasons = {event.type: context.signal.reason for event, context in calls}
        assert reasons == {TURN: None, JOB: "revoked"}
        assert len(handler.events) == 2
        assert await it.rows() == []


async def test_what_was_not_granted_is_revoked_without_effect_and_what_is_no_capability_is_refused(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as it:
        gate = Gate()
        await it.install(extension(tmp_path, handler=Recorder(always=gate)), "p")
        await it.turn("a", "t1")
        before = await it.rows()
        assert (await it.do("revoke", name="acme", project="q")).cleared == Cleared(0, 0)
        for command in ("grant", "revoke"):
            with pytest.raises(InvalidName) as refused:
                await it.do(command, name="acme", project="p", capability="jobs.write")
            assert (refused.value.what, refused.value.value) == ("capability", "jobs.write")
        assert [row[:3] for row in await it.rows()] == [row[:3] for row in before]
        gate.opened.set()


async def test_r48_a_new_grant_starts_at_the_head(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        handler = Recorder()
        await it.install(extension(tmp_path, handler=handler))
        await it.turn("a", "before the grant")
        await it.do("grant", name="acme", project="p")
        await it.turn("a", "granted")
        await it.runtime.settled()
        await it.do("revoke", name="acme", project="p")
        await it.turn("a", "revoked")
        await it.do("grant", name="test.acme", project="p")
        await it.runtime.settled()
        await it.turn("a", "granted again")
        await it.runtime.settled()
    assert handler.turns == ["granted", "granted again"]


# --------------------------------------------------------------------------------------------- disable and uninstall


@pytest.mark.parametrize(("command", "state"), [("disable", "disabled"), ("uninstall", "uninstalled")])
async def test_r46_r47_a_stopped_extension_has_no_rows_and_its_calls_are_aborted(
    tmp_path: Path, command: str, state: str
) -> None:
    """R46, R47: live and dead rows and their attempts go in one commit; those of others stay."""
    async with serving(tmp_path) as it:
        handler, gate = Recorder(NO, hang), Gate()
        await it.install(extension(tmp_path / "one", "acme", handler), "p", "q")
        await it.install(extension(tmp_path / "two", "other", Recorder(always=gate)), "p")
        await it.turn("dead", "t1")
        await in_flight(handler, 1)
        await it.turn("a", "t1")
        await it.turn("a", "t2")
        await in_flight(handler, 2)
        others = [row for row in await it.rows() if row[0] == "other"]
        steered = await it.do(command, name="acme")
        assert (steered.state, steered.cleared) == (state, Cleared(live=2, dead=1))
        assert (steered.live, steered.dead) == (0, 0)
        assert handler.contexts[1].signal.reason == state
        assert await it.rows() == others
        assert await attempts_left(it) == 0
        assert not it.runtime.extensions.is_active("acme")
        await it.turn("a", "t3")
        assert [row for row in await it.rows() if row[0] == "acme"] == []
        assert len(handler.events) == 2
        gate.opened.set()


@pytest.mark.parametrize("command", ["disable", "uninstall"])
async def test_r48_what_was_missed_is_not_made_up_for(tmp_path: Path, command: str) -> None:
    async with serving(tmp_path) as it:
        handler = Recorder()
        folder = extension(tmp_path, handler=handler)
        await it.install(folder, "p")
        await it.do(command, name="acme")
        await it.turn("a", "missed")
        if command == "disable":
            assert (await it.do("enable", name="acme")).state == "enabled"
        else:
            assert (await it.install(folder)).grants == ()
            await it.do("grant", name="acme", project="p")
        await it.turn("a", "new")
        await it.runtime.settled()
    assert handler.turns == ["new"]


@pytest.mark.parametrize("again", ["enable", "install"])
async def test_an_ack_of_an_older_generation_is_ignored(tmp_path: Path, again: str) -> None:
    """The old call keeps its lane until it ends; what its return settles is nothing."""
    async with serving(tmp_path) as it:
        old, new = Stubborn(), Recorder()
        folder = extension(tmp_path, handler=old)
        await it.install(folder, "p")
        await it.turn("a", "t1")
        while not old.turns:
            await asyncio.sleep(0)
        assert (await it.do("disable" if again == "enable" else "uninstall", name="acme")).cleared == Cleared(1, 0)
        assert old.reasons[0] == ("disabled" if again == "enable" else "uninstalled")
        extension(tmp_path, handler=new)
        await (it.do("enable", name="acme") if again == "enable" else it.install(folder, "p"))
        await it.turn("a", "t2")
        await it.turn("b", "t1")
        while not new.events:
            await asyncio.sleep(0)
        waiting = [row[3] for row in await it.rows()]
        old.may_return.set()
        await old.returned.wait()
        await it.runtime.settled()
        assert new.turns == ["t1", "t2"]  # of b at once, of a when the old call had ended
        assert "pending" in waiting
        assert await it.rows() == []
        generation = (await it.runtime.extensions.list())[0].generation
        assert generation == 2


async def test_r47_what_was_uninstalled_is_not_installed_again_by_a_restart(tmp_path: Path) -> None:
    agent = tmp_path / "home"
    folder = extension(agent / "agent" / "extensions", handler=Recorder())
    async with EventLog(tmp_path / "agent.db") as log:
        async with Runtime(log, agent_dir=agent, grants={"acme": ["p"]}) as runtime:
            assert runtime.extensions.is_active("acme")
            await ask(log.path, "extensions.uninstall", name="acme")
        async with Runtime(log, agent_dir=agent, grants={"acme": ["p"]}) as runtime:
            assert not runtime.extensions.is_active("acme")
            installed = await ask(log.path, "extensions.install", path=str(folder))
            assert (installed["state"], installed["grants"]) == ("enabled", [])
            assert runtime.extensions.is_active("acme")


async def test_to_disable_twice_clears_nothing_more(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        await it.install(extension(tmp_path, handler=Recorder(hang)), "p")
        await it.turn("a", "t1")
        assert (await it.do("disable", name="acme")).cleared == Cleared(1, 0)
        assert (await it.do("disable", name="acme")).cleared == Cleared(0, 0)
        assert (await it.runtime.extensions.list())[0].generation == 2


async def test_what_an_operator_says_while_another_ones_word_is_carried_out_comes_after_it(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        old, new = Stubborn(), Recorder()
        await it.install(extension(tmp_path, handler=old), "p")
        await it.turn("a", "t1")
        while not old.turns:
            await asyncio.sleep(0)
        extension(tmp_path, handler=new)
        disabled = asyncio.create_task(it.do("disable", name="acme"))
        while not old.reasons:  # it waits for a handler that does not end
            await asyncio.sleep(0)
        enabled = asyncio.create_task(it.do("enable", name="acme"))
        for _ in range(2):
            assert (await it.do("resume", name="acme")).state == "disabled"
        old.may_return.set()
        assert ((await disabled).state, (await enabled).state) == ("disabled", "enabled")
        assert it.runtime.extensions.is_active("acme")
        await it.turn("a", "t2")
        await it.runtime.settled()
    assert new.turns == ["t2"]


# --------------------------------------------------------------------------------------------------- pause and resume


async def test_pause_keeps_the_queue_and_burns_no_attempts(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        handler = Recorder(ValueError("once"))
        await it.install(extension(tmp_path, handler=handler), "p")
        await it.turn("a", "t1")
        await it.runtime.settled()
        assert (await it.do("pause", name="acme")).paused
        await it.turn("b", "t1")
        await it.pass_time(86_400)
        assert [(row.state, row.attempts) for row in await it.live()] == [("pending", 1), ("pending", 0)]
        steered = await it.do("resume", name="acme")
        assert (steered.paused, steered.live) == (False, 2)
        await it.runtime.settled()
        assert await it.rows() == []
    assert handler.turns == ["t1", "t1", "t1"]


async def test_a_call_that_runs_when_its_extension_is_paused_ends_as_any_other(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        handler = Stubborn()
        await it.install(extension(tmp_path, handler=handler), "p")
        await it.turn("a", "t1")
        while not handler.turns:
            await asyncio.sleep(0)
        assert (await it.do("pause", name="acme")).cleared is None
        await it.turn("a", "t2")
        handler.may_return.set()
        await it.runtime.settled()
        assert handler.reasons == []
        assert [(row.state, row.attempts) for row in await it.live()] == [("pending", 0)]


# ------------------------------------------------------------------------------------------------------------ install


async def test_what_is_installed_on_a_running_server_gets_what_is_recorded_from_then_on(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        handler = Recorder()
        await it.turn("a", "before")
        steered = await it.install(extension(tmp_path, handler=handler), "p")
        assert (steered.state, steered.inactive, {grant.project for grant in steered.grants}) == (
            "enabled",
            None,
            {"p"},
        )
        await it.turn("a", "after")
        await it.runtime.settled()
    assert handler.turns == ["after"]


async def test_an_extension_is_brought_up_to_date_without_losing_what_it_is_owed(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        old, new = Recorder(ValueError("old")), Recorder()
        folder = extension(tmp_path, handler=old)
        await it.install(folder, "p")
        await it.turn("a", "t1")
        await it.runtime.settled()
        extension(tmp_path, handler=new, version="1.1.0")
        steered = await it.install(folder, "q")
        assert (steered.version, steered.live) == ("1.1.0", 1)
        assert {grant.project for grant in steered.grants} == {"p", "q"}
        await it.turn("b", "t2", "q")
        await it.runtime.settled()
        await it.pass_time(10)
    assert (old.turns, new.turns) == (["t1"], ["t2", "t1"])


async def test_a_disabled_extension_that_is_brought_up_to_date_stays_disabled(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        handler = Recorder()
        folder = extension(tmp_path, handler=handler)
        await it.install(folder, "p")
        await it.do("disable", name="acme")
        assert (await it.install(folder)).state == "disabled"
        assert not it.runtime.extensions.is_active("acme")


async def test_an_extension_that_does_not_come_to_life_is_installed_and_says_why_and_its_deliveries_wait(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path) as it:
        handler = Recorder()
        folder = extension(tmp_path, handler=handler)
        main = (folder / "main.py").read_text()
        (folder / "main.py").write_text("1 / 0")
        assert "ZeroDivisionError" in str((await it.install(folder, "p")).inactive)
        await it.turn("a", "t1")
        assert len(await it.live()) == 1
        (folder / "main.py").write_text(main)
        assert (await it.install(folder)).inactive is None
        await it.runtime.settled()
    assert handler.turns == ["t1"]


async def test_a_manifest_with_faults_changes_nothing_and_is_told_with_all_of_them(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        folder = extension(tmp_path, handler=Recorder())
        await it.install(folder, "p")
        await it.do("disable", name="acme")
        extension(tmp_path, version="one", publisher="NO")
        for command, arguments in (("install", {"path": str(folder)}), ("enable", {"name": "acme"})):
            with pytest.raises(ManifestError) as refused:
                await it.do(command, **arguments)
            assert {finding.path for finding in refused.value.findings} == {"/publisher", "/version"}
        (installed,) = await it.runtime.extensions.list()
        assert (installed.state, installed.version) == ("disabled", "1.0.0")


async def test_an_extension_that_is_not_known_is_named_in_the_error(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        for command in ("uninstall", "enable", "disable", "pause", "resume"):
            with pytest.raises(InvalidName) as refused:
                await it.do(command, name="nobody")
            assert (refused.value.what, refused.value.value) == ("extension", "nobody")


# ------------------------------------------------------------------------------------------------------- dead letters


async def test_a_dead_letter_is_retried_and_another_discarded_on_the_running_server(tmp_path: Path) -> None:
    async with serving(tmp_path) as it:
        handler = Recorder(NO, NO, NO)
        await it.install(extension(tmp_path, handler=handler), "p")
        events = [await it.turn(session, "t1") for session in "abc"]
        await it.runtime.settled()
        path = it.log.path
        first = {"event_id": events[0].id, "extension": "acme"}
        assert msgspec.convert(await ask(path, "dead.retry", **first), Retried) == Retried(1, {})
        await it.runtime.settled()
        assert len(handler.events) == 4
        assert await ask(path, "dead.discard", event_id=events[1].id, extension="acme", reason="left") is True
        assert await ask(path, "dead.discard", event_id=events[1].id, extension="acme", reason="left") is False
        assert [letter.event_id for letter in await it.runtime.dead_letters.list()] == [events[2].id]
        await it.do("revoke", name="acme", project="p")
        assert await ask(path, "dead.retry") == {"retried": 0, "refused": {}, "full": []}


# ------------------------------------------------------------------------------------------------------------ at rest


async def test_at_rest_only_the_file_changes_and_the_next_server_follows_it(tmp_path: Path) -> None:
    handler = Recorder(NO)
    path, folder = tmp_path / "agent.db", extension(tmp_path, handler=handler)
    async with EventLog(path):
        pass
    installed = msgspec.convert(await steer(path, "extensions.install", path=str(folder), grants=["p"]), Steered)
    assert (installed.state, installed.inactive, len(installed.grants)) == ("enabled", None, 2)
    async with serving(tmp_path, SystemClock()) as it:
        event = await it.turn("a", "t1")  # to a folder that is not one of an agent's
        await it.runtime.settled()
        assert handler.turns == ["t1"]
    assert await steer(path, "dead.retry", event_id=event.id) == {"retried": 1, "refused": {}, "full": []}
    async with EventLog(path) as log:
        await log.append("a", "turn.completed", {}, turn_id="t2")
    disabled = msgspec.convert(await steer(path, "extensions.disable", name="acme"), Steered)
    assert disabled.cleared == Cleared(live=2, dead=0)
    async with serving(tmp_path) as it:
        assert await it.rows() == []
        assert not it.runtime.extensions.is_active("acme")
    assert handler.turns == ["t1"]
