"""Tests of the index against a search of everything."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from cosine_p2p.own_texts.index import MAX_MATCH, TextIndex

TEXTS = st.lists(st.lists(st.integers(0, 2), max_size=90), max_size=5)


def index_of(texts: Sequence[Sequence[int]]) -> TextIndex:
    return TextIndex.of([np.array(text, np.int32) for text in texts])


def longest_by_search(texts: Sequence[Sequence[int]], last: Sequence[int]) -> tuple[int, Counter[tuple[int, ...]]]:
    """The length of the longest match, and all that follows it in the texts."""
    found: dict[int, Counter[tuple[int, ...]]] = {}
    for text in texts:
        for place in range(len(text) + 1):
            length = 0
            while length < min(place, len(last), MAX_MATCH) and text[place - length - 1] == last[-1 - length]:
                length += 1
            found.setdefault(length, Counter())[tuple(text[place : place + 5])] += 1
    longest = max(found, default=0)
    return longest, found.get(longest, Counter())


@given(texts=TEXTS, last=st.lists(st.integers(0, 3), max_size=70))
@example(texts=[[1] * 90, [1] * 40], last=[1] * 50)
@example(texts=[[0] * 80 + [1], [0] * 80 + [2]], last=[0] * 60)
def test_the_places_of_the_longest_match_are_those_of_a_search(texts: list[list[int]], last: list[int]) -> None:
    index = index_of(texts)
    found, places = index.longest(last, most=1000)
    length, following = longest_by_search(texts, last)
    assert found == length
    if length:
        assert Counter(index.after(place, 5) for place in places) == following
        assert index.longest(last, most=1)[1][0] in places


@given(texts=TEXTS)
def test_the_texts_can_be_read_back(texts: list[list[int]]) -> None:
    assert [list(text) for text in index_of(texts).texts(map(len, texts))] == texts


def test_large_token_ids_are_told_apart() -> None:
    highest = 2**21 - 2
    index = index_of([[highest, 7, 8], [highest - 1, 7, 9]])
    _, (place,) = index.longest([highest - 1, 7], most=9)
    assert index.after(place, 9) == (9,)
