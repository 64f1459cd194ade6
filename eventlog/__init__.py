"""An event-sourced persistence engine on SQLite, embedded in a single-node asyncio agent server.

Five lines tell what there is:

    async with EventLog("agent.db") as log:                       # one append-only log, one owner
        async with Runtime(log, agent_dir=".") as runtime:        # hooks, extensions and what they share
            session = await log.start_session("s1")
            await session.append("message.received", {"text": "hi"}, turn_id="t1")
            async for event in session.tail(): ...                # history, then live

To read the code, begin with `log`, then follow an event: `store.writer`, `store.events`, `observe.dispatcher`,
`durable.worker`; `runtime` joins them.
"""

from typing import TYPE_CHECKING

from eventlog.durable import (
    CONTRACT_VERSION,
    DeliveryPolicy,
    Disposable,
    ExtensionContext,
    HookCallContext,
    HookEnvelope,
    JobCompletedEnvelope,
    Reject,
    RetryAfter,
    TurnCompletedEnvelope,
    TurnReference,
    capabilities,
    validate_manifest,
)
from eventlog.errors import (
    ActivationError,
    CorruptEvent,
    CursorExpired,
    DiscoveryError,
    EventLogError,
    ForkedProcess,
    IndexConflict,
    InvalidEvent,
    KeyConflict,
    LogClosed,
    LogInUse,
    LogShortened,
    ManifestError,
    NotALog,
    OutcomeUnknown,
    SessionExists,
    SessionNotFound,
    StorageFull,
    VersionUnavailable,
)
from eventlog.events import Event, JobStatus, NewEvent, SessionEvent, SessionEventType, SessionInfo, define_event
from eventlog.log import EventLog
from eventlog.observe import (
    HookContext,
    HookDefinition,
    define_ab,
    define_channel,
    define_hook,
    disable_hook,
    memory_hook,
)
from eventlog.projections import Projection, Usage
from eventlog.runtime import Runtime
from eventlog.session import Session
from eventlog.store.turns import Job, TurnSnapshot

if TYPE_CHECKING:
    __version__: str


def __getattr__(name: str) -> str:
    """`__version__`, looked up when it is asked for: the look-up takes a sixth of the import's time."""
    if name != "__version__":
        raise AttributeError(f"module 'eventlog' has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("eventlog")
    except PackageNotFoundError:  # a checkout that was not installed
        return "0+unknown"


__all__ = [
    "CONTRACT_VERSION",
    "ActivationError",
    "CorruptEvent",
    "CursorExpired",
    "DeliveryPolicy",
    "DiscoveryError",
    "Disposable",
    "Event",
    "EventLog",
    "EventLogError",
    "ExtensionContext",
    "ForkedProcess",
    "HookCallContext",
    "HookContext",
    "HookDefinition",
    "HookEnvelope",
    "IndexConflict",
    "InvalidEvent",
    "Job",
    "JobCompletedEnvelope",
    "JobStatus",
    "KeyConflict",
    "LogClosed",
    "LogInUse",
    "LogShortened",
    "ManifestError",
    "NewEvent",
    "NotALog",
    "OutcomeUnknown",
    "Projection",
    "Reject",
    "RetryAfter",
    "Runtime",
    "Session",
    "SessionEvent",
    "SessionEventType",
    "SessionExists",
    "SessionInfo",
    "SessionNotFound",
    "StorageFull",
    "TurnCompletedEnvelope",
    "TurnReference",
    "TurnSnapshot",
    "Usage",
    "VersionUnavailable",
    "capabilities",
    "define_ab",
    "define_channel",
    "define_event",
    "define_hook",
    "disable_hook",
    "memory_hook",
    "validate_manifest",
]
