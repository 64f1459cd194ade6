"""Notes that outlive a kill: lines in a file. A kill may cut a write where a page of the file ends, so each note is
written between two line feeds and closed by a dot, and one that is not whole counts as not written."""

from __future__ import annotations

import os
from pathlib import Path


def write_note(descriptor: int, text: str) -> None:
    """Append a note by one write."""
    os.write(descriptor, f"\n{text} .\n".encode())


def read_notes(path: Path) -> list[str]:
    """The whole notes, in their order."""
    return [line.removesuffix(" .") for line in path.read_text().split("\n") if line.endswith(" .")]
