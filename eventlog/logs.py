"""Loggers for errors of code that is not ours: what they quote acts on no terminal, and fakes no line of a log."""

from __future__ import annotations

import logging
import traceback
from functools import cache

from eventlog.errors import escaped

MAX_TRACEBACK_CHARACTERS = 65_536
"""Of one traceback; of a longer one the middle is left out."""

_INDENT = "  "


@cache
def harmless_logger(name: str) -> logging.Logger:
    """The logger of this name, for records with `exc_info`.

    What a handler raises may quote a payload, and a payload anything. So the traceback is made here, where every
    formatter finds it: with control characters escaped, and indented, so that no line of it looks like a record.
    """
    logger = logging.getLogger(name)
    logger.addFilter(_write_traceback)
    return logger


def _write_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and record.exc_info[1] is not None and not record.exc_text:
        record.exc_text = harmless_traceback(record.exc_info[1])
    return True


def harmless_traceback(error: BaseException) -> str:
    """The traceback of an error; whatever its own methods do, there is one."""
    try:
        text = _cut("".join(traceback.format_exception(error)))
    except Exception as worse:  # of a `__str__`, a `__cause__` or `__notes__` of the user's own
        text = f"<the traceback of {type(error).__name__} cannot be written: {type(worse).__name__}>"
    return "\n".join(_INDENT + escaped(line) for line in text.split("\n") if line)


def harmless_text(error: BaseException) -> str:
    """An error's type and text in one line; the type alone when its text cannot be made."""
    try:
        return f"{type(error).__name__}: {escaped(str(error))}"
    except Exception:  # of a `__str__` of the user's own
        return type(error).__name__


def _cut(text: str) -> str:
    """Where it begins and where it ends tell the most."""
    half = MAX_TRACEBACK_CHARACTERS // 2
    return text if len(text) <= MAX_TRACEBACK_CHARACTERS else f"{text[:half]}\n[...]\n{text[-half:]}"
