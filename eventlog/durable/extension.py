"""Brings one extension to life and to rest: its context, its registrations, `activate` and `deactivate`."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol, TypeAlias

from eventlog.clock import Clock
from eventlog.durable.disposable import Disposable
from eventlog.durable.envelope import JobCompletedEnvelope, TurnCompletedEnvelope
from eventlog.durable.loading import LoadedCode, describe, load_code
from eventlog.durable.manifest import Manifest
from eventlog.durable.signal import Signal
from eventlog.errors import ActivationError, shown
from eventlog.logs import harmless_logger
from eventlog.store.turns import TurnReference

ACTIVATE_LIMIT_S = 10.0
DEACTIVATE_LIMIT_S = 5.0
_CANCEL_GRACE_S = 1.0  # how long a cancelled function may take to clean up before it is left to itself

_logger = harmless_logger("eventlog.durable")


# ------------------------------------------------------------------------------------------- what an extension gets


@dataclass(frozen=True, slots=True)
class HookCallContext:
    """What a handler gets beside its event (R16): `request_id` is new for every attempt."""

    signal: Signal
    project_id: str
    request_id: str


HookCallback: TypeAlias = (
    Callable[[TurnCompletedEnvelope, HookCallContext], object]
    | Callable[[JobCompletedEnvelope, HookCallContext], object]
)
"""A handler, plain or coroutine function; what it returns means nothing (R17)."""

BoundCallback: TypeAlias = Callable[[Any, HookCallContext], object]
"""A registered handler as the host calls it, with the envelope of the event that its manifest names."""


class TurnReader(Protocol):
    """Reads turns of granted projects."""

    async def get(self, reference: TurnReference, /) -> Any:
        """Return exactly the version referred to; raises `VersionUnavailable`."""
        ...


class JobReader(Protocol):
    """Reads background jobs of granted projects; what it says is authoritative (R13)."""

    async def get(self, job_id: str, /) -> Any:
        """Return the job as it is now."""
        ...


class Storage(Protocol):
    """JSON values of the extension's own, by key."""

    async def get(self, key: str, default: Any = None) -> Any:
        """Return the value, or `default` where there is none."""
        ...

    async def put(self, key: str, value: Any) -> None:
        """Keep a JSON value."""
        ...

    async def delete(self, key: str) -> object:
        """Forget the value."""
        ...

    async def list(self, prefix: str = "") -> Any:
        """Return the keys that begin with `prefix`."""
        ...


class HookRegistry:
    """Where `activate` binds its handlers; it is open until `activate` first waits, or returns (R20)."""

    __slots__ = ("_bound", "_event_of", "_extension", "_open")

    def __init__(self, extension: str, manifest: Manifest) -> None:
        self._extension = extension
        self._event_of = {hook.handler: hook.event for hook in manifest.hooks}
        self._bound: dict[str, BoundCallback] = {}  # by event type: the manifest names each at most once
        self._open = True

    def register(self, handler: str, callback: HookCallback) -> Disposable:
        """Bind a declared handler to its callback; disposing of the result unbinds it (R15, R19 to R21).

        Raises `ActivationError` for a handler that the manifest does not declare among its hooks or that is bound
        already, for a callback that cannot be called, and once the time for registering is over.
        """
        event = self._event_of.get(handler)
        if not self._open:
            raise self._error(
                f"{shown(handler)} comes too late; register in activate(), before its first await that waits"
            )
        if event is None:
            declared = ", ".join(self._event_of) or "none"
            raise self._error(f"the manifest declares no hook {shown(handler)} (but: {declared}); add it to hooks")
        if event in self._bound:
            raise self._error(f"{shown(handler)} is registered already; register it once")
        if not callable(callback):
            raise self._error(f"{shown(handler)} got {shown(callback)}; give a function of (event, context)")
        self._bound[event] = callback
        return Disposable(lambda: self._bound.pop(event, None))

    async def _while_open(self, activate: Callable[[ExtensionContext], object], context: ExtensionContext) -> None:
        """Run `activate`, and close when it first suspends or ends: both give the loop its next turn.

        What resumes a suspended task is queued after the suspension, and so behind the closing, which is queued
        before it. An await that does not suspend gives the loop no turn, and leaves the registry open.
        """
        asyncio.get_running_loop().call_soon(self._close)
        result = activate(context)
        if inspect.isawaitable(result):
            await result

    def _close(self) -> None:
        self._open = False

    def _check_complete(self) -> None:
        missing = [handler for handler, event in self._event_of.items() if event not in self._bound]
        if missing:
            raise self._error(f"activate() did not register {', '.join(missing)}; register it, or take it out of hooks")

    def _error(self, why: str) -> ActivationError:
        return ActivationError(self._extension, why)


@dataclass(frozen=True, slots=True)
class ExtensionContext:
    """All that the host exposes to an extension (R18, R49 to R52).

    `extension_id` is `publisher.name`. What is put into `subscriptions` is disposed of, in that order, when the
    extension stops (R22). `storage` is the extension's own.
    """

    extension_id: str
    hooks: HookRegistry
    subscriptions: list[Disposable]
    turns: TurnReader
    jobs: JobReader
    storage: Storage


# ------------------------------------------------------------------------------------------- activate and deactivate


class LoadedExtension:
    """An active extension: `name` is its folder's, `handlers` its callbacks by durable event type.

    `handlers` follows the registrations: one that is disposed of is gone from it, and so are all after `deactivate`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        manifest: Manifest,
        *,
        clock: Clock,
        turns: TurnReader,
        jobs: JobReader,
        storage: Storage,
    ) -> None:
        """Keep what it needs; `activate_extension` makes it active."""
        self._folder = Path(folder).resolve()
        self.name = self._folder.name
        self.manifest = manifest
        hooks = HookRegistry(self.name, manifest)
        self.handlers: Mapping[str, BoundCallback] = MappingProxyType(hooks._bound)
        self._context = ExtensionContext(manifest.id, hooks, [], turns, jobs, storage)
        self._clock = clock
        self._code: LoadedCode | None = None

    async def deactivate(self) -> None:
        """Call the module's `deactivate()` if it has one, for 5 s at most, and dispose of everything.

        Logs what goes wrong and raises nothing. Calls that are under way are the caller's to abort first.
        """
        deactivate = None if self._code is None else getattr(self._code.main, "deactivate", None)
        try:
            if callable(deactivate):
                await _call_within(DEACTIVATE_LIMIT_S, self._clock, deactivate)
        except _CallError as failure:
            _logger.error('extension "%s" deactivate() %s', self.name, failure, exc_info=failure.__cause__)
        finally:
            self._dispose()

    async def _activate(self) -> None:
        hooks = self._context.hooks
        if self.manifest.main is not None:
            self._code = load_code(self.name, self._folder, self.manifest.main)
            activate = getattr(self._code.main, "activate", None)
            if not callable(activate):
                raise ActivationError(self.name, f"{self.manifest.main} has no function activate(context); write it")
            try:
                await _call_within(ACTIVATE_LIMIT_S, self._clock, hooks._while_open, activate, self._context)
            except _CallError as failure:
                if isinstance(failure.__cause__, ActivationError):
                    raise failure.__cause__ from None
                raise ActivationError(self.name, f"activate() {failure}") from failure.__cause__
        hooks._check_complete()

    def _dispose(self) -> None:
        subscriptions = tuple(self._context.subscriptions)
        self._context.subscriptions.clear()
        for place, subscription in enumerate(subscriptions):
            try:
                subscription.dispose()
            except (Exception, SystemExit, GeneratorExit) as error:
                why = describe(error)
                _logger.error(
                    'extension "%s" subscription %d: dispose() raised %s', self.name, place, why, exc_info=error
                )
        self._context.hooks._bound.clear()
        if self._code is not None:
            self._code.unload()
            self._code = None


async def activate_extension(
    folder: str | os.PathLike[str],
    manifest: Manifest,
    *,
    clock: Clock,
    turns: TurnReader,
    jobs: JobReader,
    storage: Storage,
) -> LoadedExtension:
    """Run the extension's `activate` and return it with its handlers (R18 to R22).

    Raises `ActivationError`, with everything disposed of again, if its code does not import, `activate` raises or
    takes more than 10 s, or what it registered is not exactly what the manifest declares.
    """
    loaded = LoadedExtension(folder, manifest, clock=clock, turns=turns, jobs=jobs, storage=storage)
    try:
        await loaded._activate()
    except BaseException:
        loaded._dispose()
        raise
    return loaded


# --------------------------------------------------------------------------------------- calling what may misbehave


class _CallError(Exception):
    """A function of the extension did not do its work; the cause is what it raised, if it raised."""


async def _call_within(limit_s: float, clock: Clock, function: Callable[..., object], *args: object) -> None:
    """Call a plain or coroutine function in a task of its own; raises `_CallError` if it fails or takes too long."""
    call = asyncio.create_task(_contain(function, *args))
    try:
        await _first_of(call, limit_s, clock)
    finally:
        late = not call.done()
        if late:
            call.cancel()
            await _first_of(call, _CANCEL_GRACE_S, clock)
    if late:
        raise _CallError(f"took more than {limit_s:g} s" + ("" if call.done() else ", and does not stop"))
    if call.cancelled():
        raise _CallError("was cancelled")
    error = call.result()
    if error is not None:
        raise _CallError(f"raised {describe(error)}") from error


async def _contain(function: Callable[..., object], *args: object) -> BaseException | None:
    """Return what it raised: SystemExit would end the loop if it left the task."""
    try:
        result = function(*args)
        if inspect.isawaitable(result):
            await result
    except (Exception, SystemExit, GeneratorExit) as error:
        return error
    return None


async def _first_of(call: asyncio.Task[Any], seconds: float, clock: Clock) -> None:
    """Wait until the call is done or the time is over."""
    timer = asyncio.create_task(clock.sleep(seconds))
    try:
        await asyncio.wait({call, timer}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        timer.cancel()
