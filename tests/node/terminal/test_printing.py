"""Text for terminals, and values for JSON."""

import io
import json
import logging
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from cosine_node.terminal.printing import LogLines, json_safe, printable, show, without_controls
from tests.cosine_p2p.samples import identity_of, record_of


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
    def isatty(self) -> bool:
        return True


def test_a_terminal_is_not_steered_and_a_pipe_gets_every_character() -> None:
    terminal, pipe = Terminal(), io.StringIO()
    for stream in (terminal, pipe):
        show(stream, f"a\tb\n{CLIPBOARD}\x9b2J")
    assert terminal.getvalue() == "a\tb\n\ufffd]52;c;cm0gLXJmIH4=\ufffd\ufffd2J"
    assert pipe.getvalue() == f"a\tb\n{CLIPBOARD}\x9b2J"


def test_the_log_for_people_steers_no_terminal() -> None:
    record = logging.LogRecord("name", logging.INFO, "file", 1, "a peer says %s", (CLIPBOARD,), None)
    assert "\x1b" not in LogLines("%(message)s").format(record)


def test_a_record_is_an_object_with_digests_in_hex() -> None:
    record = record_of(identity_of(1), now_s=1000.0)
    shown = json.loads(json.dumps(json_safe((record, [b"\xff"]))))
    assert shown[0]["target_digest"] == record.target_digest.hex()
    assert shown[1] == ["ff"]
