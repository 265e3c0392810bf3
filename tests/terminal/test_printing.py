"""Text for terminals, and the line that shows what a command waits for."""

import asyncio
import io
import logging
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_terminal import waiting
from cosine_terminal.printing import LogLines, printable, show, without_controls
from cosine_terminal.waiting import CLEAR, WaitingLine, clear, columns_of, telling_stages


@given(st.text())
def test_nothing_that_steers_a_terminal_is_printed(text: str) -> None:
    shown = printable(text)
    assert len(shown) == len(text) and "\x1b" not in shown
    assert printable(shown) == shown


@given(st.text())
def test_text_of_several_lines_keeps_all_but_what_steers_a_terminal(text: str) -> None:
    shown = without_controls(text)
    assert len(shown) == len(text)
    for before, after in zip(text, shown, strict=True):
        steers = unicodedata.category(before) == "Cc" and before not in "\t\n"
        assert after == ("\N{REPLACEMENT CHARACTER}" if steers else before)


CLIPBOARD = "\x1b]52;c;cm0gLXJmIH4=\x07"
"""OSC 52: puts a command into the clipboard of many terminals."""


class Terminal(io.StringIO):
    """A terminal of 80 columns without a file descriptor."""

    def isatty(self) -> bool:
        return True


def test_a_terminal_is_not_steered_and_a_pipe_gets_every_character() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        show(stream, f"a\tb\n{CLIPBOARD}\x9b2J")
    assert terminal.getvalue() == "a\tb\n\ufffd]52;c;cm0gLXJmIH4=\ufffd\ufffd2J"
    assert pipe.getvalue() == f"a\tb\n{CLIPBOARD}\x9b2J"
    # The log for people is sanitized too.
    record = logging.LogRecord("name", logging.INFO, "file", 1, "a peer says %s", (CLIPBOARD,), None)
    assert "\x1b" not in LogLines("%(message)s").format(record)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def _a_good_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")


def test_a_terminal_has_one_line_with_the_seconds_of_a_long_stage() -> None:
    out, clock = Terminal(), Clock()
    line = WaitingLine(out, clock=clock)
    line.say("Looking for verifiers of " + "x" * 200)
    assert len(out.getvalue().removeprefix(CLEAR)) == columns_of(out) - 1 == 79
    out.truncate(out.seek(0))
    line.say("Looking for peers")
    line.say("Looking for peers")
    clock.now_s += 3
    line.say("Looking for peers")
    line.say("Asking verifier …a")
    line.end()
    line.end()
    line.say("late")
    parts = out.getvalue().split(CLEAR)
    assert parts == ["", "Looking for peers ...", "Looking for peers ... 3 s", "Asking verifier …a ...", ""]


def test_a_terminal_that_cannot_rewrite_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = Terminal()
    line = WaitingLine(out)
    line.say("Looking for peers")
    line.say("Looking for peers")
    clear(out)
    line.end()
    line.say("late")
    assert out.getvalue() == "Looking for peers ...\n"


def test_stages_are_told_as_they_change_until_the_block_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.0)
    out = io.StringIO()
    stages = ["first"]

    async def work() -> None:
        async with telling_stages(WaitingLine(out), lambda: stages[-1]):
            assert out.getvalue() == "first ...\n"
            stages.append("second")
            for _ in range(5):
                await asyncio.sleep(0)
        stages.append("third")
        await asyncio.sleep(0)

    asyncio.run(work())
    assert out.getvalue() == "first ...\nsecond ...\n"
