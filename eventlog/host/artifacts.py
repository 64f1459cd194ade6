"""Tags artifacts of the session and turn that a handler was called for."""

from __future__ import annotations

from typing import Any

import msgspec

from eventlog.events import Event
from eventlog.host.protocols import Append


class Artifacts(msgspec.Struct, frozen=True):
    """The artifacts of one session (R115); `turn_id` is that of the event that the handler was called for, if any."""

    append: Append
    session_id: str
    turn_id: str | None = None

    async def tag(self, kind: str, key: str, *, title: str | None = None, data: Any = None) -> Event[Any]:
        """Record `artifact.tagged` for this session and turn, and return the event once it is stored.

        A `"*"` handler is shown that event too: one that tags for every event would never end.
        Raises InvalidEvent if `data` is nothing that JSON can hold.
        """
        optional = {name: value for name, value in (("title", title), ("data", data)) if value is not None}
        return await self.append(
            self.session_id, "artifact.tagged", {"kind": kind, "key": key, **optional}, turn_id=self.turn_id
        )
