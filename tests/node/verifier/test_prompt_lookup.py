"""The verifier's own drafts: what followed the same words before, the likeliest paths first."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from cosine_node.engine.ngram import FollowerIndex
from cosine_node.verifier.request import MAX_NODES, MIN_PATH_PROBABILITY, PromptLookup
from cosine_protocol.nodes import BASE, Node

texts = st.lists(st.integers(0, 5), max_size=60)


def path_of(nodes: Sequence[Node], index: int) -> tuple[list[int], float]:
    tokens, probability = [], 1.0
    while index != BASE:
        tokens.append(nodes[index].token)
        probability *= nodes[index].confidence
        index = nodes[index].parent
    return tokens[::-1], probability


def test_a_text_without_repetition_has_no_drafts() -> None:
    assert PromptLookup([1, 2, 3, 4]).draft() == []


def test_what_followed_before_is_drafted_as_far_as_it_goes() -> None:
    nodes = PromptLookup([1, 2, 3, 4, 5, 6, 7, 1, 2]).draft()
    tokens, _ = path_of(nodes, len(nodes) - 1)
    assert tokens == [3, 4, 5, 6, 7, 1, 2, 3][: len(tokens)]
    assert len(tokens) >= 3


def test_two_ways_to_go_on_stand_side_by_side() -> None:
    nodes = PromptLookup([9, 1, 2, 9, 1, 3, 9, 1]).draft()
    assert {node.token for node in nodes if node.parent == BASE} == {2, 3}


@given(texts, texts)
def test_committed_tokens_continue_the_text(first: list[int], more: list[int]) -> None:
    grown = PromptLookup(first)
    grown.draft()
    grown.extend(more)
    assert grown.draft() == PromptLookup(first + more).draft()


@given(texts)
def test_drafts_are_few_likely_and_what_the_index_says(text: list[int]) -> None:
    nodes = PromptLookup(text).draft()
    assert len(nodes) <= MAX_NODES
    for number, node in enumerate(nodes):
        tokens, probability = path_of(nodes, number)
        assert probability >= MIN_PATH_PROBABILITY * 0.999
        assert node.parent < number
        index = FollowerIndex()
        index.extend([*text, *tokens[:-1]])
        assert (node.token, node.confidence) in index.estimate().found
    assert len({tuple(path_of(nodes, number)[0]) for number in range(len(nodes))}) == len(nodes)
