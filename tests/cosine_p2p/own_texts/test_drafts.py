"""Tests of drafts from an index of texts."""

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.own_texts.drafts import FOLLOWED_TOKENS, GUESSED_TOKENS, OwnDrafts
from cosine_p2p.own_texts.index import TextIndex
from cosine_protocol.draft import BASE, MAX_BLOCK_NODES, NodeBlock
from tests.cosine_p2p.strategy.test_prediction import chains

CHANCE = random.Random("texts")
FIRST, SECOND = ([CHANCE.randrange(1000) for _ in range(200)] for _ in range(2))


def index_of(*texts: Sequence[int]) -> TextIndex:
    return TextIndex.of([np.array(text, np.int32) for text in texts])


def passes(drafts: OwnDrafts, output: Sequence[int]) -> int:
    """The number of passes for an output if each accepts what is right of all drafts sent so far."""
    place = count = 0
    sent: set[tuple[int, ...]] = set()
    while place < len(output):
        paths: list[tuple[int, ...]] = []
        for node in drafts.draft():
            before = tuple(output[:place]) if node.parent == BASE else paths[node.parent]
            paths.append((*before, node.token))
        sent |= set(paths)
        end = place
        while end < len(output) and tuple(output[: end + 1]) in sent:
            end += 1
        drafts.follow(tuple(output[place : end + 1]))
        place, count = end + 1, count + 1
    return count


def test_a_text_is_followed_from_a_long_match_on_over_a_change_and_into_another_text() -> None:
    index = index_of(FIRST, SECOND)
    begun, changed = FIRST[:FOLLOWED_TOKENS], [*FIRST[50:100], 1000, *FIRST[101:150]]
    assert passes(OwnDrafts(lambda: index, begun), FIRST[FOLLOWED_TOKENS:]) <= 6
    assert passes(OwnDrafts(lambda: index, FIRST[:50]), changed) <= 7
    # Two tokens of the other text are a guess already.
    assert passes(OwnDrafts(lambda: index, FIRST[:50]), [*FIRST[50:100], *SECOND[20:70]]) <= 10
    assert passes(OwnDrafts(lambda: None, begun), FIRST[FOLLOWED_TOKENS:]) == len(FIRST) - FOLLOWED_TOKENS


def test_of_places_that_continue_differently_each_is_a_guess_the_most_frequent_first() -> None:
    same = FIRST[:FOLLOWED_TOKENS]
    index = index_of([*same, *SECOND[:50]], [*same, *SECOND[:50]], [*same, *SECOND[100:150]], [*same])
    nodes = OwnDrafts(lambda: index, same).draft()
    often, seldom = chains(nodes)
    assert often == SECOND[: len(often)] and seldom == SECOND[100 : 100 + len(seldom)]
    assert len(seldom) <= len(often) <= GUESSED_TOKENS
    assert [node.confidence for node in nodes if node.parent == BASE] == pytest.approx([16 / 33, 8 / 33])


@given(
    texts=st.lists(st.lists(st.integers(0, 3), max_size=60), max_size=4),
    output=st.lists(st.lists(st.integers(0, 4), max_size=6).map(tuple), max_size=20),
)
def test_whatever_comes_a_draft_is_one_block(texts: list[list[int]], output: list[tuple[int, ...]]) -> None:
    index = index_of(*texts)
    drafts = OwnDrafts(lambda: index, ())
    for tokens in output:
        drafts.follow(tokens)
        nodes = drafts.draft()
        assert len(nodes) <= MAX_BLOCK_NODES
        assert all(0 < node.confidence <= 1 for node in nodes)
        NodeBlock.of(nodes)
