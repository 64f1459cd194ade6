"""The error tree: one root, typed attributes, messages that help."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path

import pytest

from eventlog import errors
from eventlog.errors import EventLogError, Finding, format_findings

FINDING = Finding("error", "hook-name-invalid", "names cannot contain __", "agent/hooks/a__b.py")

EXAMPLES: list[EventLogError] = [
    errors.InvalidEvent("data.usage.inputTokens", "expected `int`, got `str`"),
    errors.InvalidName("kv key", "", "must not be empty"),
    errors.LimitExceeded("bytes of a kv value", 10, 11),
    errors.SessionNotFound("s1"),
    errors.SessionExists("s1"),
    errors.IndexConflict("s1", expected=3, actual=5),
    errors.KeyConflict("s1", "k1", "it belongs to event 4, whose data differs"),
    errors.CorruptEvent("s1", 4, 17, "its data cannot be read"),
    errors.CursorExpired(100),
    errors.VersionUnavailable("s1", "t1", 2, "it is older than seven days"),
    errors.LogClosed(),
    errors.ReadOnlyLog("agent.db"),
    errors.ForkedProcess(),
    errors.NeedsCoroutine("host.kv"),
    errors.LogInUse("agent.db", 4711),
    errors.LogInUse("agent.db", None),
    errors.NotALog("agent.db", "it is a text file"),
    errors.UnsupportedSchema("agent.db", found=9, supported=1),
    errors.LogShortened("agent.db", proven=20, found=10),
    errors.OwnershipLost("agent.db", 4711),
    errors.NetworkFileSystem("agent.db", "nfs4"),
    errors.OwnerUnreachable("agent.db", 4711, "its socket is dead"),
    errors.OwnerUnreachable("agent.db", None, "no process owns it"),
    errors.NotServed("extensions.disable", 4711),
    errors.InvalidRequest("it is not JSON"),
    errors.OutcomeUnknown("fsync failed"),
    errors.StorageFull("the disk is full"),
    errors.DamagedFile("agent.db", "a page is malformed"),
    errors.StoreError("SQLite is too old"),
    errors.ErasureIncomplete("agent.db", "a reader holds the old bytes"),
    errors.BrokenInvariant("index 4 does not follow 2"),
    errors.DiscoveryError([FINDING]),
    errors.ManifestError([FINDING, FINDING]),
    errors.ActivationError("acme", "on_turn was not registered"),
]


def tree(root: type[EventLogError]) -> set[type[EventLogError]]:
    return {root}.union(*(tree(child) for child in root.__subclasses__()))


OURS = {kind for kind in tree(EventLogError) if kind.__module__ == errors.__name__}


def test_every_error_of_the_tree_is_exercised_here() -> None:
    abstract = {EventLogError, errors._FindingsError}
    assert OURS - abstract == {type(error) for error in EXAMPLES}


def test_the_drawing_of_the_tree_names_every_error() -> None:
    drawing = errors.__doc__ or ""
    assert [kind.__name__ for kind in OURS if kind.__name__ not in drawing and not kind.__name__.startswith("_")] == []


@pytest.mark.parametrize("kind", sorted(OURS, key=repr))
def test_every_error_says_in_one_line_what_it_means(kind: type[EventLogError]) -> None:
    assert kind.__doc__
    assert "\n" not in kind.__doc__


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_an_error_survives_pickling_and_copying(error: EventLogError) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error)):  # noqa: S301
        assert type(again) is type(error)
        assert str(again) == str(error)
        assert vars(again) == vars(error)


@pytest.mark.parametrize(
    "error",
    [
        errors.SessionNotFound("s\x1b[31m\u2028"),
        errors.KeyConflict("s", "\n", "it belongs to another event"),
        errors.InvalidName("hook", "\udcff\x00", "is not a name"),
        errors.ActivationError("\x1b]0;x\x07", "no"),
    ],
    ids=repr,
)
def test_a_message_shows_no_control_character_of_what_was_given(error: EventLogError) -> None:
    assert str(error).isprintable()


def test_a_message_cuts_what_is_long() -> None:
    assert len(str(errors.SessionNotFound("s" * 1_000_000))) < 300


def test_the_attributes_are_typed_values() -> None:
    conflict = errors.IndexConflict("s1", expected=3, actual=5)
    assert (conflict.session_id, conflict.expected, conflict.actual) == ("s1", 3, 5)
    corrupt = errors.CorruptEvent("s1", 4, 17, "why")
    assert (corrupt.session_id, corrupt.index, corrupt.position, corrupt.why) == ("s1", 4, 17, "why")
    assert errors.LogInUse(Path("agent.db"), 4711).path == "agent.db"
    assert "process 4711" in str(errors.LogInUse("agent.db", 4711))


def test_an_unsupported_schema_is_not_a_log_for_us() -> None:
    assert isinstance(errors.UnsupportedSchema("agent.db", 9, 1), errors.NotALog)


def test_findings_are_one_line_each() -> None:
    warning = Finding("warning", "hook-empty", "has no events", "agent/hooks/idle.py")
    assert format_findings([FINDING, warning]) == (
        "error hook-name-invalid agent/hooks/a__b.py: names cannot contain __\n"
        "warning hook-empty agent/hooks/idle.py: has no events"
    )
    assert str(errors.DiscoveryError([FINDING, warning])) == format_findings([FINDING, warning])
    assert errors.DiscoveryError([FINDING, warning]).findings == (FINDING, warning)


def test_a_finding_is_frozen() -> None:
    with pytest.raises(AttributeError):
        FINDING.code = "other"  # type: ignore[misc]
