"""Makes the host of each session, and keeps those that were used last, so that all who ask get the same object."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

from eventlog.events import SessionInfo
from eventlog.host import Host
from eventlog.host.files import SessionFiles
from eventlog.host.kv import Kv
from eventlog.host.otel import Meter
from eventlog.host.reminding import Reminding
from eventlog.log import EventLog

HOSTS_KEPT = 1_024


class Hosts:
    """The hosts of one agent's sessions, and of sessions without an agent."""

    def __init__(
        self, log: EventLog, agent: str, meter: Meter, reminding: Reminding, services: Mapping[str, Any]
    ) -> None:
        self._store = log.store
        self._agent = agent
        self._meter = meter
        self._reminding = reminding
        self._services = services
        self._kept: OrderedDict[str, Host] = OrderedDict()

    def __len__(self) -> int:
        """How many are kept."""
        return len(self._kept)

    def of(self, info: SessionInfo) -> Host:
        """The host of a session."""
        host = self._kept.get(info.id)
        if host is None:
            agent = info.agent or self._agent
            host = self._kept[info.id] = Host(
                kv=Kv(self._store, agent),
                files=SessionFiles(self._store, agent, info.id),
                otel=self._meter.of(info.id),
                reminders=self._reminding.of(info.id),
                services=self._services,
            )
            if len(self._kept) > HOSTS_KEPT:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(info.id)
        return host
