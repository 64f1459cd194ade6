"""What handlers, channels and the server's tools share: durable places, meters, reminders and the server's clients."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from eventlog.errors import InvalidName
from eventlog.host.artifacts import Artifacts
from eventlog.host.limits import ReminderLimits
from eventlog.host.otel import Measurement, Meter, Otel
from eventlog.host.protocols import Append, Files, FileScope, KeyValue, Reminder, Reminders

__all__ = [
    "Append",
    "Artifacts",
    "FileScope",
    "Files",
    "Host",
    "KeyValue",
    "Measurement",
    "Meter",
    "Otel",
    "Reminder",
    "ReminderLimits",
    "Reminders",
    "service_of",
]


class Host(msgspec.Struct, frozen=True, eq=False, kw_only=True):
    """The host of one session: durable places, measurements, reminders, and what the server passes.

    Each of `services` is reached by its name, as `host.github`, and is the very object that was passed (R113).
    Raises InvalidName for a service whose name is taken, or cannot be written after a dot.
    """

    kv: KeyValue
    files: Files
    otel: Otel
    reminders: Reminders
    services: Mapping[str, Any] = {}

    def __post_init__(self) -> None:
        for name in self.services:
            _check_service(name)
        msgspec.structs.force_setattr(self, "services", MappingProxyType(dict(self.services)))

    def __getattr__(self, name: str) -> Any:
        """Only asked for what is no member."""
        return service_of(self.services, name)

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self.services})


def service_of(services: Mapping[str, Any], name: str) -> Any:
    """The service of that name; raises AttributeError."""
    if name in services:
        return services[name]
    passed = ", ".join(sorted(services)) or "none"
    raise AttributeError(f'the server passed no service "{name}" to its Runtime; it passed: {passed}')


_OWN_NAMES = frozenset(Host.__struct_fields__)


def _check_service(name: Any) -> None:
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        raise InvalidName("service", name, "a service is reached as host.<name>: use a Python name without leading _")
    if name in _OWN_NAMES:
        raise InvalidName("service", name, "the host has a member of that name: choose another")
