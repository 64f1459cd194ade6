"""How much a session may be reminded of."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ReminderLimits:
    """How much a session may be reminded of, at most; the fields' metadata says what each `means`."""

    text_characters: int = field(default=4_000, metadata={"means": "characters of one reminder's text"})
    per_session: int = field(
        default=100, metadata={"means": "reminders that wait in one session; those that were due do not count"}
    )
