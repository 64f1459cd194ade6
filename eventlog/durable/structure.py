"""Whether a manifest has the names and the structure of its JSON Schema, which ships with the package."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from eventlog.errors import Finding, shown

if TYPE_CHECKING:
    from jsonschema.protocols import Validator


def manifest_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of `extension.json` (R23)."""
    text = files("eventlog.durable").joinpath("extension-manifest.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def structure_faults(document: Any) -> Iterator[Finding]:
    """Yield everything in which a decoded manifest departs from the schema.

    What to do about it is the `description` that the schema has for the place.
    """
    for error in _validator().iter_errors(document):
        path = list(error.absolute_path)
        code, message = _fault(str(error.validator), path, error.instance, error.schema)
        yield Finding(severity="error", code=code, message=message, path=_pointer(path))


@cache
def _validator() -> Validator:
    # Imported for the first manifest only: jsonschema takes longer to import than all the rest of this package.
    from jsonschema import Draft202012Validator, ValidationError, validators

    def required(_: Any, names: list[str], instance: Any, schema: Any) -> Iterator[ValidationError]:
        """Point at the absent field itself."""
        if isinstance(instance, dict):
            yield from (ValidationError("", path=[name]) for name in names if name not in instance)

    def additional(_: Any, allowed: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
        """Point at the unknown field itself."""
        if isinstance(instance, dict):
            yield from (ValidationError("", path=[name]) for name in instance if name not in schema["properties"])

    def pattern(_: Any, expression: str, instance: Any, schema: Any) -> Iterator[ValidationError]:
        """Match to the very end: unlike JSON Schema's, Python's `$` matches before a last newline, too."""
        if isinstance(instance, str) and re.fullmatch(expression, instance) is None:
            yield ValidationError("")

    def unique(_: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[ValidationError]:
        """Point at each later one of equal items; jsonschema's own compares each with each."""
        seen: set[str] = set()
        for place, item in enumerate(instance if isinstance(instance, list) else ()):
            text = json.dumps(item, sort_keys=True)
            if text in seen:
                yield ValidationError("", path=[place], instance=item)
            seen.add(text)

    keywords = {"required": required, "additionalProperties": additional, "pattern": pattern, "uniqueItems": unique}
    kind: type[Validator] = validators.extend(Draft202012Validator, keywords)  # type: ignore[no-untyped-call]
    return kind(manifest_schema())


def _fault(keyword: str, path: list[str | int], value: Any, schema: Any) -> tuple[str, str]:
    """Return the code and message for what one keyword of the schema found at `path`."""
    field = next((step for step in reversed(path) if isinstance(step, str)), "manifest")
    advice = _advice(schema)
    match keyword:
        case "required":
            return "field-missing", f"{field} is missing; {_advice(schema['properties'][field])}"
        case "additionalProperties":
            return "field-unknown", f"{shown(field)} is not a field here; {_instead_of(field, schema)}"
        case "type":
            return "field-type", f"{shown(value)} has the wrong type; {advice}"
        case "uniqueItems":
            return "permission-duplicate", f"{shown(value)} stands here a second time; {advice}"
        case "enum" | "const":
            return f"{_kebab(field)}-unknown", f"{shown(value)} is not known; {advice}"
        case _:
            return f"{_kebab(field)}-invalid", f"{shown(value)} will not do; {advice}"


def _advice(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:  # hooks and operations share the definition of a handler
        schema = manifest_schema()["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    return str(schema["description"])


def _instead_of(field: str, schema: Mapping[str, Any]) -> str:
    nearest = difflib.get_close_matches(field, schema["properties"], n=1)
    return f"write {nearest[0]!r} or remove it" if nearest else "remove it"


def _pointer(path: list[str | int]) -> str:
    return "".join("/" + str(step).replace("~", "~0").replace("/", "~1") for step in path)


def _kebab(field: str) -> str:
    return re.sub(r"(?=[A-Z])", "-", field).lower()
