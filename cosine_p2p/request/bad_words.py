"""Words that must not be written, as the sequences of tokens that write them."""

from collections.abc import Callable, Iterable


def word_tokens(words: Iterable[str], encode: Callable[[str], tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The sequences of tokens that write each word: alone, and after a space where that is another token.

    They are those that vLLM finds.
    """
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        alone, spaced = encode(word.lstrip()), encode(" " + word.lstrip())
        if alone:
            found[alone] = None
            if len(spaced) == len(alone) and spaced[0] != alone[0]:
                found[spaced] = None
    return tuple(found)
