"""Excluded words as sequences of tokens."""

from collections.abc import Callable, Iterable


def word_tokens(words: Iterable[str], encode: Callable[[str], tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each word, alone and after a space if these differ, as vLLM does."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        alone, spaced = encode(word.lstrip()), encode(" " + word.lstrip())
        if alone:
            found[alone] = None
            if len(spaced) == len(alone) and spaced[0] != alone[0]:
                found[spaced] = None
    return tuple(found)
