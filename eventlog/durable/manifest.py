"""Whether an `extension.json` may be believed, and what it then says."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import msgspec

from eventlog.durable.envelope import DurableEventType
from eventlog.durable.structure import structure_faults
from eventlog.errors import Finding, ManifestError, shown

MANIFEST_NAME = "extension.json"
MAX_MANIFEST_BYTES = 256 * 1024


class Capability(StrEnum):
    """What an extension may read of a project, once it was granted."""

    TURNS_READ = "conversations.turns.read"
    JOBS_READ = "jobs.read"


CAPABILITY_OF: Mapping[DurableEventType, Capability] = MappingProxyType(
    {DurableEventType.TURN_COMPLETED: Capability.TURNS_READ, DurableEventType.JOB_COMPLETED: Capability.JOBS_READ}
)
"""The capability that each durable event needs."""


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A piece of a manifest: plain, frozen, camelCase on the wire."""


class Permission(_Part, frozen=True):
    """A request for `capability`, which an operator may grant project by project."""

    capability: Capability
    scope: str


class Operation(_Part, frozen=True):
    """An operation `id` and the handler that serves it."""

    id: str
    handler: str


class HookDeclaration(_Part, frozen=True):
    """A durable event and the handler that `activate` must register for it."""

    event: DurableEventType
    handler: str


class Engines(_Part, frozen=True):
    """The host contract that the extension was written for."""

    api: str


class Manifest(_Part, frozen=True):
    """A manifest without faults; `main` is a POSIX path relative to the extension's folder."""

    publisher: str
    name: str
    version: str
    engines: Engines
    display_name: str | None = None
    main: str | None = None
    permissions: tuple[Permission, ...] = ()
    operations: tuple[Operation, ...] = ()
    hooks: tuple[HookDeclaration, ...] = ()

    @property
    def id(self) -> str:
        """`publisher.name`, the identity beside the folder's name."""
        return f"{self.publisher}.{self.name}"

    def to_json(self) -> bytes:
        """Return it as JSON, to be kept with the installed extension."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, raw: bytes | str) -> Self:
        """Return the manifest that `to_json` wrote; it was validated then and is not again."""
        return msgspec.json.decode(raw, type=cls)


def validate_manifest(
    source: str | os.PathLike[str] | Mapping[str, Any], *, folder: str | os.PathLike[str] | None = None
) -> list[Finding]:
    """Return every fault of a manifest in one run, none if it is sound (R4, R23 to R28).

    `source` is the extension's folder, its `extension.json`, or the decoded document; `folder` is where the `main`
    of a decoded document is looked for, and without it only the form of `main` is checked. Each finding's `path`
    is a JSON pointer, such as `/hooks/0/event`; `""` is the whole document. The CLI and the host both call this.
    """
    return _examine(source, folder).findings


def load_manifest(folder: str | os.PathLike[str]) -> Manifest:
    """Return the manifest of the extension in `folder`; raises `ManifestError` with all findings."""
    examined = _examine(folder, None)
    if examined.findings:
        raise ManifestError(examined.findings)
    return msgspec.convert(examined.document, Manifest)


class _Examined(NamedTuple):
    document: Any
    findings: list[Finding]


class _NoDocumentError(Exception):
    """There is no document to look into."""

    def __init__(self, code: str, message: str) -> None:
        self.finding = _finding(code, "", message)
        super().__init__(message)


def _examine(source: str | os.PathLike[str] | Mapping[str, Any], folder: str | os.PathLike[str] | None) -> _Examined:
    root = None if folder is None else Path(folder)
    findings: list[Finding] = []
    try:
        if isinstance(source, Mapping):
            raw = _encode(source)
        else:
            path = Path(source)
            file = path / MANIFEST_NAME if path.is_dir() else path
            root = file.parent
            findings.extend(_folder_faults(root))
            raw = _read(file)
        document, duplicates = _decode(raw)
    except _NoDocumentError as unreadable:
        return _Examined(None, [*findings, unreadable.finding])
    findings.extend(duplicates)
    findings.extend(structure_faults(document))
    if isinstance(document, dict):
        findings.extend(_relation_faults(document, root))
    return _Examined(document, findings)


def _finding(code: str, path: str, message: str) -> Finding:
    return Finding(severity="error", code=code, message=message, path=path)


# ------------------------------------------------------------------------------------------ from bytes to a document


def _encode(source: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(dict(source), allow_nan=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        why = f"the manifest is not JSON: {error}; use plain JSON values"
        raise _NoDocumentError("manifest-not-json", why) from error


def _read(file: Path) -> bytes:
    if not file.exists():
        raise _NoDocumentError("manifest-missing", f"there is no {file.name} in {str(file.parent)!r}; write one")
    if not file.is_file():
        raise _NoDocumentError("manifest-missing", f"{str(file)!r} is not a file; put {MANIFEST_NAME} in its place")
    try:
        with file.open("rb") as stream:
            return stream.read(MAX_MANIFEST_BYTES + 1)
    except OSError as error:
        why = f"{str(file)!r} cannot be read: {error.strerror}; permit it"
        raise _NoDocumentError("manifest-missing", why) from error


def _decode(raw: bytes) -> tuple[Any, list[Finding]]:
    if len(raw) > MAX_MANIFEST_BYTES:
        raise _NoDocumentError("manifest-too-large", f"the manifest is over {MAX_MANIFEST_BYTES:,} bytes; shorten it")
    twice: list[Finding] = []

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        """Notice a field that stands twice in one object: a decoder keeps one and says nothing."""
        for name, times in Counter(name for name, _ in pairs).items():
            if times > 1:
                twice.append(_finding("field-duplicate", "", f"{shown(name)} stands twice in one object; keep one"))
        return dict(pairs)

    try:
        document = json.loads(raw.decode(), object_pairs_hook=fields, parse_constant=_refuse_constant)
        msgspec.json.encode(document)  # refuses lone surrogates, which JSON's escapes let through
    except (ValueError, RecursionError) as error:
        why = f"the manifest is not JSON in UTF-8: {error}; correct it"
        raise _NoDocumentError("manifest-not-json", why) from error
    return document, twice


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a JSON value")


# ------------------------------------------------------------------------------ relations: what no schema can express


def _relation_faults(document: dict[str, Any], folder: Path | None) -> Iterator[Finding]:
    yield from _main_faults(document, folder)
    yield from _permission_faults(document)
    yield from _event_faults(document)
    yield from _handler_faults(document)


def _folder_faults(folder: Path) -> Iterator[Finding]:
    """An extension is named by its folder, and `<folder>__<hook>` must be read in one way only."""
    name = folder.resolve().name
    if "__" in name or re.fullmatch(r"[A-Za-z0-9_-]+", name) is None:
        rule = "use letters, digits, '-' and single '_'"
        yield _finding("folder-name-invalid", "", f"{name!r} cannot name an extension; rename the folder: {rule}")


def _main_faults(document: dict[str, Any], folder: Path | None) -> Iterator[Finding]:
    main = document.get("main")
    if "main" not in document and document.get("hooks"):
        yield _finding("main-missing", "/main", "hooks need code; name the Python file that has activate(), as main")
    elif isinstance(main, str) and (fault := main_fault(main, folder)) is not None:
        yield _finding(fault.code, "/main", fault.message)


class MainFault(NamedTuple):
    """Why a `main` cannot be loaded."""

    code: str
    message: str


def main_fault(main: str, folder: Path | None) -> MainFault | None:
    """Return what keeps `main` from being a Python file inside `folder`, `None` if nothing does (R24)."""
    named = shown(main)
    if PurePosixPath(main).suffix != ".py" or not main.isprintable() or "\\" in main or ":" in main:
        return MainFault("main-invalid", f"{named} is not a path of a Python file; give one such as main.py")
    outside = MainFault("main-outside", f"{named} leaves the extension's folder; give a path inside of it")
    if main.startswith("/") or ".." in main.split("/"):
        return outside
    if folder is None:
        return None
    try:
        file = (folder / main).resolve()
        if not file.is_relative_to(folder.resolve()):
            return outside
        found = file.is_file()
    except (OSError, RuntimeError, ValueError):  # a loop of links, or a name that no file can have
        found = False
    return None if found else MainFault("main-not-found", f"there is no file {named}; write it, or correct main")


def _entries(document: dict[str, Any], field: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a list with their places; what is no object was reported by the schema."""
    listed = document.get(field)
    for place, entry in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(entry, dict):
            yield place, entry


def _declared_events(document: dict[str, Any]) -> Iterator[tuple[int, DurableEventType]]:
    for place, hook in _entries(document, "hooks"):
        if hook.get("event") in list(DurableEventType):
            yield place, DurableEventType(hook["event"])


def _permission_faults(document: dict[str, Any]) -> Iterator[Finding]:
    asked = [(entry.get("capability"), entry.get("scope")) for _, entry in _entries(document, "permissions")]
    for place, event in _declared_events(document):
        needed = CAPABILITY_OF[event]
        if (needed, "project") not in asked:
            add = json.dumps({"capability": needed, "scope": "project"})
            message = f"{event} needs a permission that the manifest does not ask for; add {add} to permissions"
            yield _finding("permission-missing", f"/hooks/{place}/event", message)


def _event_faults(document: dict[str, Any]) -> Iterator[Finding]:
    first: dict[DurableEventType, int] = {}
    for place, event in _declared_events(document):
        if first.setdefault(event, place) != place:
            message = f"{event} has a hook at /hooks/{first[event]} already; keep one"
            yield _finding("event-duplicate", f"/hooks/{place}/event", message)


def _handler_faults(document: dict[str, Any]) -> Iterator[Finding]:
    """Hooks and operations share one namespace of handlers (R21)."""
    first: dict[str, tuple[str, str]] = {}
    for field in ("operations", "hooks"):
        for place, entry in _entries(document, field):
            handler, here = entry.get("handler"), f"/{field}/{place}/handler"
            if not isinstance(handler, str):
                continue
            other, there = first.setdefault(handler, (field, here))
            if there != here:
                code = "handler-duplicate" if other == field else "handler-clash"
                yield _finding(code, here, f"{shown(handler)} is taken by {there}; give it another name")
