"""An event-sourced persistence engine on SQLite, embedded in a single-node asyncio agent server.

Five lines tell what there is:

    async with EventLog("agent.db") as log:                       # one append-only log, one owner
        async with Runtime(log, agent_dir=".") as runtime:        # hooks, extensions and what they share
            session = await log.start_session("s1")
            await session.append("message.received", {"text": "hi"}, turn_id="t1")
            async for event in session.tail(): ...                # history, then live

To read the code, begin with `log`, then follow an event: `store.writer`, `store.events`, `observe.dispatcher`,
`durable.worker`; `runtime` joins them.

Each public name is imported when it is first asked for, so that the help of the command line does not wait for the log,
nor a reader for the hooks. `__init__.pyi` has the same names for type checkers.
"""

from importlib import import_module
from importlib.util import find_spec

_NAMES = {
    "durable": [
        "CONTRACT_VERSION",
        "DeliveryPolicy",
        "Disposable",
        "ExtensionContext",
        "HookCallContext",
        "HookEnvelope",
        "JobCompletedEnvelope",
        "Reject",
        "RetryAfter",
        "TurnCompletedEnvelope",
        "TurnReference",
        "capabilities",
        "validate_manifest",
    ],
    "errors": [
        "ActivationError",
        "CorruptEvent",
        "CursorExpired",
        "DiscoveryError",
        "EventLogError",
        "ForkedProcess",
        "IndexConflict",
        "InvalidEvent",
        "KeyConflict",
        "LogClosed",
        "LogInUse",
        "LogShortened",
        "ManifestError",
        "NotALog",
        "OutcomeUnknown",
        "SessionExists",
        "SessionNotFound",
        "StorageFull",
        "VersionUnavailable",
    ],
    "events": ["Event", "JobStatus", "NewEvent", "SessionEvent", "SessionEventType", "SessionInfo", "define_event"],
    "log": ["EventLog"],
    "observe": [
        "HookContext",
        "HookDefinition",
        "define_ab",
        "define_channel",
        "define_hook",
        "disable_hook",
        "memory_hook",
    ],
    "projections": ["Projection", "Usage"],
    "runtime": ["Runtime"],
    "session": ["Session"],
    "store.turns": ["Job", "TurnSnapshot"],
}
"""The public names, by the module that each is in."""

_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_MODULE_OF)  # pyright: ignore[reportUnsupportedDunderAll] (it reads the stub)


def __getattr__(name: str) -> object:
    """A public name, a module of this package, or `__version__`; what was found once is not looked for again."""
    found: object
    if name in _MODULE_OF:
        found = getattr(import_module(f"eventlog.{_MODULE_OF[name]}"), name)
    elif name == "__version__":
        found = _version()
    elif not name.startswith("_") and find_spec(f"eventlog.{name}"):
        return import_module(f"eventlog.{name}")
    else:
        raise AttributeError(f"module 'eventlog' has no attribute {name!r}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


def _version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("eventlog")
    except PackageNotFoundError:  # a checkout that was not installed
        return "0+unknown"
