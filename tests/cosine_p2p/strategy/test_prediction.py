"""Tests of drafts from a predicted text."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.strategy.prediction import MAX_CHAIN, MAX_STRAY_CHAIN, STRAY_PROBABILITIES, Prediction
from cosine_protocol.draft import BASE, MAX_BLOCK_NODES, Node, NodeBlock

TEXT = tuple(range(100, 160))


def chains(nodes: Sequence[Node]) -> list[list[int]]:
    found: list[list[int]] = []
    for node in nodes:
        if node.parent == BASE:
            found.append([])
        found[-1].append(node.token)
    return found


def after(output: Sequence[int], text: Sequence[int] = TEXT) -> Prediction:
    prediction = Prediction(text)
    prediction.follow(output)
    return prediction


@pytest.mark.parametrize(
    ("output", "goes_on_at"),
    [([*TEXT[:10], 7], 11), ([*TEXT[:10], 7, 8], 12), ([*TEXT[:10], TEXT[14]], 15), ([7, 8], 0)],
    ids=["another token", "other tokens", "some left out", "new tokens before it"],
)
def test_where_it_was_left_it_is_drafted_where_it_may_come_back(output: list[int], goes_on_at: int) -> None:
    drafted = chains(after(output).draft())
    assert list(TEXT[goes_on_at : goes_on_at + MAX_STRAY_CHAIN]) in drafted
    assert len(drafted) <= len(STRAY_PROBABILITIES)
    # Two tokens later it is sure of that.
    (chain,) = chains(after([*output, *TEXT[goes_on_at : goes_on_at + 2]]).draft())
    assert chain == list(TEXT[goes_on_at + 2 :][:MAX_CHAIN])


def test_each_of_its_tokens_counts_once_where_it_came() -> None:
    output = [*TEXT[:10], 7, *TEXT[11:20], 8, 9, *TEXT[20:30], *TEXT[33:]]
    # The one in place of another and the three left out did not come; the first after these was not expected.
    assert after(output).accepted == len(TEXT) - 1 - 3 - 1
    assert after([*TEXT, *TEXT[:5], *TEXT[:5]]).accepted == len(TEXT)
    assert after([7, 8, 9]).accepted == 0


@given(
    text=st.lists(st.integers(0, 5), max_size=80),
    output=st.lists(st.lists(st.integers(0, 5), max_size=6), max_size=20),
)
def test_a_draft_is_small_and_independent_of_how_output_came(text: list[int], output: list[list[int]]) -> None:
    prediction = Prediction(text)
    for tokens in output:
        prediction.follow(tokens)
        nodes = prediction.draft()
        assert len(nodes) <= min(MAX_CHAIN, MAX_BLOCK_NODES)
        NodeBlock.of(nodes)
        roots = [node.token for node in nodes if node.parent == BASE]
        assert len(set(roots)) == len(roots)
    whole = after([token for tokens in output for token in tokens], text)
    assert (whole.draft(), whole.accepted) == (prediction.draft(), prediction.accepted)
    assert prediction.accepted <= len(text)
