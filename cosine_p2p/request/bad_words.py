"""Words that must not be written, as the sequences of tokens that write them."""

from collections.abc import Callable, Iterable


def word_tokens(words: Iterable[str], encode: Callable[[str], tuple[int, ...]]) -> tuple[tuple[int, ...], ...]:
    """The tokens of each word, alone and after a space where that is another token: as vLLM finds them."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        alone, spaced = encode(word.lstrip()), encode(" " + word.lstrip())
        if alone:
            found[alone] = None
            if len(spaced) == len(alone) and spaced[0] != alone[0]:
                found[spaced] = None
    return tuple(found)
