"""Values of ours as plain JSON, for `--json`: camelCase names, times as RFC 3339, and every field always there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from eventlog.events import format_time

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def plain(value: Any) -> Any:
    """A value as plain JSON; a struct's field `at_us` is the time `at`."""
    if isinstance(value, datetime):
        return format_time(microseconds(value))
    if isinstance(value, msgspec.Struct):
        return dict(_field(name, getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return value


def microseconds(moment: datetime) -> int:
    """An aware datetime as microseconds since 1970."""
    return (moment - _EPOCH) // timedelta(microseconds=1)


def _field(name: str, value: Any) -> tuple[str, Any]:
    first, *rest = name.removesuffix("_us").split("_")
    wire_name = first + "".join(map(str.capitalize, rest))
    return wire_name, format_time(value) if name.endswith("_us") else plain(value)
