"""Tests of excluded words as tokens."""

from typing import Final

import pytest

from cosine_p2p.request.bad_words import word_tokens

VOCABULARY: Final = {
    "the": (5,),
    " the": (9,),
    "cat": (1, 2),
    " cat": (3, 2),
    "dog": (4,),
    " dog": (7, 4),
    "€": (8,),
    " €": (8,),
    "": (),
    " ": (6,),
}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["the"], ((5,), (9,))),
        ([" the"], ((5,), (9,))),
        (["cat"], ((1, 2), (3, 2))),
        # A separate token for the space, or a word without one, adds nothing.
        (["dog"], ((4,),)),
        (["€"], ((8,),)),
        (["the", " the", "dog"], ((5,), (9,), (4,))),
    ],
)
def test_a_word_is_written_alone_or_after_a_space(words: list[str], expected: tuple[tuple[int, ...], ...]) -> None:
    assert word_tokens(words, VOCABULARY.__getitem__) == expected
