"""Finds the real recorded sessions that some tests are run with, where they are at hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

VARIABLE = "EVENTLOG_REAL_DATA"
BESIDE_THE_CHECKOUT = Path(__file__).parents[2] / "shared" / "data" / "coding-agent-sessions.jsonl"


def real_data() -> Path:
    """The file of 1,576 events in 10 sessions; skips the test that asks for it where there is none."""
    path = Path(os.environ.get(VARIABLE) or BESIDE_THE_CHECKOUT)
    if not path.is_file():
        pytest.skip(f"needs the recorded sessions: set {VARIABLE}, or put them at {BESIDE_THE_CHECKOUT}")
    return path
