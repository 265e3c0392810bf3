"""Text for terminals, and values for JSON."""

import json
import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from cosine_node.cli.printing import json_safe, printable, without_controls
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


def test_a_record_is_an_object_with_digests_in_hex() -> None:
    record = record_of(identity_of(1), now_s=1000.0)
    shown = json.loads(json.dumps(json_safe((record, [b"\xff"]))))
    assert shown[0]["target_digest"] == record.target_digest.hex()
    assert shown[1] == ["ff"]
