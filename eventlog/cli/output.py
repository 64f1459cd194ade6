"""The one way to stdout and stderr: nothing that could act on a terminal passes, and a reader that left is noticed."""

from __future__ import annotations

import json
import logging
import os
import select
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, TextIO
from unicodedata import category

import click

# Control characters, invisible ones (bidi controls, zero width spaces, tags), surrogates, and breaks of lines.
_UNSAFE = {"Cc", "Cf", "Cs", "Zl", "Zp"}
_JOINERS = {"\u200c", "\u200d"}  # parts of letters and of emoji, which move nothing
_TAB = "    "

_STYLES: dict[str, dict[str, Any]] = {
    "title": {"bold": True},
    "dim": {"dim": True},
    "good": {"fg": "green"},
    "wait": {"fg": "yellow"},
    "bad": {"fg": "red"},
    "name": {"fg": "cyan"},
}


class OutputClosed(Exception):
    """Whoever read stdout has gone."""


class OutputFailed(Exception):
    """What was to be shown cannot be written."""


class Span(NamedTuple):
    """A piece of a line; `style` (title, dim, good, wait, bad, name) shows on a terminal with colours."""

    text: str
    style: str = ""


Piece = str | Span


# ------------------------------------------------------------------------------------------------------ made harmless


def escaped(text: str) -> str:
    """`text` on one line and without effect on a terminal: what could act is written out, as `\\x1b` or `\\u202e`."""
    if text.isprintable():
        return text
    return "".join(ascii(c)[1:-1] if _is_unsafe(c) else c for c in text)


def escaped_lines(text: str) -> list[str]:
    """The lines of `text`, each without effect on a terminal; tabs are spaces."""
    plain = text.replace("\r\n", "\n").replace("\t", _TAB)
    return [escaped(line) for line in plain.removesuffix("\n").split("\n")]


def inert_json(text: str) -> str:
    """JSON that means the same and has no such character, line ends between its values excepted."""
    if text.isprintable():
        return text
    return "".join(_json_escape(c) if _is_unsafe(c) and c != "\n" else c for c in text)


def _json_escape(character: str) -> str:
    # DEL is the one control character that JSON does not ask to be escaped.
    return "\\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def _is_unsafe(character: str) -> bool:
    if character.isprintable():
        return False
    return category(character) in _UNSAFE and character not in _JOINERS


# -------------------------------------------------------------------------------------------------------------- streams


class Output:
    """Stdout or stderr. `width` is None where lines are neither cut nor wrapped: in a pipe and in a file."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream
        self.is_terminal = stream.isatty()
        self.width = shutil.get_terminal_size().columns if self.is_terminal else None
        self.colour = self.is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self._encoding = getattr(stream, "encoding", None) or "utf-8"
        self.unicode = self._encoding.lower().startswith("utf")

    def line(self, *pieces: Piece) -> None:
        """Write one line."""
        self.harmless("".join(self.painted(piece) for piece in pieces) + "\n")

    def painted(self, piece: Piece) -> str:
        """A piece as it is written: harmless, and styled where there are colours."""
        text, style = piece if isinstance(piece, Span) else (piece, "")
        safe = escaped(text)
        return click.style(safe, **_STYLES[style]) if style and self.colour else safe

    def json(self, value: Any) -> None:
        """Write one JSON document."""
        self._write((inert_json(json.dumps(value, ensure_ascii=False, indent=2)) + "\n").encode())

    def json_line(self, value: Any, end: str = "\n") -> None:
        """Write a value as one line of JSON."""
        self.json_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")), end)

    def json_text(self, text: str, end: str = "\n") -> None:
        """Write a line of what is JSON already, such as an event's stored bytes."""
        self._write(f"{inert_json(text)}{end}".encode())

    def harmless(self, text: str) -> None:
        """Write text that was made harmless before."""
        self._write(text.encode(self._encoding, "backslashreplace"))

    def raw(self, data: bytes) -> None:
        """Write bytes as they are, into a pipe or a file: they are not for a terminal."""
        assert not self.is_terminal
        self._write(data)

    def flush(self) -> None:
        """Hand over what was written so far."""
        with _writing:
            self.stream.flush()

    def _write(self, data: bytes) -> None:
        with _writing:
            self.stream.buffer.write(data)


class _Writing:
    """Whether the process is inside of a write, where a reader that does not read can hold it for ever."""

    def __init__(self) -> None:
        self.now = False
        self.stopped = False

    def __enter__(self) -> None:
        self.now = True  # before the look at `stopped`: a signal in between is seen by one of the two
        if self.stopped:
            self.now = False
            raise KeyboardInterrupt

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.now = False
        if isinstance(error, BrokenPipeError):
            raise OutputClosed from None
        if isinstance(error, OSError):
            raise OutputFailed(error.strerror or str(error)) from None


_writing = _Writing()


def stop_writing() -> None:
    """For a handler of signals: raise KeyboardInterrupt out of the write that the process is in, or out of its next."""
    _writing.stopped = True
    if _writing.now:
        raise KeyboardInterrupt


def may_write() -> None:
    """Take that back."""
    _writing.stopped = False


def out() -> Output:
    """Stdout."""
    return Output(sys.stdout)


def err() -> Output:
    """Stderr."""
    return Output(sys.stderr)


def note(*pieces: Piece) -> None:
    """Say something beside the output, on stderr; nobody has to be there to read it."""
    aside("eventlog: ", *pieces)


def aside(*pieces: Piece, end: str = "\n") -> None:
    """The same as it is."""
    stream = err()
    try:
        stream.flush()  # what was printed goes before
        stream.harmless("".join(map(stream.painted, pieces)) + end)
        stream.flush()
    except (OutputClosed, OutputFailed, KeyboardInterrupt):
        silence(stream)


class Notes(logging.Handler):
    """What the library logs, as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say it."""
        note(record.getMessage())


@contextmanager
def unsaid(logger_name: str) -> Iterator[None]:
    """No notes of what a logger of the library says, where a command says the same by itself."""

    def none(_record: logging.LogRecord) -> bool:
        return False

    logger = logging.getLogger(logger_name)
    logger.addFilter(none)
    try:
        yield
    finally:
        logger.removeFilter(none)


# ------------------------------------------------------------------------------------- readers that leave or never came


def occupy_closed_descriptors() -> None:
    """Open /dev/null where stdin, stdout or stderr are closed; else a file of ours would get their number."""
    _reader.never_came = sys.stdout is None
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            number = os.open(os.devnull, os.O_RDWR)  # the lowest that is free
            setattr(sys, name, os.fdopen(number, mode))


def silence(stream: Output) -> None:
    """Let all that is still written to the stream, by the interpreter at its end too, go nowhere."""
    try:
        number = stream.stream.fileno()
    except OSError:  # it is no file
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)


class _Reader:
    never_came = False


_reader = _Reader()


def reader_left() -> bool:
    """Whether nobody reads stdout (any more); finds out without writing."""
    try:
        number = sys.stdout.fileno()
    except OSError:  # it is no file
        return False
    poll = select.poll()
    poll.register(number, 0)
    gone = select.POLLERR | select.POLLHUP | select.POLLNVAL
    return _reader.never_came or any(event & gone for _, event in poll.poll(0))
