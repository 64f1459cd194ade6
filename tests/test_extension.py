"""How an extension comes to life and to rest, with real files and a clock that stands still."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from eventlog.durable import (
    AbortController,
    Disposable,
    ExtensionContext,
    HookCallback,
    HookCallContext,
    HookEnvelope,
    JobCompletedEnvelope,
    LoadedExtension,
    TurnCompletedEnvelope,
    activate_extension,
    load_manifest,
)
from eventlog.durable.loading import load_code
from eventlog.errors import ActivationError
from eventlog.testing import ManualClock

TURN, JOB = "conversation.turn.completed", "background.job.completed"


class Reader:
    """Knows one thing by its reference."""

    async def get(self, reference: object, /) -> str:
        return f"read {reference}"


class Notes:
    """The storage of the extension under test, which it also uses to tell the test what it does."""

    def __init__(self) -> None:
        self.trace: list[Any] = []
        self.waiting, self.go_on = asyncio.Event(), asyncio.Event()
        self.values: dict[str, Any] = {}

    async def get(self, key: str, default: Any = None) -> Any:
        return self.values.get(key, default)

    async def put(self, key: str, value: Any) -> None:
        self.values[key] = value

    async def delete(self, key: str) -> None:
        self.values.pop(key, None)

    async def list(self, prefix: str = "") -> list[str]:
        return sorted(key for key in self.values if key.startswith(prefix))


class Bench:
    """A folder for one extension, and what a host gives it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clock = ManualClock()
        self.notes = Notes()
        self.active: list[LoadedExtension] = []

    def write(self, source: str, **hooks: str) -> None:
        """Write `main.py`, and a manifest that declares each handler for its event; by default on_turn."""
        declared = hooks or {"on_turn": TURN}
        manifest = {
            "publisher": "acme-labs",
            "name": "billing",
            "version": "1.0.0",
            "engines": {"api": "1"},
            "main": "main.py",
            "permissions": [
                {"capability": name, "scope": "project"} for name in ("conversations.turns.read", "jobs.read")
            ],
            "hooks": [{"event": event, "handler": handler} for handler, event in declared.items() if event],
        }
        self.folder.mkdir(exist_ok=True)
        (self.folder / "extension.json").write_text(json.dumps(manifest))
        (self.folder / "main.py").write_text(dedent(source))

    async def activate(self) -> LoadedExtension:
        loaded = await activate_extension(
            self.folder, load_manifest(self.folder), clock=self.clock, turns=Reader(), jobs=Reader(), storage=self.notes
        )
        self.active.append(loaded)
        return loaded

    async def refuse(self) -> str:
        """Activate in vain, and say why."""
        with pytest.raises(ActivationError) as caught:
            await self.activate()
        assert caught.value.extension == "acme"
        return caught.value.why


@pytest.fixture
async def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Bench]:
    """No test leaves a module behind, a cache of one, or a change of where modules are found."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    before = list(sys.path), list(sys.meta_path), sys.dont_write_bytecode
    bench = Bench(tmp_path / "acme")
    yield bench
    for loaded in bench.active:
        await loaded.deactivate()
    assert own_modules() == []
    assert (list(sys.path), list(sys.meta_path), sys.dont_write_bytecode) == before
    assert list(tmp_path.rglob("__pycache__")) == []


def own_modules() -> list[str]:
    return [name for name in sys.modules if name.startswith("_eventlog_extension_acme")]


# -------------------------------------------------------------------------------------------------------- registering


async def test_r15_register_returns_a_disposable_and_binds_the_callback_to_its_event(bench: Bench) -> None:
    """R18, R19: what activate registers under a declared name is what the host will call."""
    bench.write(
        """
        def on_turn(event, context): ...
        async def on_job(event, context): ...
        def activate(context):
            for handler, callback in (("on_turn", on_turn), ("on_job", on_job)):
                registration = context.hooks.register(handler, callback)
                context.storage.trace += [registration, callback]
                context.subscriptions.append(registration)
        """,
        on_turn=TURN,
        on_job=JOB,
    )
    loaded = await bench.activate()
    first, on_turn, second, on_job = bench.notes.trace
    assert isinstance(first, Disposable)
    assert isinstance(second, Disposable)
    assert loaded.handlers == {TURN: on_turn, JOB: on_job}
    assert (loaded.name, loaded.manifest.id) == ("acme", "acme-labs.billing")
    first.dispose()
    assert loaded.handlers == {JOB: on_job}
    await loaded.deactivate()
    assert loaded.handlers == {}


async def test_r16_a_call_context_has_signal_project_and_request_and_is_frozen() -> None:
    signal = AbortController().signal
    context = HookCallContext(signal=signal, project_id="p1", request_id="r1")
    assert [field.name for field in dataclasses.fields(context)] == ["signal", "project_id", "request_id"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.project_id = "p2"  # type: ignore[misc]


def test_r17_plain_and_coroutine_functions_of_either_event_are_handlers() -> None:
    """That this module passes the type checkers is the other half of the proof."""

    def plain(event: TurnCompletedEnvelope, context: HookCallContext) -> None: ...
    async def coroutine(event: JobCompletedEnvelope, context: HookCallContext) -> None: ...
    def of_both_with_a_result(event: HookEnvelope, context: HookCallContext) -> int:
        return 1

    callbacks: list[HookCallback] = [plain, coroutine, of_both_with_a_result]
    assert all(callable(callback) for callback in callbacks)


async def test_r49_the_context_exposes_these_names_and_no_other(bench: Bench) -> None:
    """R50 to R52: no streams, no lifecycle, no interception, no editing. R18: hooks is a member."""
    names = [field.name for field in dataclasses.fields(ExtensionContext)]
    assert names == ["extension_id", "hooks", "subscriptions", "turns", "jobs", "storage"]
    bench.write(
        """
        def activate(context):
            public = lambda thing: [name for name in dir(thing) if not name.startswith("_")]
            context.storage.trace += [public(context), public(context.hooks), context.extension_id]
            context.hooks.register("on_turn", print)
        """
    )
    await bench.activate()
    assert bench.notes.trace == [sorted(names), ["register"], "acme-labs.billing"]


async def test_the_context_hands_on_what_the_host_gave(bench: Bench) -> None:
    bench.write(
        """
        async def activate(context):
            context.hooks.register("on_turn", print)
            await context.storage.put("seen", [await context.turns.get("t"), await context.jobs.get("j")])
        """
    )
    await bench.activate()
    assert bench.notes.values == {"seen": ["read t", "read j"]}


@pytest.mark.parametrize(
    ("registering", "why"),
    [
        ("register('onTurn', print)", "declares no hook 'onTurn' (but: on_turn)"),
        ("register('sync', print)", "declares no hook 'sync'"),
        ("register('conversation.turn.completed', print)", "declares no hook"),
        ("register('message.appended', print)", "declares no hook"),
        ("register('on_turn', None)", "give a function"),
        ("register(['on_turn'], print)", "TypeError"),
    ],
)
async def test_r19_registering_what_is_not_declared_fails(bench: Bench, registering: str, why: str) -> None:
    """R49, R50: nor can a stream or a lifecycle event be registered for."""
    bench.write(f"def activate(context): context.hooks.{registering}")
    assert why in await bench.refuse()


async def test_r19_registering_less_than_declared_fails(bench: Bench) -> None:
    bench.write("def activate(context): context.hooks.register('on_turn', print)", on_turn=TURN, on_job=JOB)
    assert "did not register on_job" in await bench.refuse()


async def test_a_registration_that_was_disposed_of_does_not_count(bench: Bench) -> None:
    bench.write("def activate(context): context.hooks.register('on_turn', print).dispose()")
    assert "did not register on_turn" in await bench.refuse()


async def test_r21_a_bound_name_cannot_be_bound_again(bench: Bench) -> None:
    bench.write(
        """
        def activate(context):
            context.hooks.register("on_turn", print)
            context.hooks.register("on_turn", repr)
        """
    )
    assert "registered already" in await bench.refuse()


async def test_a_disposed_registration_leaves_its_name_free_and_the_later_one_alone(bench: Bench) -> None:
    bench.write(
        """
        def activate(context):
            first = context.hooks.register("on_turn", print)
            first.dispose()
            context.hooks.register("on_turn", breakpoint)
            first.dispose()
        """
    )
    assert (await bench.activate()).handlers == {TURN: breakpoint}


async def test_a_registration_can_be_disposed_of_while_the_extension_lives(bench: Bench) -> None:
    bench.write("def activate(context): context.subscriptions.append(context.hooks.register('on_turn', print))")
    loaded = await bench.activate()
    loaded._context.subscriptions[0].dispose()
    assert loaded.handlers == {}


# --------------------------------------------------------------------------------------------------------- the window

SUSPENDING = {
    "sleep(0)": "await asyncio.sleep(0)",
    "a future that a callback sets": """
        future = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_soon(future.set_result, None)
        await future""",
    "another task": "await asyncio.create_task(asyncio.sleep(0))",
    "a thread": "await asyncio.to_thread(int)",
    "a task group": """
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(0))""",
    "a bare yield": """
        class Once:
            def __await__(self):
                yield
        await Once()""",
}
NOT_SUSPENDING = {
    "a coroutine that returns": "await nothing()",
    "a future that is done": """
        future = asyncio.get_running_loop().create_future()
        future.set_result(None)
        await future""",
    "a free lock": "await asyncio.Lock().acquire()",
    "a timeout around": """
        async with asyncio.timeout(5):
            await nothing()""",
    "an empty task group": """
        async with asyncio.TaskGroup():
            await nothing()""",
    "a full queue": """
        queue = asyncio.Queue()
        await queue.put(1)
        await queue.get()""",
}
AWAITING = """
import asyncio
async def nothing(): ...
async def activate(context):
    context.storage.trace.append("begun")
    {}
    context.hooks.register("on_turn", print)
"""


@pytest.mark.parametrize("awaiting", SUSPENDING.values(), ids=SUSPENDING)
async def test_r20_the_window_closes_at_the_first_real_suspension(bench: Bench, awaiting: str) -> None:
    bench.write(AWAITING.format(dedent(awaiting).strip().replace("\n", "\n    ")))
    assert "comes too late" in await bench.refuse()
    assert bench.notes.trace == ["begun"]


@pytest.mark.parametrize("awaiting", NOT_SUSPENDING.values(), ids=NOT_SUSPENDING)
async def test_r20_an_await_that_does_not_suspend_leaves_the_window_open(bench: Bench, awaiting: str) -> None:
    bench.write(AWAITING.format(dedent(awaiting).strip().replace("\n", "\n    ")))
    assert set((await bench.activate()).handlers) == {TURN}


async def test_r20_a_busy_loop_does_not_keep_the_window_open(bench: Bench) -> None:
    """Callbacks that were queued before, between and after make no difference."""
    bench.write(AWAITING.format("await asyncio.sleep(0)"))
    loop = asyncio.get_running_loop()

    def again(left: int) -> None:
        if left:
            loop.call_soon(again, left - 1)

    for _ in range(5):
        again(20)
    assert "comes too late" in await bench.refuse()


@pytest.mark.parametrize("function", ["def", "async def"])
async def test_r20_the_window_closes_when_activate_returns(bench: Bench, function: str) -> None:
    bench.write(
        f"""
        {function} activate(context):
            registration = context.hooks.register("on_turn", print)
            context.storage.trace.append((registration, context.hooks))
        """
    )
    loaded = await bench.activate()
    registration, hooks = bench.notes.trace[0]
    registration.dispose()
    with pytest.raises(ActivationError, match="comes too late"):
        hooks.register("on_turn", print)
    assert loaded.handlers == {}


async def test_activate_may_go_on_working_after_it_registered(bench: Bench) -> None:
    """Its task is an ordinary one, so that timeouts and task groups work inside of it."""
    bench.write(
        """
        import asyncio
        async def activate(context):
            context.hooks.register("on_turn", print)
            async with asyncio.TaskGroup() as group:
                children = [group.create_task(asyncio.sleep(0, number)) for number in range(3)]
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                context.storage.trace.append([child.result() for child in children])
        """
    )
    assert set((await bench.activate()).handlers) == {TURN}
    assert bench.notes.trace == [[0, 1, 2]]


async def test_a_plain_activate_may_return_something_to_wait_for(bench: Bench) -> None:
    bench.write(
        """
        import asyncio
        def activate(context):
            context.hooks.register("on_turn", print)
            return asyncio.sleep(0)
        """
    )
    assert set((await bench.activate()).handlers) == {TURN}


# ---------------------------------------------------------------------------------------------------------- its limits

WAITING = """
import asyncio
async def activate(context):
    context.subscriptions.append(context.hooks.register("on_turn", print))
    context.storage.waiting.set()
    try:
        await context.storage.go_on.wait()
    finally:
        context.storage.trace.append("ended")
"""


async def test_activate_may_take_just_under_10_seconds(bench: Bench) -> None:
    bench.write(WAITING)
    activation = asyncio.create_task(bench.activate())
    await bench.notes.waiting.wait()
    bench.clock.advance(9.999)
    bench.notes.go_on.set()
    assert set((await activation).handlers) == {TURN}


async def test_activate_is_ended_at_10_seconds_and_everything_is_disposed_of(bench: Bench) -> None:
    bench.write(WAITING)
    refused = asyncio.create_task(bench.refuse())
    await bench.notes.waiting.wait()
    bench.clock.advance(10)
    assert await refused == "activate() took more than 10 s"
    assert bench.notes.trace == ["ended"]
    assert own_modules() == []


async def test_an_activate_that_does_not_stop_is_left_behind_after_a_second(bench: Bench) -> None:
    bench.write(
        """
        import asyncio
        async def activate(context):
            context.storage.waiting.set()
            while not context.storage.go_on.is_set():
                try:
                    await context.storage.go_on.wait()
                except asyncio.CancelledError:
                    context.storage.trace.append("ignored")
                    context.storage.waiting.set()
            context.storage.trace.append("ended")
        """
    )
    refused = asyncio.create_task(bench.refuse())
    await bench.notes.waiting.wait()
    bench.notes.waiting.clear()
    bench.clock.advance(10)
    await bench.notes.waiting.wait()
    bench.clock.advance(1)
    assert await refused == "activate() took more than 10 s, and does not stop"
    (left,) = (task for task in asyncio.all_tasks() if task is not asyncio.current_task())
    bench.notes.go_on.set()
    await asyncio.wait([left])
    assert bench.notes.trace == ["ignored", "ended"]


async def test_whoever_cancels_an_activation_gets_it_cancelled_and_disposed_of(bench: Bench) -> None:
    bench.write(WAITING)
    activation = asyncio.create_task(bench.activate())
    await bench.notes.waiting.wait()
    activation.cancel()
    with pytest.raises(asyncio.CancelledError):
        await activation
    assert bench.notes.trace == ["ended"]
    assert own_modules() == []


# ------------------------------------------------------------------------------------------------------------ failing

THROWN = {
    "ValueError('x')": "raised ValueError: x",
    "SystemExit(3)": "raised SystemExit: 3",
    "GeneratorExit()": "raised GeneratorExit",
    "asyncio.CancelledError()": "was cancelled",
    "ExceptionGroup('g', [ValueError('x')])": "raised ExceptionGroup: g (1 sub-exception)",
    "Unprintable()": "raised Unprintable",
}
RAISING = """
import asyncio
class Unprintable(Exception):
    def __str__(self): raise RuntimeError
{} activate(context):
    context.subscriptions.append(context.hooks.register("on_turn", print))
    raise {}
"""


@pytest.mark.parametrize(("error", "why"), THROWN.items())
@pytest.mark.parametrize("function", ["def", "async def"])
async def test_whatever_activate_raises_fails_the_activation_alone(
    bench: Bench, function: str, error: str, why: str
) -> None:
    bench.write(RAISING.format(function, error))
    assert (await bench.refuse()).startswith(f"activate() {why}")
    assert own_modules() == []


async def test_the_cause_of_a_failed_activation_is_kept(bench: Bench) -> None:
    bench.write(RAISING.format("def", "ValueError('x')"))
    with pytest.raises(ActivationError) as caught:
        await bench.activate()
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize("source", ["", "activate = None", "def activated(context): ..."])
async def test_code_without_an_activate_function_is_refused(bench: Bench, source: str) -> None:
    bench.write(source)
    assert "main.py has no function activate(context)" in await bench.refuse()


@pytest.mark.parametrize("error", ["ValueError('x')", "SystemExit(3)", "GeneratorExit()"])
async def test_code_that_does_not_import_is_refused(bench: Bench, error: str) -> None:
    bench.write(f"raise {error}")
    assert "main.py does not import" in await bench.refuse()
    assert own_modules() == []
    bench.write("def activate(context:")
    assert "SyntaxError" in await bench.refuse()


async def test_an_interrupted_import_passes_and_leaves_no_module(bench: Bench) -> None:
    bench.write("from . import other\nraise KeyboardInterrupt")
    (bench.folder / "other.py").write_text("")
    with pytest.raises(KeyboardInterrupt):
        load_code("acme", bench.folder, "main.py")
    assert own_modules() == []


async def test_an_absolute_import_of_a_sibling_is_told_what_to_write(bench: Bench) -> None:
    bench.write("import invoicing")
    (bench.folder / "invoicing.py").write_text("")
    assert "write `from . import invoicing`" in await bench.refuse()


async def test_a_main_that_became_a_link_out_is_not_run(bench: Bench, tmp_path: Path) -> None:
    """R24, also after the manifest was judged."""
    bench.write("")
    manifest = load_manifest(bench.folder)
    (tmp_path / "evil.py").write_text("raise SystemExit")
    (bench.folder / "main.py").unlink()
    (bench.folder / "main.py").symlink_to(tmp_path / "evil.py")
    with pytest.raises(ActivationError, match="leaves the extension's folder"):
        await activate_extension(
            bench.folder, manifest, clock=bench.clock, turns=Reader(), jobs=Reader(), storage=bench.notes
        )


# ------------------------------------------------------------------------------------------------- stopping, in order

CLEANING = """
from eventlog import durable
class Own:
    def __init__(self, trace, name): self.trace, self.name = trace, name
    def dispose(self): self.trace.append(self.name)
def activate(context):
    trace = context.storage.trace
    add = context.subscriptions.append
    add(Own(trace, 1))
    add(durable.Disposable(lambda: trace.append(2)))
    add(context.hooks.register("on_turn", print))
    add(durable.Disposable(lambda: 1 // 0))
    add("no disposable")
    add(durable.Disposable(lambda: exit(7)))
    add(Own(trace, 3))
    {}
"""


async def test_r22_each_subscription_is_disposed_of_once_in_the_order_they_were_added(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.write(CLEANING.format("pass"))
    loaded = await bench.activate()
    assert bench.notes.trace == []
    await loaded.deactivate()
    await loaded.deactivate()
    assert bench.notes.trace == [1, 2, 3]
    assert loaded.handlers == {}
    assert [(record.name, record.levelno) for record in caplog.records] == [("eventlog.durable", logging.ERROR)] * 3
    said = [record.getMessage() for record in caplog.records]
    assert (
        said[0]
        == 'extension "acme" subscription 3: dispose() raised ZeroDivisionError: integer division or modulo by zero'
    )
    assert "AttributeError" in said[1]
    assert "SystemExit: 7" in said[2]


async def test_r22_a_failed_activation_disposes_of_what_was_added(bench: Bench) -> None:
    bench.write(CLEANING.format("raise ValueError('late')"))
    assert "ValueError: late" in await bench.refuse()
    assert bench.notes.trace == [1, 2, 3]


DEACTIVATING = """
import asyncio
from eventlog import durable
def activate(context):
    global notes
    notes = context.storage
    context.subscriptions.append(durable.Disposable(lambda: notes.trace.append("disposed")))
    context.hooks.register("on_turn", print)
{}
"""


@pytest.mark.parametrize("function", ["def", "async def"])
async def test_deactivate_is_called_once_before_subscriptions_are_disposed_of(bench: Bench, function: str) -> None:
    bench.write(DEACTIVATING.format(f"{function} deactivate(): notes.trace.append('deactivated')"))
    loaded = await bench.activate()
    await loaded.deactivate()
    await loaded.deactivate()
    assert bench.notes.trace == ["deactivated", "disposed"]
    assert loaded.handlers == {}
    assert own_modules() == []


@pytest.mark.parametrize(("error", "why"), [("ValueError('x')", "ValueError: x"), ("SystemExit(3)", "SystemExit: 3")])
async def test_an_error_of_deactivate_is_logged_and_the_rest_is_disposed_of(
    bench: Bench, caplog: pytest.LogCaptureFixture, error: str, why: str
) -> None:
    bench.write(DEACTIVATING.format(f"def deactivate(): raise {error}"))
    await (await bench.activate()).deactivate()
    assert [record.getMessage() for record in caplog.records] == [f'extension "acme" deactivate() raised {why}']
    assert bench.notes.trace == ["disposed"]


WAITING_AT_THE_END = """
async def deactivate():
    notes.waiting.set()
    await notes.go_on.wait()
    notes.trace.append("deactivated")
"""


async def test_deactivate_may_take_just_under_5_seconds(bench: Bench) -> None:
    bench.write(DEACTIVATING.format(WAITING_AT_THE_END))
    stopping = asyncio.create_task((await bench.activate()).deactivate())
    await bench.notes.waiting.wait()
    bench.clock.advance(4.999)
    bench.notes.go_on.set()
    await stopping
    assert bench.notes.trace == ["deactivated", "disposed"]


async def test_deactivate_is_ended_at_5_seconds(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.write(DEACTIVATING.format(WAITING_AT_THE_END))
    stopping = asyncio.create_task((await bench.activate()).deactivate())
    await bench.notes.waiting.wait()
    bench.clock.advance(5)
    await stopping
    assert bench.notes.trace == ["disposed"]
    assert [record.getMessage() for record in caplog.records] == ['extension "acme" deactivate() took more than 5 s']


async def test_a_cancelled_deactivation_still_disposes_of_everything(bench: Bench) -> None:
    bench.write(DEACTIVATING.format(WAITING_AT_THE_END))
    stopping = asyncio.create_task((await bench.activate()).deactivate())
    await bench.notes.waiting.wait()
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert bench.notes.trace == ["disposed"]


# ------------------------------------------------------------------------------------------------------------ loading

WITH_SIBLINGS = """
from . import rates
from .deep.inner import NAME
def activate(context):
    context.storage.trace.append((rates.VALUE, NAME, __name__))
    context.hooks.register("on_turn", print)
"""


def write_siblings(folder: Path, value: int) -> None:
    (folder / "rates.py").write_text(f"VALUE = {value}")
    (folder / "deep").mkdir(exist_ok=True)
    (folder / "deep" / "inner.py").write_text("from ..rates import VALUE\nNAME = f'inner {VALUE}'")


async def test_siblings_are_imported_relatively_and_every_activation_reads_all_files_afresh(bench: Bench) -> None:
    """The files change within one second and keep their size, which a cache of bytecode would not notice."""
    bench.write(WITH_SIBLINGS)
    for value in (1, 2, 3):
        write_siblings(bench.folder, value)
        await (await bench.activate()).deactivate()
    assert [entry[:2] for entry in bench.notes.trace] == [(value, f"inner {value}") for value in (1, 2, 3)]
    assert len({entry[2] for entry in bench.notes.trace}) == 3
    assert own_modules() == []


async def test_two_extensions_with_files_of_the_same_names_do_not_mix(tmp_path: Path) -> None:
    benches = [Bench(tmp_path / name) for name in ("acme", "acme-2")]
    for value, bench in enumerate(benches):
        bench.write(WITH_SIBLINGS)
        write_siblings(bench.folder, value)
    loaded = [await bench.activate() for bench in benches]
    assert [bench.notes.trace[0][:2] for bench in benches] == [(0, "inner 0"), (1, "inner 1")]
    await loaded[0].deactivate()
    assert "rates" not in sys.modules
    assert any(name.startswith("_eventlog_extension_acme_2") for name in sys.modules)
    await loaded[1].deactivate()


async def test_a_handler_may_import_a_sibling_when_it_is_called(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.write(
        """
        def on_turn(event, context):
            from . import rates
            return rates.VALUE
        def activate(context):
            context.hooks.register("on_turn", on_turn)
        """
    )
    write_siblings(bench.folder, 5)
    loaded = await bench.activate()
    context = HookCallContext(AbortController().signal, "p1", "r1")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    assert loaded.handlers[TURN](None, context) == 5
    monkeypatch.setattr(sys, "dont_write_bytecode", False)


async def test_main_may_lie_deeper_and_have_any_name(bench: Bench) -> None:
    bench.write("")
    manifest = json.loads((bench.folder / "extension.json").read_text()) | {"main": "src/start-here.v2.py"}
    (bench.folder / "extension.json").write_text(json.dumps(manifest))
    (bench.folder / "src").mkdir()
    (bench.folder / "src" / "names.py").write_text("HANDLER = 'on_turn'")
    (bench.folder / "src" / "start-here.v2.py").write_text(
        "from .names import HANDLER\ndef activate(context): context.hooks.register(HANDLER, print)"
    )
    assert (await bench.activate()).handlers == {TURN: print}


async def test_an_extension_without_code_is_active_and_has_no_handlers(bench: Bench) -> None:
    bench.write("", none="")
    manifest = json.loads((bench.folder / "extension.json").read_text())
    del manifest["main"]
    (bench.folder / "extension.json").write_text(json.dumps(manifest))
    loaded = await bench.activate()
    assert loaded.handlers == {}
    await loaded.deactivate()


async def test_code_without_hooks_is_activated_too(bench: Bench) -> None:
    bench.write("def activate(context): context.storage.trace.append('ran')", none="")
    assert (await bench.activate()).handlers == {}
    assert bench.notes.trace == ["ran"]
