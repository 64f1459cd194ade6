"""Every number that was decided, with what it means: defaults that can be set, and limits that are fixed."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

from eventlog import encoding, errands, history, known, log, logs, messages, upkeep
from eventlog.durable import call, extension, manifest, threads, worker
from eventlog.durable.policy import DeliveryPolicy
from eventlog.folding import FoldLimits
from eventlog.host import ReminderLimits, files, hosts, kv, otel
from eventlog.observe import experiments, failures, memory, spans, strangers
from eventlog.observe.limits import ObserveLimits
from eventlog.store import (
    checking,
    cursors,
    drafting,
    erasure,
    hook_lists,
    index,
    projections,
    pruning,
    unfinished,
    usage,
    writer,
)

__all__ = ["SECTIONS", "Number", "Numbers"]


class Number(NamedTuple):
    """A setting or a limit: its value, and what it means."""

    value: Any
    means: str


Numbers = dict[str, Number]


def _of(settings: Any) -> Numbers:
    """The defaults of a dataclass whose fields say what they mean."""
    return {each.name: Number(each.default, each.metadata["means"]) for each in fields(settings)}


LOG: Numbers = {
    "durability": Number("full", 'an append that returned is on the disk; "process" leaves that to the system'),
    "wait_for_owner_s": Number(0.0, "seconds that opening waits for another owner to go"),
    "poll_s": Number(log.POLL_S, "seconds between two looks of a reader at what another process recorded"),
    "slice_rows": Number(index.SLICE_ROWS, "events that the session index absorbs at once"),
}
"""What an EventLog is given."""

AUTHORED: Numbers = {
    "memory_lines": Number(memory.KEEP_LINES, "turns that memory_hook keeps, of an agent"),
    "otel_spans": Number(spans.OPEN_SPANS, "spans that wait for their end in otel_hook"),
}
"""What hooks that are ready are given."""

LIMITS: Numbers = {
    # one event, and what is appended at once
    "event_bytes": Number(encoding.MAX_EVENT_BYTES, "bytes of the JSON of one event's data"),
    "depth": Number(encoding.MAX_DEPTH, "objects and lists inside each other"),
    "integer_characters": Number(encoding.MAX_INTEGER_CHARACTERS, "digits of an integer"),
    "batch_events": Number(encoding.MAX_BATCH_EVENTS, "events of one append_many"),
    "batch_bytes": Number(encoding.MAX_BATCH_BYTES, "bytes of one append_many"),
    "id_characters": Number(encoding.MAX_ID_CHARACTERS, "characters of the id of a session or a turn, or of a key"),
    "own_types": Number(drafting.MAX_OWN_TYPES, "event types of one log beside the vocabulary"),
    # the file and its owner
    "prune_age_s": Number(upkeep.MAX_AGE_S, "seconds of older_than_s, the age from which prune takes sessions"),
    "prune_count": Number(upkeep.MAX_COUNT, "events, and bytes, that prune can be told to keep"),
    "errands": Number(errands.MAX_RUNNING, "pieces of care for the file that other processes ask for at once"),
    "queue_events": Number(writer.MAX_QUEUE_EVENTS, "events that wait for the writer; then append waits"),
    "queue_bytes": Number(writer.MAX_QUEUE_BYTES, "the same in bytes"),
    "group_events": Number(writer.GROUP_ROWS, "events of one commit"),
    "sessions_ahead": Number(writer.MAX_SESSIONS_AHEAD, "sessions whose next index drafts remember during commits"),
    "checkpoint_pages": Number(writer.CHECKPOINT_PAGES, "pages of the WAL after which it is copied into the file"),
    "truncate_pages": Number(writer.TRUNCATE_PAGES, "pages of the WAL after which it is made shorter"),
    "recent_sessions": Number(known.RECENT_SESSIONS, "sessions whose state is kept in memory, beside those in use"),
    "message_bytes": Number(messages.MAX_MESSAGE_BYTES, "bytes of a message to or from the owner of a log"),
    "import_line_bytes": Number(history.MAX_LINE_BYTES, "bytes of a line of an import"),
    "import_named": Number(history.MAX_NAMED, "bad lines of an import that are named; further ones are counted"),
    "recovery_named": Number(unfinished.MAX_NAMED, "turns, calls, inputs, jobs that a start names; others are counted"),
    "recovery_events": Number(unfinished.MAX_EVENTS_READ, "events of open turns that a start looks through for calls"),
    "recovery_proven": Number(unfinished.PROVEN_EVENTS, "last events of a log whose checksums a start proves"),
    "forget_wait_s": Number(upkeep.READERS_LIMIT_S, "seconds that forget waits for readers which hold the old bytes"),
    "prune_events": Number(pruning.CHUNK_EVENTS, "events that one transaction of prune removes"),
    "forget_events": Number(erasure.CHUNK_EVENTS, "events that one transaction of forget overwrites"),
    "check_named": Number(checking.MAX_NAMED, "damaged events that a check names; further ones are counted"),
    # projections
    "projection_errors": Number(projections.KEPT_ERRORS, "records of events that projections could not fold, kept"),
    "projection_error_characters": Number(projections.ERROR_CHARACTERS, "characters of such a record"),
    "usage_tokens": Number(usage.MAX_TOKENS_PER_TURN, "tokens of one kind that a turn can claim, or it is not counted"),
    # observe hooks
    "kept_errors": Number(cursors.KEPT_ERRORS, "errors of handlers that are kept for `eventlog logs`"),
    "error_characters": Number(failures.MAX_CHARACTERS, "characters of such an error"),
    "traceback_characters": Number(logs.MAX_TRACEBACK_CHARACTERS, "characters of a logged traceback"),
    "counted_gap": Number(cursors.COUNTED_POSITIONS, "positions of a gap whose events are counted one by one"),
    "memory_characters": Number(memory.MAX_TEXT_CHARACTERS, "characters of each text of a line of memory_hook"),
    "memory_turns": Number(memory.OPEN_TURNS, "turns whose texts wait for their end in memory_hook"),
    "otel_payload_characters": Number(spans.MAX_PAYLOAD_CHARACTERS, "characters of a text in a span of otel_hook"),
    "ab_plain_threads": Number(experiments.PLAIN_THREADS, "threads for on_sample functions that are plain"),
    "ab_turns": Number(experiments.TURNS_LOOKED_AT, "turns back that the start of a turn is looked for, for a sample"),
    "other_agents": Number(strangers.MAX_NAMES, "agents of whose sessions it is said that no hook here sees them"),
    "other_agents_listed": Number(hook_lists.MAX_UNSERVED, "the same in `eventlog hooks`"),
    # what handlers get
    "kv_key_characters": Number(kv.MAX_KEY_CHARACTERS, "characters of a key of host.kv"),
    "kv_value_bytes": Number(kv.MAX_VALUE_BYTES, "bytes of the JSON of a value of host.kv"),
    "file_path_characters": Number(files.MAX_PATH_CHARACTERS, "characters of a path of host.files"),
    "file_bytes": Number(files.MAX_FILE_BYTES, "bytes of a file of host.files"),
    "otel_name_characters": Number(otel.MAX_NAME_CHARACTERS, "characters of a name of host.otel"),
    "otel_tags": Number(otel.MAX_TAGS, "tags of one measurement"),
    "otel_instruments": Number(otel.MAX_INSTRUMENTS, "counters and histograms of an agent"),
    "otel_series": Number(otel.MAX_SERIES, "sums of one of them, by session and tags; the longest unused are joined"),
    "otel_session_tags": Number(otel.MAX_SESSION_TAGS, "tags of sessions; the longest unchanged one goes"),
    "hosts": Number(hosts.HOSTS_KEPT, "sessions whose host is kept; of another one it is made anew"),
    # extensions
    "manifest_bytes": Number(manifest.MAX_MANIFEST_BYTES, "bytes of an extension.json"),
    "activate_s": Number(extension.ACTIVATE_LIMIT_S, "seconds for activate()"),
    "deactivate_s": Number(extension.DEACTIVATE_LIMIT_S, "seconds for deactivate()"),
    "stop_grace_s": Number(worker.STOP_GRACE_S, "seconds for calls that are underway at a stop"),
    "call_stuck_s": Number(worker.STUCK_AFTER_S, "seconds after which a call that was cut short is reported"),
    "stuck_calls": Number(threads.MAX_STUCK, "plain handlers that never return and whose threads are replaced"),
    "attempt_text_bytes": Number(call.MAX_TEXT_BYTES, "bytes that are kept of a failed attempt's error and traceback"),
}
"""Fixed."""

SECTIONS: dict[str, Numbers] = {
    "log": LOG,
    "delivery": _of(DeliveryPolicy),
    "observe": _of(ObserveLimits),
    "reminders": _of(ReminderLimits),
    "projections": _of(FoldLimits),
    "hooks": AUTHORED,
    "limits": LIMITS,
}
"""All of them: of an EventLog, its DeliveryPolicy, ObserveLimits, ReminderLimits and FoldLimits, of hooks that are
ready; and what is fixed."""
