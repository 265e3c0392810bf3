"""Orders and answers survive their way; what is neither is refused."""

import pytest

from cosine_node.learning.child import (
    Answer,
    Comparison,
    ComparisonOrder,
    Order,
    RoundOrder,
    RoundOutcome,
    from_line,
    to_line,
)
from cosine_node.learning.decision import Acceptance


@pytest.mark.parametrize(
    "value",
    [
        RoundOrder(folder="f", number=3, base="b", shipped="s", kind="Q5_1", target="t"),
        ComparisonOrder(folder="f", earlier="e", live="l", target="t", after=7),
        Comparison(earlier=Acceptance(1, 2), live=Acceptance(2, 2)),
        RoundOutcome(
            before=Acceptance(1, 2),
            after=Acceptance(2, 2),
            trained_tokens=5,
            steps=1,
            seconds=0.5,
            nll_before={"code": 3.0},
            nll={"code": 2.5},
        ),
    ],
)
def test_it_comes_as_it_went(value: Order | Answer) -> None:
    assert from_line(to_line(value)) == value


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{}\n",
        b"[1]\n",
        b'{"error": "x"}\n',
        b'{"Comparison": {"earlier": 1}}\n',
        b'{"a": 1, "b": 2}\n',
        b"\xff\n",
    ],
)
def test_what_is_no_order_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match="no order"):
        from_line(line)
