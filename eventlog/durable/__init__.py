"""Durable hooks, which are delivered at least once, to extensions with a manifest.

Read `envelope` for what is delivered, `policy` for when and how often, `manifest` for what an extension declares,
`extension` for how it comes to life.
"""

from eventlog.durable.disposable import Disposable
from eventlog.durable.envelope import (
    DURABLE_TYPE_OF,
    LOG_TYPE_OF,
    DurableEventType,
    HookEnvelope,
    JobCompletedEnvelope,
    TurnCompletedEnvelope,
    envelope_of,
)
from eventlog.durable.extension import (
    BoundCallback,
    ExtensionContext,
    HookCallback,
    HookCallContext,
    HookRegistry,
    JobReader,
    LoadedExtension,
    Storage,
    TurnReader,
    activate_extension,
)
from eventlog.durable.manifest import (
    CAPABILITY_OF,
    Capability,
    HookDeclaration,
    Manifest,
    Operation,
    Permission,
    load_manifest,
    validate_manifest,
)
from eventlog.durable.policy import (
    CONTRACT_VERSION,
    Ack,
    Bury,
    DeliveryPolicy,
    InvalidPolicy,
    Outcome,
    Reject,
    Retry,
    RetryAfter,
    capabilities,
    judge,
)
from eventlog.durable.signal import AbortController, Aborted, Signal
from eventlog.durable.structure import manifest_schema
from eventlog.store.turns import TurnReference

__all__ = [
    "CAPABILITY_OF",
    "CONTRACT_VERSION",
    "DURABLE_TYPE_OF",
    "LOG_TYPE_OF",
    "AbortController",
    "Aborted",
    "Ack",
    "BoundCallback",
    "Bury",
    "Capability",
    "DeliveryPolicy",
    "Disposable",
    "DurableEventType",
    "ExtensionContext",
    "HookCallContext",
    "HookCallback",
    "HookDeclaration",
    "HookEnvelope",
    "HookRegistry",
    "InvalidPolicy",
    "JobCompletedEnvelope",
    "JobReader",
    "LoadedExtension",
    "Manifest",
    "Operation",
    "Outcome",
    "Permission",
    "Reject",
    "Retry",
    "RetryAfter",
    "Signal",
    "Storage",
    "TurnCompletedEnvelope",
    "TurnReader",
    "TurnReference",
    "activate_extension",
    "capabilities",
    "envelope_of",
    "judge",
    "load_manifest",
    "manifest_schema",
    "validate_manifest",
]
