"""What is written is harmless to a terminal, means the same as JSON, and fits."""

from __future__ import annotations

import io
import json
from datetime import UTC, datetime
from typing import TextIO

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventlog.cli import human
from eventlog.cli.human import cells, count, cut, cut_beginning, duration, size, wrapped
from eventlog.cli.output import Output, Span, escaped, escaped_lines, inert_json
from eventlog.cli.plain import microseconds, plain
from eventlog.cli.progress import rate
from eventlog.cli.table import Column, Row, table
from tests.cli_kit import HOSTILE, acting

TEXT = st.text(st.characters(exclude_categories=()))


class Stream(io.TextIOWrapper):
    """A stream that can be taken for a terminal."""

    def __init__(self, *, terminal: bool = False, encoding: str = "utf-8") -> None:
        super().__init__(io.BytesIO(), encoding=encoding)
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal

    def written(self) -> str:
        self.flush()
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode(self.encoding)


def output(stream: TextIO, width: int | None = None) -> Output:
    made = Output(stream)
    made.width = width
    return made


# ------------------------------------------------------------------------------------------------------ made harmless


@given(TEXT)
def test_nothing_that_acts_is_left_in_an_escaped_text(text: str) -> None:
    assert acting(escaped(text).replace("\u200c", "")) == set()
    assert "\n" not in escaped(text)


@given(TEXT)
def test_each_line_of_a_text_is_escaped(text: str) -> None:
    lines = escaped_lines(text)
    assert len(lines) >= 1
    assert acting("".join(lines).replace("\u200c", "")) == set()


def test_what_letters_and_emoji_are_made_of_is_left_alone() -> None:
    text = "naïve 你好 \u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 👩\u200d👧 [red]x[/red] C:\\dir"
    assert escaped(text) == text


def test_what_was_escaped_can_be_told_from_its_name() -> None:
    assert escaped("\x1b[31m\x9b\x7f\u202e\n") == r"\x1b[31m\x9b\x7f\u202e\n"


@given(st.recursive(st.none() | st.booleans() | st.integers() | TEXT, lambda inner: st.dictionaries(TEXT, inner)))
def test_e6_inert_json_is_one_line_and_means_the_same(value: object) -> None:
    line = inert_json(json.dumps(value, ensure_ascii=False))
    assert json.loads(line) == value
    assert len(line.splitlines()) == 1
    assert acting(line.replace("\u200c", "")) == set()


def test_lines_of_a_document_stay_lines() -> None:
    document = json.dumps({"a": HOSTILE, "b": 1}, ensure_ascii=False, indent=2)
    assert json.loads(inert_json(document)) == {"a": HOSTILE, "b": 1}
    assert len(inert_json(document).splitlines()) == 4


def test_what_an_encoding_cannot_write_is_escaped_and_no_error() -> None:
    stream = Stream(encoding="ascii")
    output(stream).line("naïve 你")
    assert stream.written() == "na\\xefve \\u4f60\n"


def test_styles_are_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    pipe, terminal = Stream(), Stream(terminal=True)
    for stream in (pipe, terminal):
        output(stream).line(Span("\x1b[2Jx", "bad"))
    assert pipe.written() == "\\x1b[2Jx\n"
    assert terminal.written() == "\x1b[31m\\x1b[2Jx\x1b[0m\n"


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_a_terminal_that_wants_no_styles_gets_none(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    stream = Stream(terminal=True)
    output(stream).line(Span("x", "bad"))
    assert stream.written() == "x\n"


# -------------------------------------------------------------------------------------------------------------- tables

COLUMNS = (
    Column("NAME"),
    Column("N", right=True),
    Column("EMPTY"),
    Column("WHERE", spare=1),
    Column("TEXT", long=True),
)
LONG = f"[red]long[/red] {HOSTILE} " * 3
ROWS: list[Row] = [
    (Span("a\x1b[1m", "name"), "1", "", "here", "short"),
    ("bb", "1,000", "", "there", LONG),
]


def drawn(width: int | None) -> list[str]:
    stream = Stream(terminal=width is not None)
    made = output(stream, width)
    made.colour = False
    table(made, COLUMNS, ROWS)
    return stream.written().split("\n")[:-1]


def test_a_table_in_a_pipe_is_aligned_and_whole() -> None:
    head, first, second = drawn(None)
    assert head == "NAME          N  WHERE  TEXT"
    assert first == r"a\x1b[1m      1  here   short"
    assert second == f"bb        1,000  there  {escaped(LONG)}".rstrip()


@pytest.mark.parametrize("width", [60, 80, 200])
def test_a_table_on_a_terminal_fits_and_cuts_what_is_long(width: int) -> None:
    lines = drawn(width)
    assert len(lines) == 3
    assert max(map(cells, lines)) <= width
    assert lines[2].endswith("...")
    assert acting("\n".join(lines)) == set()
    assert "[red]long[/red]" in lines[2]


def test_paths_that_are_cut_can_still_be_told_from_each_other() -> None:
    stream = Stream(terminal=True)
    columns = (Column("NAME"), Column("SOURCE", long=True, path=True))
    table(output(stream, 30), columns, [(name, f"/home/ann/agents/shop/hooks/{name}.py") for name in ("one", "two")])
    assert [line.split()[-1] for line in stream.written().splitlines()[1:]] == [
        "...nts/shop/hooks/one.py",
        "...nts/shop/hooks/two.py",
    ]


def test_a_narrow_terminal_does_without_the_spare_columns() -> None:
    assert drawn(60)[0].split() == ["NAME", "N", "WHERE", "TEXT"]
    assert drawn(30)[0].split() == ["NAME", "N", "TEXT"]


def test_a_name_that_is_too_long_for_the_terminal_is_wrapped_and_never_cut() -> None:
    stream = Stream(terminal=True)
    table(output(stream, 40), (Column("ID"), Column("N")), [("x" * 100, "1")])
    assert stream.written().count("x") == 100


def test_an_empty_table_is_nothing_in_a_pipe_and_a_word_on_a_terminal() -> None:
    pipe, terminal = Stream(), Stream(terminal=True)
    for stream in (pipe, terminal):
        made = output(stream, 80)
        made.colour = False
        table(made, COLUMNS, [], "no names")
    assert (pipe.written(), terminal.written()) == ("", "no names\n")


# ---------------------------------------------------------------------------------------------------- numbers and words


@pytest.mark.parametrize(
    ("seconds", "told"),
    [
        (-3, "0.0 s"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (42, "42 s"),
        (185, "3 min 5 s"),
        (180, "3 min"),
        (7_500, "2 h 5 min"),
        (7_205, "2 h"),
        (3_600, "1 h"),
        (90_061, "1 d 1 h"),
        (864_000, "10 d"),
    ],
)
def test_a_duration_has_its_two_largest_units(seconds: float, told: str) -> None:
    assert duration(seconds) == told


def test_numbers_are_told_with_their_nouns() -> None:
    assert [count(1, "event"), count(1_576, "event"), count(0, "session")] == ["1 event", "1,576 events", "0 sessions"]
    assert [size(0), size(1_023), size(2_023_424), size(2**50)] == ["0 B", "1023 B", "1.9 MiB", "1024.0 TiB"]


def test_a_time_to_come_is_told_from_now() -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert human.until(now, now) == "now"
    assert human.until(datetime(2026, 1, 1, 0, 1, tzinfo=UTC), now) == "in 1 min"


@given(st.text(st.sampled_from("ab 你👩"), max_size=60), st.integers(3, 20))
def test_what_is_cut_or_wrapped_fits_and_wrapping_loses_no_word(text: str, width: int) -> None:
    assert cells(cut(text, width)) <= width
    assert cells(cut_beginning(text, width)) <= width
    lines = wrapped(text, width)
    assert all(cells(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


def test_wrapping_breaks_at_spaces_and_keeps_what_a_line_is_indented_by() -> None:
    assert wrapped("  one two three", 9) == ["  one two", "three"]
    assert wrapped("x" * 7, 3) == ["xxx", "xxx", "x"]
    assert wrapped("one two", None) == ["one two"]


# ---------------------------------------------------------------------------------------------------------- plain JSON


class Told(msgspec.Struct):
    """A struct with every kind of field."""

    session_id: str
    at_us: int
    started_at: datetime
    parts: tuple[int, ...]
    nothing: None = None


def test_a_struct_is_json_with_camel_case_names_and_times() -> None:
    moment = datetime(2026, 1, 31, 23, 59, 59, 123_456, tzinfo=UTC)
    assert plain([Told("s", 1_000, moment, (1, 2))]) == [
        {
            "sessionId": "s",
            "at": "1970-01-01T00:00:00.001Z",
            "startedAt": "2026-01-31T23:59:59.123456Z",
            "parts": [1, 2],
            "nothing": None,
        }
    ]
    assert microseconds(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1


@pytest.mark.parametrize(
    ("speed", "unit", "told"), [(2.5 * 1_048_576, "bytes", "2.5 MiB/s"), (1234.4, "events", "1,234 events/s")]
)
def test_a_rate_has_a_unit_that_people_read(speed: float, unit: str, told: str) -> None:
    assert rate(speed, unit) == told


def test_a_long_column_keeps_what_it_needs_and_spare_ones_go_first() -> None:
    columns = [Column("A"), Column("B", spare=1), Column("C", long=True, least=20)]
    stream = Stream(terminal=True)
    table(output(stream, 32), columns, [("a" * 5, "b" * 5, "c" * 40)])
    assert stream.written().splitlines()[1].split() == ["aaaaa", "c" * 22 + "..."]
    stream = Stream(terminal=True)
    table(output(stream, 34), columns, [("a" * 5, "b" * 5, "c" * 40)])
    assert stream.written().splitlines()[1].split() == ["aaaaa", "bbbbb", "c" * 17 + "..."]
