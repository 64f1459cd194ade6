"""How the site is made of the checkout: `make docs` runs Sphinx over it with this.

The source is the top level of the checkout, so that a link between two documents, or from one to a file, is the same on
the site and in the plain files. Nothing but the reference is written for the generator.
"""

from __future__ import annotations

import dataclasses
import re
from importlib.metadata import version as version_of
from types import FunctionType
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.addnodes import pending_xref
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "eventlog"
author = "the eventlog contributors"
project_copyright = f"{author}, MIT licence"
version = release = version_of("eventlog")

root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "examples/*.md", "migrations/*.md"]
exclude_patterns = [".*", "**/.*", "site", "dist"]
extensions = ["myst_parser", "sphinx.ext.autodoc"]

NAVIGATION = {
    "Begin": ["docs/tutorial", "docs/embedding", "docs/agents", "examples/README"],
    "Guides": [
        "docs/hooks",
        "docs/extensions",
        "docs/projections",
        "docs/recovery",
        "docs/operations",
        "docs/testing",
        "docs/command-line",
        "docs/open-file",
        "docs/opentelemetry",
        "docs/adapters",
    ],
    "Reference": [
        "docs/reference/log",
        "docs/reference/events",
        "docs/reference/state",
        "docs/reference/hooks",
        "docs/reference/extensions",
        "docs/reference/serving",
        "docs/reference/streaming",
        "docs/reference/adapters",
        "docs/reference/testing",
        "docs/reference/errors",
    ],
    "How it works": [
        "docs/architecture",
        "docs/glossary",
        "docs/guarantees",
        "docs/security",
        "docs/performance",
        "migrations/README",
    ],
    "The project": ["CONTRIBUTING", "CHANGELOG"],
}
"""What stands in the side bar, in this order. A page that is missing here is a warning of Sphinx, and so an error."""

# ------------------------------------------------------------------------------------------------------------- Markdown

myst_heading_anchors = 3  # headings are linked to by the same names as in other viewers
highlight_language = "none"

# ----------------------------------------------------------------------------------------------------------- docstrings

autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
toc_object_entries_show_parents = "hide"
add_module_names = False
default_role = "code_or_name"

_NAME = re.compile(r"[A-Z]\w+(\.\w+)*")


def code_or_name(
    _role: str, rawtext: str, text: str, _line: int, inliner: Any, *_: Any
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """What a docstring has between backticks: a link where it names something of the reference, else code."""
    code = nodes.literal(rawtext, text.replace("\x00", "\\"))
    environment = inliner.document.settings.env
    if not _NAME.fullmatch(text):
        return [code], []
    link = pending_xref(rawtext, code, refdomain="py", reftype="obj", reftarget=text, refwarn=False, refspecific=True)
    link.attributes.update(environment.ref_context)
    link["refdoc"] = environment.docname
    return [link], []


def miss_docstring(_app: Sphinx, _what: str, name: str, thing: object, _skip: bool, _options: object) -> None:
    """A public method or property without a docstring would be left out without a word."""
    if isinstance(thing, FunctionType | property) and not name.startswith("_") and not thing.__doc__:
        logging.getLogger(__name__).warning("%s has no docstring", getattr(thing, "__qualname__", name))


def as_restructured_text(_app: Sphinx, what: str, name: str, thing: object, _options: object, lines: list[str]) -> None:
    """Our docstrings are prose with indented code, which needs two colons here; settings say what each means."""
    if what != "attribute" and not "".join(lines).strip():
        logging.getLogger(__name__).warning("%s has no docstring", name)
    _mark_code(lines)
    if dataclasses.is_dataclass(thing) and isinstance(thing, type):
        means = {each.name: each.metadata["means"] for each in dataclasses.fields(thing) if "means" in each.metadata}
        lines += [*(f":param {setting}: {text}" for setting, text in means.items()), ""]


def readable_default(
    _app: Sphinx, _what: str, _name: str, _thing: object, _options: object, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """A default that a factory makes would keep Sphinx from reading the signature; ours make empty mappings."""
    return signature and signature.replace("<factory>", "{}"), returns


def _mark_code(lines: list[str]) -> None:
    for number in range(len(lines) - 1, 0, -1):
        if lines[number].startswith("    ") and not lines[number - 1].strip() and not _in_code(lines, number - 1):
            lines[number:number] = ["::", ""]


def _in_code(lines: list[str], number: int) -> bool:
    """Whether the last line before this one that is not empty is indented code too."""
    before = [line for line in lines[:number] if line.strip()]
    return bool(before) and before[-1].startswith("    ")


# ---------------------------------------------------------------------------------------------------------------- looks

html_theme = "furo"
html_title = "eventlog"
html_static_path = ["_static"]
html_css_files = ["wide.css"]
html_show_sphinx = False
html_copy_source = False
html_additional_pages = {"index": "start.html"}
templates_path = ["_templates"]
pygments_style = "friendly"
pygments_dark_style = "monokai"


def add_navigation(_app: Sphinx, page: str, source: list[str]) -> None:
    """The side bar hangs on the first page, whose Markdown has no need of it elsewhere."""
    if page == root_doc:
        for caption, pages in NAVIGATION.items():
            entries = "\n".join(f"/{each}" for each in pages)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{entries}\n```\n"


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_role("code_or_name", code_or_name)
    app.connect("source-read", add_navigation)
    app.connect("autodoc-skip-member", miss_docstring)
    app.connect("autodoc-process-docstring", as_restructured_text)
    app.connect("autodoc-process-signature", readable_default)
