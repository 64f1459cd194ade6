"""The front door: open a log, start its sessions, append, read, follow."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from types import TracebackType
from typing import Any, Literal, NoReturn, Self

from eventlog import upkeep
from eventlog.clock import Clock, SystemClock
from eventlog.encoding import Encoded, EventData, check_id, encode_event, plain
from eventlog.errands import Errands
from eventlog.errors import (
    InvalidEvent,
    InvalidName,
    LogClosed,
    LogShortened,
    NotALog,
    SessionNotFound,
    VersionUnavailable,
)
from eventlog.events import (
    TOMBSTONE,
    Envelope,
    Event,
    NewEvent,
    SessionInfo,
    SessionStarted,
    decode_json,
    parse_envelope,
)
from eventlog.folding import FoldLimits
from eventlog.following import RemoteCommits, Waiters, pages, wait_in, wake
from eventlog.history import ImportReport, import_lines
from eventlog.known import KnownSessions
from eventlog.serving import Commands, LogCommands, Server
from eventlog.session import Session, info_now
from eventlog.store.bounds import Bounds, wanted
from eventlog.store.checking import Progress, Report, check
from eventlog.store.drafting import Append
from eventlog.store.events import info_at_start, last_position
from eventlog.store.heads import Head
from eventlog.store.index import SLICE_ROWS
from eventlog.store.projections import ProjectionState, state_of
from eventlog.store.reading import find_session, log_floor, sessions_page
from eventlog.store.stats import collect
from eventlog.store.store import Durability, Store
from eventlog.store.turns import Job, TurnReference, TurnSnapshot, find_job, find_turn
from eventlog.upkeep import BackedUp, Forgot, Pruned, Vacuumed
from eventlog.usage import By, Usage, read_usage

SESSIONS_PER_PAGE = 500
POLL_S = 0.02

logger = logging.getLogger("eventlog.log")

Redact = Callable[[NewEvent], NewEvent]
Recorded = Callable[[list[Event[Any]]], None]
Starting = Callable[[str, SessionStarted], tuple[SessionStarted, list[NewEvent]]]


class EventLog:
    """One append-only log in one SQLite file.

    The process that opens it without `read_only` owns it; any number of others may read meanwhile. `durability` is
    "full" (an append is on the disk when it returns) or "process" (it survives the end of the process, not a power
    cut). `redact` sees every event before it is stored. `fold_limits` are of snapshots and projections. `accept_loss`
    opens a file that lost its end; its owner then begins a new era, so that no position has the id that it had before.
    Opening raises LogInUse, NotALog, UnsupportedSchema, LogShortened, NetworkFileSystem, DamagedFile, StorageFull,
    StoreError, PermissionError; reading a missing file raises FileNotFoundError.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        durability: Durability = "full",
        read_only: bool = False,
        clock: Clock | None = None,
        redact: Redact | None = None,
        accept_loss: bool = False,
        allow_network_fs: bool = False,
        wait_for_owner_s: float = 0.0,
        verify_reads: bool = False,
        slice_rows: int = SLICE_ROWS,
        poll_s: float = POLL_S,
        fold_limits: FoldLimits | None = None,
    ) -> None:
        if durability not in ("full", "process"):
            raise ValueError(f"durability is 'full' or 'process', not {durability!r}")
        self.path = Path(path)
        self._clock: Clock = clock or SystemClock()
        self.read_only = read_only
        self._redact = redact
        self.encode = encode_event if redact is None else self._redact_and_encode
        """Redacts, checks and encodes one event."""
        self._poll_s = poll_s
        self.fold_limits = fold_limits or FoldLimits()
        self.commands = Commands()
        """What other processes can ask of this log while it is open here; the layers above add theirs."""
        _ = self.commands.add(LogCommands(self).all())
        self._errands = Errands(self)
        _ = self.commands.add(self._errands.all())
        self._server: Server | None = None
        self._make_store: Callable[[], Store] = lambda: Store(
            self.path,
            self._clock,
            durability=durability,
            read_only=read_only,
            accept_loss=accept_loss,
            allow_network_fs=allow_network_fs,
            wait_for_owner_s=wait_for_owner_s,
            verify_reads=verify_reads,
            slice_rows=slice_rows,
        )
        self._store: Store | None = None
        self._opening = asyncio.Lock()
        self._closing: Store | None = None
        self._remote: RemoteCommits | None = None
        self._known = KnownSessions(self)
        self._recorded: tuple[Recorded, ...] = ()
        self._starting: tuple[Starting, ...] = ()
        self._waiters: Waiters = set()
        self.agents_served: set[str] = set()  # by the runtimes of this process
        self.extensions_served: set[int] = set()  # by their keys

    # -- opening and closing ------------------------------------------------------------------------------------

    async def open(self) -> Self:
        """Open the file, which its owner makes when it is missing; opening an open log does nothing."""
        async with self._opening:
            if self._closing is not None:
                await self._closing.close()
            if self._store is None:
                await self._open_file()
        return self

    async def _open_file(self) -> None:
        if not self.path.name:
            raise NotALog(self.path, "it is a folder; name the database file in it")
        store = self._make_store()
        await store.open(self._landed)
        self._store = store
        if self.read_only:
            self._remote = RemoteCommits(store, self._poll_s, store.clock)
        else:
            self._server = Server(self.commands, store.path, store.lock)
            self._server.start()

    async def close(self) -> None:
        """Settle what was appended, end all tails and let the file go; closing again does nothing."""
        server, self._server = self._server, None
        try:
            if server is not None:
                await server.close()
            await self._errands.close()
        finally:
            await self._close_file()

    async def _close_file(self) -> None:
        store = self._store or self._closing
        if store is None:
            return
        if self._store is not None:
            self._store, self._closing = None, store
            store.close().add_done_callback(lambda _: self._let_go(store))
        await store.close()

    def _let_go(self, store: Store) -> None:
        self._closing = None
        if self._remote is not None:
            self._remote.stop()
        for head in list(store.events.heads.values()):
            head.retire()
            wake(head.waiters)
        wake(self._waiters)
        self._known.forget()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __reduce__(self) -> NoReturn:
        raise TypeError("a log stays in its process, which has its lock; hand its path over, and open it there")

    @property
    def is_open(self) -> bool:
        """Whether the log can be used now."""
        return self._store is not None

    def ended(self, since: Store) -> bool:
        """Whether the log was closed, and perhaps opened again, since it had this store; asked by tails."""
        return self._store is not since

    @property
    def store(self) -> Store:
        """The opened file, for the layers of this package; raises LogClosed."""
        if self._store is None:
            raise LogClosed()
        return self._store

    @property
    def clock(self) -> Clock:
        """The clock of the opened file: wall time as it was at its opening, plus monotonic time."""
        return self.store.clock

    @property
    def loss(self) -> LogShortened | None:
        """What the file had lost when it was opened, and `accept_loss` let pass; None when nothing."""
        return self.store.loss

    @property
    def head(self) -> int:
        """The position of the last committed event, as its owner knows it."""
        return self.store.events.position

    async def committed(self) -> int:
        """The position of the last committed event, on a read-only log too."""
        return await self.store.read(last_position) if self.read_only else self.head

    # -- sessions -----------------------------------------------------------------------------------------------

    async def start_session(
        self,
        id: str | None = None,
        *,
        agent: str | None = None,
        project: str = "default",
        channel: str = "api",
        mode: Literal["chat", "task"] = "chat",
        purpose: Literal["live", "eval"] = "live",
        auth: Any = None,
        title: str | None = None,
        abs: Any = None,
        continuation_token: str | None = None,
    ) -> Session:
        """Start a session and record its `session.started`; raises SessionExists when the id is known."""
        started = SessionStarted(
            channel_id=channel,
            mode=mode,
            purpose=purpose,
            project_id=project,
            agent=agent,
            auth=plain(auth, "data.auth"),
            title=title,
            abs=plain(abs, "data.abs"),
            continuation_token=continuation_token,
        )
        session_id = check_id("sessionId", f"s_{token_hex(8)}" if id is None else id)
        more: list[NewEvent] = []
        for add_to in self._starting:
            started, added = add_to(session_id, started)
            more += added
        await self.record_start(session_id, started, more=more)
        return await self.session(session_id)

    async def record_start(
        self, session_id: str, started: SessionStarted, key: str | None = None, more: Iterable[NewEvent] = ()
    ) -> Event[Any]:
        """Record a new session's first event, and in the same commit those that follow it; raises SessionExists."""
        check_id("sessionId", session_id)
        encoded = self.encode("session.started", started, None, key)
        if not isinstance(encoded.payload, SessionStarted):
            raise InvalidEvent("type", f"a session begins with session.started; redact made a {encoded.type} of it")
        started = encoded.payload  # redacted
        for what, value in (("project", started.project_id), ("channel", started.channel_id), ("agent", started.agent)):
            if value is not None:
                check_id(what, value)
        items = [encoded, *(self.encode(event.type, event.data, event.turn_id, event.key) for event in more)]
        async with self._known.starting(session_id) as head:
            return (await self.submit(head, items, None, info_at_start(session_id, started)))[0]

    async def session(self, id: str) -> Session:
        """A handle on a session, when its start is not underway any more; raises SessionNotFound."""
        check_id("sessionId", id)
        if self.read_only:
            found = await self.store.read(find_session, id)
            if found is None:
                raise SessionNotFound(id)
            return Session(self, found.info, found.key, None)
        await self._known.start_ended(id)
        head = await self._known.head(id)
        info = info_now(head)
        if info is None or head.key is None:
            raise SessionNotFound(id)
        return Session(self, info, head.key, head)

    async def session_info(self, session_id: str) -> SessionInfo:
        """What is known of a session now; raises SessionNotFound."""
        return (await self.session(session_id)).info

    def info_of(self, session_id: str) -> SessionInfo | None:
        """The same from memory and at once, None when it is not there. Its `next_index` and `updated_at` may lag."""
        head = self.store.events.heads.get(session_id)
        return None if head is None else head.info

    async def sessions(
        self,
        prefix: str | None = None,
        purpose: str | None = None,
        project: str | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[SessionInfo]:
        """Sessions in the order in which they were started."""
        for what, value in (("prefix", prefix), ("purpose", purpose), ("project", project)):
            if value:
                check_id(what, value)
        after, left = 0, limit
        while left is None or left > 0:
            size = SESSIONS_PER_PAGE if left is None else min(SESSIONS_PER_PAGE, left)
            page = await self.store.read(sessions_page, after, prefix, purpose, project, size)
            for found in page:
                yield found.info
            if len(page) < size:
                return
            after = page[-1].key
            left = None if left is None else left - len(page)

    # -- appending ----------------------------------------------------------------------------------------------

    async def append(
        self,
        session_id: str,
        type: str,
        data: EventData | None = None,
        *,
        turn_id: str | None = None,
        key: str | None = None,
        expected_index: int | None = None,
    ) -> Event[Any]:
        """Append one event to a session by its id; raises SessionNotFound, and as `Session.append` does."""
        encoded = self.encode(type, {} if data is None else data, turn_id, key)
        check_id("sessionId", session_id)
        return (await self.submit(await self._known.head(session_id), [encoded], expected_index))[0]

    def _redact_and_encode(
        self, type: str, data: EventData, turn_id: str | None = None, key: str | None = None
    ) -> Encoded:
        assert self._redact is not None
        event = self._redact(NewEvent(type, data, turn_id, key))
        return encode_event(event.type, event.data, event.turn_id, event.key)

    def read_envelope(self, line: bytes) -> Envelope:
        """One line of history, redacted as an append is; raises InvalidEvent."""
        envelope = parse_envelope(line)
        if self._redact is None or envelope.data == TOMBSTONE:
            return envelope
        redacted = self.encode(envelope.type, decode_json(envelope.data), envelope.turn_id, None)
        return Envelope(envelope.index, envelope.session_id, envelope.at_us, redacted)

    def submit(
        self, head: Head, items: list[Encoded], expected_index: int | None, start: SessionInfo | None = None
    ) -> Coroutine[Any, Any, list[Event[Any]]]:
        """Hand encoded events to the writer; what is to be awaited returns them recorded."""
        store = self._store
        if store is None:
            raise LogClosed()
        writer = store.writer
        append = Append(head, items, asyncio.Future(loop=writer.loop), expected_index, start)
        return writer.append(append)

    def _landed(self, recorded: list[Event[Any]], appends: list[Append]) -> None:
        """After a commit, and after its callers: wake by key. A wake-up is a hint, the log is the truth."""
        if not recorded:
            return  # refused, or known by their keys
        news: dict[Head, list[Event[Any]]] = {}
        for append in appends:
            if append.head.waiters:
                news.setdefault(append.head, []).extend(append.events)
        for head, events in news.items():
            wake(head.waiters, events)
        if self._waiters:
            wake(self._waiters, recorded)
        for callback in self._recorded:
            try:
                callback(recorded)
            except Exception:
                logger.exception("what is told of recorded events raised; the events are stored")

    def on_recorded(self, callback: Recorded) -> Callable[[], None]:
        """Call back on the loop with the events of each commit, in position order; returns what takes it back.

        Imported events are not shown. The callback must neither raise nor block.
        """
        self._recorded = (*self._recorded, callback)

        def remove() -> None:
            self._recorded = tuple(known for known in self._recorded if known is not callback)

        return remove

    def on_starting(self, callback: Starting) -> Callable[[], None]:
        """Ask a callback whenever `start_session` is about to record; returns what takes it back.

        It is given the session's id and first event, and returns that event, changed perhaps, with those that are to
        follow it in the same commit. It must neither raise nor block.
        """
        self._starting = (*self._starting, callback)

        def remove() -> None:
            self._starting = tuple(known for known in self._starting if known is not callback)

        return remove

    # -- reading ------------------------------------------------------------------------------------------------

    def read(
        self,
        after: int | None = None,
        before: int | None = None,
        limit: int | None = None,
        types: Iterable[str] | None = None,
        project: str | None = None,
        reverse: bool = False,
    ) -> AsyncIterator[Event[Any]]:
        """Events of all sessions by position; `after` and `before` are exclusive positions.

        Raises CursorExpired when a session was pruned behind `after`; without it, what is left is read.
        """
        if project is not None:
            check_id("project", project)
        bounds = Bounds(after, before, wanted(types), 0, reverse, None if after is None else 1)
        return self._pages(bounds, project, limit)

    def _pages(self, bounds: Bounds, project: str | None, limit: int | None) -> AsyncIterator[Event[Any]]:
        store = self.store

        async def page(bounds: Bounds) -> list[Event[Any]]:
            return await store.read(store.reading.log_page, bounds, project)

        return pages(page, _position_of, bounds, limit)  # not around it: each generator costs every event a step

    async def tail(self, after: int | None = None, types: Iterable[str] | None = None) -> AsyncIterator[Event[Any]]:
        """Events of all sessions behind a position, then live ones, without a gap or a repeat; ends with the log.

        Raises CursorExpired when a session was pruned behind the last event that it gave, or behind `after`.
        """
        position, only = after or 0, wanted(types)
        with suppress(LogClosed):  # in the middle of a read
            store = self.store
            seen_floor = await store.read(log_floor) if after is None else 1
            while not self.ended(store):
                seen = await self.committed()
                async for event in self._pages(Bounds(position, seen + 1, only, 0, False, seen_floor), None, None):
                    position = event.position
                    yield event
                position = max(position, seen)
                if self.read_only and not self.ended(store):
                    await self.wait_remote(seen)
                while not (self.read_only or self.ended(store)) and self.head <= position:
                    for event in await wait_in(self._waiters):
                        if event.position == position + 1:
                            position = event.position
                            if only is None or event.type in only:
                                yield event.unshared()

    def tails_waiting(self) -> int:
        """How many tails, of sessions and of the whole log, wait for something to come."""
        remote = 0 if self._remote is None else self._remote.waiting
        return remote + len(self._waiters) + sum(len(head.waiters) for head in list(self.store.events.heads.values()))

    def wake_tails(self, session_ids: Iterable[str]) -> None:
        """Wake the tails of these sessions and of the whole log: what they have not seen was imported."""
        if self._store is not None:
            for head in filter(None, map(self._store.events.heads.get, session_ids)):
                wake(head.waiters)
        wake(self._waiters)

    async def wait_remote(self, seen: int, session_key: int | None = None) -> None:
        """On a read-only log: wait until another process may have committed something behind what was seen."""
        if self._remote is not None:
            await self._remote.wait(seen, session_key)

    async def beyond(self, position: int) -> None:
        """Return when something is committed behind a position, imports included, or the log was closed."""
        if self.is_open and self.head <= position:
            await wait_in(self._waiters)

    async def events_at(self, positions: list[int]) -> list[Event[Any]]:
        """The events at these positions, in order; those that were pruned are left out."""
        store = self.store
        return await store.read(store.reading.at_positions, positions)

    # -- history in and out -------------------------------------------------------------------------------------

    async def import_events(
        self,
        lines: Iterable[bytes],
        *,
        live: bool = False,
        strict: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> ImportReport:
        """Import JSONL envelopes as history, which no hook is owed, or as `live` events, which hooks see.

        Importing the same lines again adds nothing. Bad lines are counted and named; with `strict` the first one
        raises InvalidEvent, and what came before it stays. `progress(lines)` is called on the loop.
        """
        return await import_lines(self, lines, live=live, strict=strict, progress=progress)

    async def export(self, session_id: str | None = None) -> AsyncIterator[bytes]:
        """Envelopes as lines of JSON without the line end, by position, or of one session by index."""
        events = self.read() if session_id is None else (await self.session(session_id)).read()
        async for event in events:
            yield event.to_json()

    # -- what is folded from it ---------------------------------------------------------------------------------

    async def turn(self, reference: TurnReference) -> TurnSnapshot:
        """Exactly this version of a turn; raises VersionUnavailable, and never gives another one. CorruptEvent."""
        where = (reference.conversation_id, reference.turn_id, reference.version)
        turn = await self.store.read(find_turn, *where)
        if turn is None:
            raise VersionUnavailable(*where, "there is no such version")
        return turn

    async def job(self, job_id: str) -> Job:
        """A background job as its events tell by now; raises InvalidName when none told of it, and CorruptEvent."""
        job = await self.store.read(find_job, job_id)
        if job is None:
            raise InvalidName("job", job_id, "no event told of a job of this id")
        return job

    async def usage(self, by: By = "session", *, project: str | None = None, purpose: str | None = None) -> list[Usage]:
        """What completed turns used, by "session", "agent", "model" or "day", of every event that is committed now."""
        return await read_usage(self.store, self.fold_limits, by, project, purpose)

    async def projection(self, name: str) -> ProjectionState:
        """The state of a projection of yours as far as it is folded, which `lag` tells; raises InvalidName."""
        return await self.store.read(state_of, name)

    # -- looking at the whole -----------------------------------------------------------------------------------

    async def stats(self) -> dict[str, Any]:
        """Counts, sizes and settings, as plain JSON."""
        return await self.store.read(collect, self.store)

    async def check(self, full: bool = True, progress: Progress | None = None) -> Report:
        """Prove the file: every event's checksum, no hole in positions and indexes, SQLite's own check.

        Quick (`full=False`) leaves out SQLite's check of every page. `progress(done, total)` is called on the loop.
        """
        return await check(self.store, full=full, progress=progress)

    # -- care for the file --------------------------------------------------------------------------------------

    async def backup(self, path: str | Path, progress: Progress | None = None) -> BackedUp:
        """Copy the log to a new file, as it is at one moment, while appends go on; it is proven before this returns.

        The copy is a log of its own, in a new era once it is opened. `progress(done, total)` is in bytes, copied and
        then proven, and is called on the loop. Raises FileExistsError, InvalidName for a path that names no file,
        DamagedFile when the log is not whole, StorageFull or StoreError when the copy cannot be written.
        """
        return await upkeep.back_up(self.store, Path(path), progress)

    async def prune(
        self,
        older_than_s: float | None = None,
        keep_events: int | None = None,
        keep_bytes: int | None = None,
        deltas: bool = False,
        progress: Progress | None = None,
    ) -> Pruned:
        """Remove whole finished sessions, the oldest first, and the deltas of finished turns; the file shrinks.

        Each rule stands for itself: sessions that ended `older_than_s` seconds ago; the oldest ones while the log has
        more than `keep_events`, or its pages take more than `keep_bytes`; with `deltas` every `*.appended` event whose
        text stands in a later `*.completed` of a turn that has ended. What is owed to extensions, jobs, reminders and
        hooks that run stays. `progress(done, total)` is in events. Raises InvalidName without a rule, or for one that
        is negative or too large.
        """
        return await upkeep.prune(self, older_than_s, keep_events, keep_bytes, deltas, progress)

    async def forget(self, *session_ids: str, progress: Progress | None = None) -> Forgot:
        """Erase what was said in these sessions, and all that was kept for them; that they were there stays.

        Their events keep index and position, and their data is `Forgotten()`. The whole file is written anew, so that
        the disk keeps nothing either; appends wait for that. Backups of before are not touched. Raises
        SessionNotFound, and ErasureIncomplete when a reader still holds the old bytes after 5 s.
        """
        return await upkeep.forget(self, session_ids, progress)

    async def vacuum(self, full: bool = False) -> Vacuumed:
        """Give unused pages back to the disk, a few at a time; with `full` by writing the whole file anew.

        Then appends wait, and as much room again is needed meanwhile.
        """
        return await upkeep.vacuum(self, full)


def _position_of(event: Event[Any]) -> int:
    return event.position
