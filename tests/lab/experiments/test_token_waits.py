"""What texts over a ring of stages waited for, token by token."""

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from cosine_lab.emulation.traces import DrafterTrace, Trace
from cosine_lab.experiments.experiment import CellResult
from cosine_lab.experiments.token_waits import Wait, waits_of
from cosine_lab.simulation.verifiers import FeedNotes, TokenTimes


def text_of(stream: tuple[int, ...], *, offered: set[int]) -> Trace:
    """A text of which one drafter offers the tokens at these positions, and wrong ones elsewhere."""
    rows = [[token if place in offered else 99, *range(100, 107)] for place, token in enumerate(stream)]
    zeros = np.zeros(len(stream), np.float32)
    own = DrafterTrace(np.array(rows, np.int32), np.full((len(stream), 8), 0.1, np.float32), zeros, zeros, 1.0)
    return Trace(1, "code", "test", 0.0, 0, 10, stream, (False,) * len(stream), {"draft-a": own})


def waited(*tokens: TokenTimes, offered: set[int], ended_s: float) -> dict[Wait, float]:
    """Milliseconds in all, for a text that began at 0."""
    stream = tuple(range(1, 1 + len(tokens)))
    results = [SimpleNamespace(began_s=0.0, seconds=ended_s)]
    report = SimpleNamespace(results=results, tokens=len(tokens))
    run = SimpleNamespace(report=report, feeds=[FeedNotes(list(tokens))])
    found = waits_of(cast(CellResult, run), [text_of(stream, offered=offered)])
    assert sum(found.ms.values()) * len(tokens) == pytest.approx(1e3 * ended_s)
    return {wait: ms * len(tokens) for wait in Wait if (ms := found.ms[wait.value]) > 0.0}


def test_plain_decoding_waits_for_a_traversal_with_each_token() -> None:
    tokens = [TokenTimes(known_s=0.2 * n, fed_s=0.2 * n) for n in (1, 2)]
    assert waited(*tokens, TokenTimes(known_s=0.6), offered=set(), ended_s=0.6) == {
        Wait.START: pytest.approx(200.0),
        Wait.NOT_OFFERED: pytest.approx(200.0),
        Wait.END: pytest.approx(200.0),
    }


def test_a_draft_is_waited_for_until_it_stands_and_then_until_it_is_fed() -> None:
    first = TokenTimes(known_s=0.2, fed_s=0.2)
    second = TokenTimes(known_s=0.4, stood_s=0.23, fed_s=0.25)
    assert waited(first, second, TokenTimes(known_s=0.45), offered={1}, ended_s=0.45) == {
        Wait.START: pytest.approx(200.0),
        Wait.DRAFT: pytest.approx(30.0),
        Wait.TURN: pytest.approx(20.0),
        Wait.END: pytest.approx(200.0),
    }


@pytest.mark.parametrize(
    ("stood_s", "offered", "wait", "ms"),
    [(None, {1}, Wait.NOT_SENT, 200.0), (None, set(), Wait.NOT_OFFERED, 200.0), (0.2, {1}, Wait.NOT_FED, 200.0)],
)
def test_a_token_that_was_fed_once_it_was_known_says_why(
    stood_s: float | None, offered: set[int], wait: Wait, ms: float
) -> None:
    first = TokenTimes(known_s=0.2, fed_s=0.2)
    second = TokenTimes(known_s=0.4, stood_s=stood_s, fed_s=0.4)
    found = waited(first, second, TokenTimes(known_s=0.6), offered=offered, ended_s=0.6)
    assert found[wait] == pytest.approx(ms)
    assert found.keys() == {Wait.START, wait, Wait.END}
