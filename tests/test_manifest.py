"""Every fault of an `extension.json` is found, in one run, with its place."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from eventlog.durable import (
    CAPABILITY_OF,
    Capability,
    DurableEventType,
    Manifest,
    load_manifest,
    manifest_schema,
    validate_manifest,
)
from eventlog.errors import Finding, ManifestError
from eventlog.vocabulary import VOCABULARY
from tests.log_kit import UNREADABLE

Document = dict[str, Any]

SOUND: Document = {
    "publisher": "acme-labs",
    "name": "invoice-sync",
    "version": "1.4.0-beta.1+build.7",
    "displayName": "Invoices",
    "engines": {"api": "1"},
    "main": "main.py",
    "permissions": [
        {"capability": "conversations.turns.read", "scope": "project"},
        {"capability": "jobs.read", "scope": "project"},
    ],
    "operations": [{"id": "invoices.sync", "handler": "syncInvoices"}],
    "hooks": [
        {"event": "conversation.turn.completed", "handler": "onTurn"},
        {"event": "background.job.completed", "handler": "on_job_2"},
    ],
}
LEAST: Document = {"publisher": "acme", "name": "crm", "version": "0.0.0", "engines": {"api": "1"}}


def changed(change: Callable[[Document], object], document: Document = SOUND) -> Document:
    document = copy.deepcopy(document)
    change(document)
    return document


def with_value(pointer: str, value: object) -> Document:
    """The sound manifest with another value at one place."""
    *steps, last = [int(step) if step.isdigit() else step for step in pointer.split("/")[1:]]

    def put(document: Any) -> None:
        for step in steps:
            document = document[step]
        document[last] = value

    return changed(put)


def faults(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.path, finding.code) for finding in findings]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An extension with its code and no manifest yet."""
    folder = tmp_path / "acme"
    folder.mkdir()
    (folder / "main.py").write_text("def activate(context): ...\n")
    return folder


def written(folder: Path, document: object) -> Path:
    (folder / "extension.json").write_text(json.dumps(document))
    return folder


# --------------------------------------------------------------------------------------------------- sound manifests


@pytest.mark.parametrize(
    "document", [SOUND, LEAST, changed(lambda d: d.update({"$schema": "x"}))], ids=["full", "least", "$schema"]
)
def test_a_sound_manifest_has_no_findings(document: Document) -> None:
    assert validate_manifest(document) == []
    assert validate_manifest(MappingProxyType(document)) == []


def test_a_folder_its_manifest_and_the_document_are_judged_alike(folder: Path) -> None:
    """R28: one function, whatever it is given."""
    for document in (SOUND, with_value("/hooks/0/event", "turn.started"), with_value("/main", "gone.py")):
        written(folder, document)
        expected = validate_manifest(document, folder=folder)
        assert validate_manifest(folder) == expected
        assert validate_manifest(str(folder)) == expected
        assert validate_manifest(folder / "extension.json") == expected


def test_a_loaded_manifest_says_what_the_file_says(folder: Path) -> None:
    manifest = load_manifest(written(folder, SOUND))
    assert manifest.id == "acme-labs.invoice-sync"
    assert (manifest.version, manifest.display_name, manifest.main) == ("1.4.0-beta.1+build.7", "Invoices", "main.py")
    assert [(hook.event, hook.handler) for hook in manifest.hooks] == [
        (DurableEventType.TURN_COMPLETED, "onTurn"),
        (DurableEventType.JOB_COMPLETED, "on_job_2"),
    ]
    assert [permission.capability for permission in manifest.permissions] == list(Capability)
    assert [(operation.id, operation.handler) for operation in manifest.operations] == [
        ("invoices.sync", "syncInvoices")
    ]
    assert json.loads(manifest.to_json()) == SOUND
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_manifest_with_faults_is_not_loaded_and_all_of_them_are_named(folder: Path) -> None:
    written(folder, changed(lambda d: d.update(version="1", publisher="Acme")))
    with pytest.raises(ManifestError) as caught:
        load_manifest(folder)
    assert sorted(faults(list(caught.value.findings))) == [
        ("/publisher", "publisher-invalid"),
        ("/version", "version-invalid"),
    ]
    assert "1.4.0" in str(caught.value)


def test_one_run_reports_every_fault_with_its_place(folder: Path) -> None:
    document = {
        "publisher": "acme",
        "name": "Two Words",
        "version": "one",
        "engines": {"api": "2"},
        "colour": "red",
        "main": "../main.py",
        "permissions": [{"capability": "jobs.read", "scope": "global"}],
        "operations": [{"id": "sync", "handler": "onTurn"}],
        "hooks": [
            {"event": "turn.started", "handler": "2nd"},
            {"event": "conversation.turn.completed", "handler": "onTurn"},
            {"event": "background.job.completed", "handler": "onJob"},
            {"event": "background.job.completed", "handler": "onJob"},
            {"handler": "more"},
        ],
    }
    findings = validate_manifest(written(folder, document))
    assert sorted(faults(findings)) == [
        ("/colour", "field-unknown"),
        ("/engines/api", "api-unknown"),
        ("/hooks/0/event", "event-unknown"),
        ("/hooks/0/handler", "handler-invalid"),
        ("/hooks/1/event", "permission-missing"),
        ("/hooks/1/handler", "handler-clash"),
        ("/hooks/2/event", "permission-missing"),
        ("/hooks/3/event", "event-duplicate"),
        ("/hooks/3/event", "permission-missing"),
        ("/hooks/3/handler", "handler-duplicate"),
        ("/hooks/4/event", "field-missing"),
        ("/main", "main-outside"),
        ("/name", "name-invalid"),
        ("/permissions/0/scope", "scope-unknown"),
        ("/version", "version-invalid"),
    ]
    assert {finding.severity for finding in findings} == {"error"}
    assert [finding for finding in findings if ";" not in finding.message] == []  # what is wrong; what to do


# ------------------------------------------------------------------------------------------------ names and structure


def test_r23_the_shipped_schema_is_a_json_schema_2020_12_that_allows_no_other_field() -> None:
    schema = manifest_schema()
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    objects = [
        schema,
        schema["properties"]["engines"],
        *(schema["properties"][name]["items"] for name in ("permissions", "operations", "hooks")),
    ]
    assert [part["additionalProperties"] for part in objects] == [False] * 5


def test_the_schema_alone_judges_structure_as_we_do() -> None:
    """R23: an editor that knows only the schema reports the same places."""
    plain = Draft202012Validator(manifest_schema())
    for document in (SOUND, LEAST):
        assert list(plain.iter_errors(document)) == []
    for pointer in (
        "/publisher",
        "/version",
        "/hooks/0/event",
        "/hooks/1/handler",
        "/engines/api",
        "/permissions/0/scope",
    ):
        (error,) = plain.iter_errors(with_value(pointer, "no such thing!"))
        assert error.json_path == "$" + "".join(f"[{s}]" if s.isdigit() else f".{s}" for s in pointer.split("/")[1:])


def test_the_schema_and_the_enums_name_the_same_events_and_capabilities() -> None:
    properties = manifest_schema()["properties"]
    assert properties["hooks"]["items"]["properties"]["event"]["enum"] == list(DurableEventType)
    assert properties["permissions"]["items"]["properties"]["capability"]["enum"] == list(Capability)
    assert set(CAPABILITY_OF) == set(DurableEventType)


@pytest.mark.parametrize(
    "event",
    [
        *VOCABULARY,
        "*",
        "message.*",
        "turn.*",
        "extension.activated",
        "",
        "conversation.turn.completed\n",
        None,
        7,
        ["conversation.turn.completed"],
    ],
)
def test_r4_every_other_event_is_refused(event: object) -> None:
    """R3, R49, R50: no stream and no lifecycle event either."""
    assert faults(validate_manifest(with_value("/hooks/1/event", event))) == [("/hooks/1/event", "event-unknown")]


INVALID: list[tuple[str, object, str]] = [
    *(
        ("/publisher", value, "publisher-invalid")
        for value in ("", "Acme", "-a", "a-", "a--b", "a_b", "a.b", "ä", "a\n", "a" * 129)
    ),
    *(("/name", value, "name-invalid") for value in ("", "CRM", "a b", "a\n", "a" * 129)),
    *(
        ("/version", value, "version-invalid")
        for value in ("1", "1.0", "v1.0.0", "01.0.0", "1.0.0-", "1.0.0-01", "1.0.0+", "1.0.0\n", "\u0661.0.0")
    ),
    *(("/displayName", value, "display-name-invalid") for value in ("", "x" * 257)),
    *(("/engines/api", value, "api-unknown") for value in ("2", "", 1, None)),
    *(
        (f"/{place}/handler", value, "handler-invalid")
        for place in ("hooks/0", "operations/0")
        for value in ("", "1st", "_a", "a-b", "a.b", "onTurn\n", "é", "a" * 129)
    ),
    *(("/operations/0/id", value, "id-invalid") for value in ("", "x" * 129)),
    *(("/permissions/0/capability", value, "capability-unknown") for value in ("admin", "", None)),
]


@pytest.mark.parametrize(("pointer", "value", "code"), INVALID)
def test_r27_a_bad_value_is_refused_where_it_stands(pointer: str, value: object, code: str) -> None:
    found = [
        fault for fault in faults(validate_manifest(with_value(pointer, value))) if fault[1] != "permission-missing"
    ]
    assert found == [(pointer, code)]


@pytest.mark.parametrize(
    ("pointer", "longest"),
    [("/publisher", 128), ("/name", 128), ("/hooks/0/handler", 128), ("/operations/0/id", 128), ("/displayName", 256)],
)
def test_each_text_may_be_as_long_as_its_limit(pointer: str, longest: int) -> None:
    assert validate_manifest(with_value(pointer, "a" * longest)) == []


@pytest.mark.parametrize(
    "pointer",
    [
        "/publisher",
        "/name",
        "/version",
        "/displayName",
        "/engines",
        "/main",
        "/permissions",
        "/operations",
        "/hooks",
        "/hooks/0",
        "/operations/0",
        "/permissions/0",
        "/hooks/0/handler",
    ],
)
@pytest.mark.parametrize("value", [None, 1, True, 1.5])
def test_a_value_of_another_type_is_refused_where_it_stands(pointer: str, value: object) -> None:
    assert (pointer, "field-type") in faults(validate_manifest(with_value(pointer, value)))


@pytest.mark.parametrize("document", [[], "x", 1, None, True])
def test_a_manifest_that_is_no_object_is_refused(folder: Path, document: object) -> None:
    assert faults(validate_manifest(written(folder, document))) == [("", "field-type")]


@pytest.mark.parametrize("name", LEAST)
def test_each_required_field_is_missed(name: str) -> None:
    assert faults(validate_manifest(changed(lambda d: d.pop(name)))) == [(f"/{name}", "field-missing")]


@pytest.mark.parametrize(
    ("pointer", "name"),
    [
        ("/engines", "api"),
        ("/permissions/0", "capability"),
        ("/permissions/0", "scope"),
        ("/operations/0", "id"),
        ("/operations/0", "handler"),
        ("/hooks/0", "event"),
        ("/hooks/0", "handler"),
    ],
)
def test_each_required_field_of_a_part_is_missed(pointer: str, name: str) -> None:
    findings = validate_manifest(with_value(pointer, {}))
    assert (f"{pointer}/{name}", "field-missing") in faults(findings)


@pytest.mark.parametrize("pointer", ["", "/engines", "/permissions/0", "/operations/0", "/hooks/0"])
def test_an_unknown_field_is_refused_everywhere(pointer: str) -> None:
    assert faults(validate_manifest(with_value(f"{pointer}/extra", 1))) == [(f"{pointer}/extra", "field-unknown")]


def test_an_unknown_field_that_is_nearly_a_known_one_is_told_its_name() -> None:
    (finding,) = validate_manifest(with_value("/dispayName", "x"))
    assert "'displayName'" in finding.message


def test_a_pointer_escapes_what_json_pointer_says() -> None:
    assert faults(validate_manifest(changed(lambda d: d.update({"a/b~c": 1})))) == [("/a~1b~0c", "field-unknown")]


# ---------------------------------------------------------------------------------------------------------- relations


def test_r24_hooks_without_main_are_refused() -> None:
    assert faults(validate_manifest(changed(lambda d: d.pop("main")))) == [("/main", "main-missing")]
    assert validate_manifest(changed(lambda d: [d.pop("main"), d.pop("hooks")])) == []


def test_r24_a_main_that_is_not_there_is_refused(folder: Path) -> None:
    (folder / "sub.py").mkdir()
    (folder / "loop.py").symlink_to("loop.py")
    for main in ("gone.py", "deep/gone.py", "sub.py", "loop.py", "x" * 250 + ".py"):
        assert faults(validate_manifest(written(folder, with_value("/main", main)))) == [("/main", "main-not-found")]


@pytest.mark.parametrize("main", ["../acme/main.py", "/etc/main.py", "sub/../../main.py", "sub/../main.py"])
def test_r24_a_main_outside_of_the_folder_is_refused(folder: Path, main: str) -> None:
    assert faults(validate_manifest(written(folder, with_value("/main", main)))) == [("/main", "main-outside")]


def test_r24_a_link_out_of_the_folder_is_refused_and_one_inside_is_not(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "main.py").write_text("")
    (folder / "out.py").symlink_to(tmp_path / "evil.py")
    (folder / "away").symlink_to(tmp_path / "elsewhere")
    (folder / "in.py").symlink_to("main.py")
    for main in ("out.py", "away/main.py"):
        assert faults(validate_manifest(written(folder, with_value("/main", main)))) == [("/main", "main-outside")]
    assert validate_manifest(written(folder, with_value("/main", "in.py"))) == []


def test_a_folder_that_is_itself_reached_by_a_link_is_fine(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(written(folder, SOUND))
    assert validate_manifest(tmp_path / "link") == []


@pytest.mark.parametrize(
    "main", ["main.js", "main", ".py", "", "..", "main.py\n", "a\\main.py", "C:main.py", "main\0.py", "main.PY"]
)
def test_r24_a_main_that_is_no_path_of_a_python_file_is_refused(folder: Path, main: str) -> None:
    assert faults(validate_manifest(written(folder, with_value("/main", main)))) == [("/main", "main-invalid")]


def test_a_main_deeper_in_the_folder_is_fine(folder: Path) -> None:
    (folder / "src").mkdir()
    (folder / "src" / "start-here.py").write_text("")
    assert validate_manifest(written(folder, with_value("/main", "src/start-here.py"))) == []
    assert validate_manifest(written(folder, with_value("/main", "./main.py"))) == []


@pytest.mark.parametrize(("place", "capability"), [(0, "conversations.turns.read"), (1, "jobs.read")])
def test_r25_a_hook_without_its_project_permission_is_refused(place: int, capability: str) -> None:
    without = changed(lambda d: d["permissions"].pop(place))
    (finding,) = validate_manifest(without)
    assert (finding.path, finding.code) == (f"/hooks/{place}/event", "permission-missing")
    assert capability in finding.message


def test_r25_a_permission_of_another_scope_is_not_enough() -> None:
    assert faults(validate_manifest(with_value("/permissions/0/scope", "user"))) == [
        ("/permissions/0/scope", "scope-unknown"),
        ("/hooks/0/event", "permission-missing"),
    ]


def test_a_permission_without_a_hook_is_fine() -> None:
    assert validate_manifest(changed(lambda d: d["hooks"].pop())) == []


def test_a_permission_that_stands_twice_is_refused() -> None:
    twice = changed(lambda d: d["permissions"].append(dict(reversed(d["permissions"][0].items()))))
    assert faults(validate_manifest(twice)) == [("/permissions/2", "permission-duplicate")]


def test_r26_a_second_hook_of_one_event_is_refused() -> None:
    document = with_value("/hooks/1/event", "conversation.turn.completed")
    (finding,) = validate_manifest(document)
    assert (finding.path, finding.code) == ("/hooks/1/event", "event-duplicate")
    assert "/hooks/0" in finding.message


@pytest.mark.parametrize(
    ("pointer", "handler", "code"),
    [
        ("/hooks/1/handler", "onTurn", "handler-duplicate"),
        ("/hooks/1/handler", "syncInvoices", "handler-clash"),
    ],
)
def test_r21_hooks_and_operations_share_one_namespace(pointer: str, handler: str, code: str) -> None:
    assert faults(validate_manifest(with_value(pointer, handler))) == [(pointer, code)]


def test_r21_two_operations_of_one_handler_are_refused() -> None:
    twice = changed(lambda d: d["operations"].append({"id": "other", "handler": "syncInvoices"}))
    assert faults(validate_manifest(twice)) == [("/operations/1/handler", "handler-duplicate")]


@pytest.mark.parametrize("name", ["a__b", "a.b", "a b", "ä"])
def test_a_folder_whose_name_could_be_read_in_two_ways_is_refused(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    assert faults(validate_manifest(written(folder, LEAST))) == [("", "folder-name-invalid")]


# -------------------------------------------------------------------------------------------------------- what is read


def test_a_missing_manifest_is_a_finding(folder: Path, tmp_path: Path) -> None:
    for source in (folder, folder / "extension.json"):
        assert faults(validate_manifest(source)) == [("", "manifest-missing")]
    (folder / "extension.json").mkdir()
    assert faults(validate_manifest(folder)) == [("", "manifest-missing")]
    assert faults(validate_manifest(tmp_path / "nowhere" / "extension.json")) == [("", "manifest-missing")]


@pytest.mark.skipif(not UNREADABLE.exists(), reason="needs Linux's /proc")
def test_a_manifest_that_cannot_be_read_is_a_finding(folder: Path) -> None:
    (folder / "extension.json").symlink_to(UNREADABLE)
    (finding,) = validate_manifest(folder)
    assert faults([finding]) == [("", "manifest-missing")]
    assert "cannot be read: Input/output error" in finding.message


def test_a_manifest_that_is_no_file_is_not_waited_for(folder: Path) -> None:
    os.mkfifo(folder / "extension.json")
    assert faults(validate_manifest(folder)) == [("", "manifest-missing")]


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"{'name': 1}",
        b"\xff\xfe",
        b"\xef\xbb\xbf{}",
        b'{"name": NaN}',
        b'{"name": "\\ud800"}',
        b'{"name": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"name": ' + b"9" * 5_000 + b"}",
    ],
)
def test_what_is_not_json_is_a_finding(folder: Path, raw: bytes) -> None:
    (folder / "extension.json").write_bytes(raw)
    assert faults(validate_manifest(folder)) == [("", "manifest-not-json")]


@pytest.mark.parametrize("value", [{1, 2}, b"x", float("nan"), object()])
def test_a_document_that_json_cannot_hold_is_a_finding(value: object) -> None:
    assert faults(validate_manifest(with_value("/name", value))) == [("", "manifest-not-json")]


def test_a_document_that_contains_itself_is_a_finding() -> None:
    assert faults(validate_manifest(changed(lambda d: d.update(hooks=d)))) == [("", "manifest-not-json")]


@pytest.mark.parametrize("depth", [65, 500, 900])
@pytest.mark.parametrize("name", ["hooks", "permissions", "extra"])
def test_deep_nesting_is_a_finding_and_no_crash(folder: Path, name: str, depth: int) -> None:
    nested = "[" * depth + "]" * depth
    raw = json.dumps(SOUND | {name: 0}).replace(f'"{name}": 0', f'"{name}": {nested}')
    (folder / "extension.json").write_text(raw)
    assert any(finding.path.startswith(f"/{name}") for finding in validate_manifest(folder))


def test_256_kib_are_read_and_not_one_byte_more(folder: Path) -> None:
    raw = json.dumps(SOUND).encode()
    file = folder / "extension.json"
    file.write_bytes(raw + b" " * (256 * 1024 - len(raw)))
    assert validate_manifest(folder) == []
    file.write_bytes(raw + b" " * (256 * 1024 - len(raw) + 1))
    assert faults(validate_manifest(folder)) == [("", "manifest-too-large")]
    assert faults(validate_manifest(SOUND | {"displayName": "x" * 262_144})) == [("", "manifest-too-large")]


def test_a_field_that_stands_twice_is_a_finding(folder: Path) -> None:
    raw = json.dumps(SOUND).replace(
        '"event": "conversation.turn.completed"', '"event": "turn.started", "event": "conversation.turn.completed"'
    )
    (folder / "extension.json").write_text(raw)
    (finding,) = validate_manifest(folder)
    assert (finding.code, "'event'" in finding.message) == ("field-duplicate", True)


def test_a_manifest_of_many_permissions_is_judged_in_no_time() -> None:
    many = [{"capability": number} for number in range(10_000)]
    assert len(validate_manifest(SOUND | {"permissions": many})) == 20_002


anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.sampled_from([*SOUND, "event", "handler", "api", "id"]), inner)
    ),
    max_leaves=20,
)


@given(name=st.sampled_from(sorted(SOUND)), value=anything)
def test_whatever_a_field_holds_only_findings_come_out(name: str, value: Any) -> None:
    document = SOUND | {name: value}
    ours = validate_manifest(document)
    theirs = list(Draft202012Validator(manifest_schema()).iter_errors(document))
    assert all(finding.message and finding.code for finding in ours)
    assert not theirs or ours
