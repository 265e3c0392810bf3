"""An index of texts that finds the places after the longest match with some tokens. Pure.

It is a suffix array of the reversed texts: all places, sorted by the `MAX_MATCH` tokens before each. A look-up is a
binary search; the neighbours of its result share the most tokens with the query.
"""

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from struct import pack, unpack
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import numpy as np

    TokenArray = np.ndarray[tuple[int], np.dtype[np.int32]]

MAX_MATCH: Final = 32
"""Maximum length of a match. Of 28 million tokens of Python 12 million have another match of 24 tokens."""
SORTED_FIRST: Final = 3  # Number of tokens that fit into the first key, of 64 bits.
TOKEN_BITS: Final = 21  # Eight times the largest vocabularies.
WORD: Final = 4  # Bytes per token: its id plus one (0 ends a text), big-endian, so that bytes compare as ids.


@dataclass(frozen=True, slots=True, eq=False)
class TextIndex:
    """The reversed texts as words, the last text first, and all places in them, sorted by the tokens before."""

    words: bytes
    order: memoryview

    @classmethod
    def of(cls, texts: Sequence["TokenArray"]) -> "TextIndex":
        """Index texts of token ids of at most `TOKEN_BITS`. 28 million take 10 s, and up to 1.7 GB meanwhile."""
        import numpy as np

        ended = np.concatenate([np.empty(0, np.int32), *(np.append(text, np.int32(-1)) for text in texts)])
        words = ended[::-1] + 1
        count, length = len(words), SORTED_FIRST
        key = words.astype(np.int64)
        for ahead in range(1, SORTED_FIRST):
            key <<= TOKEN_BITS
            key[:-ahead] |= words[ahead:]
        order = np.argsort(key).astype(np.int32)
        key = key[order]
        begins = np.append(np.ones(min(1, count), bool), key[1:] != key[:-1])
        # Prefix doubling (Manber and Myers 1993): equal places are sorted by the ranks of what comes before.
        while length < MAX_MATCH:
            rank = np.full(count + length, -1, np.int32)
            group = np.maximum.accumulate(np.where(begins, np.arange(count, dtype=np.int32), np.int32(0)))
            rank[order] = group
            tied = np.flatnonzero(~(begins & np.append(begins[1:], True)))
            places = order[tied]
            key = group[tied].astype(np.int64) << 32 | (rank[places + length] + 1)
            sorting = np.argsort(key)
            order[tied], key = places[sorting], key[sorting]
            begins[tied[1:]] |= key[1:] != key[:-1]
            length *= 2
        return cls(words.astype(">u4").tobytes(), memoryview(order.tobytes()).cast("i"))

    def texts(self, lengths: Iterable[int]) -> "list[TokenArray]":
        """Return the texts, of these lengths."""
        import numpy as np

        tokens = np.frombuffer(self.words, ">u4")[::-1].astype(np.int32) - 1
        ends = list(accumulate(length + 1 for length in lengths))
        return [tokens[start : end - 1] for start, end in zip([0, *ends], ends, strict=False)]

    def longest(self, last: Sequence[int], *, most: int) -> tuple[int, list[int]]:
        """Return the length of the longest match of the last tokens, at most `MAX_MATCH`, and the places after it.

        At most `most` places are returned, evenly spread. It takes 25 us in 28 million tokens.
        """
        last = last[-MAX_MATCH:]
        sought = pack(f">{len(last)}I", *(token + 1 for token in reversed(last)))
        at = bisect_left(self.order, sought, key=self._before)
        near = self.order[max(0, at - 1) : at + 1]
        tokens = max((_shared(sought, self._before(place)) for place in near), default=0)
        shared = sought[: WORD * tokens]
        first = bisect_left(self.order, shared, key=self._before)
        found = bisect_left(self.order, shared + b"\xff" * WORD, lo=first, key=self._before) - first
        count = min(most, found)
        return tokens, [self.order[first + number * found // count] for number in range(count)]

    def after(self, begin: int, tokens: int) -> tuple[int, ...]:
        """Return at most `tokens` tokens after a place, up to the end of its text."""
        words = self.words[WORD * max(0, begin - tokens) : WORD * begin]
        found = [word - 1 for word in reversed(unpack(f">{len(words) // WORD}I", words))]
        return tuple(found[: found.index(-1)] if -1 in found else found)

    def _before(self, begin: int) -> bytes:
        return self.words[WORD * begin : WORD * (begin + MAX_MATCH)]


def _shared(one: bytes, other: bytes) -> int:
    """Return the number of words that both begin with."""
    size = min(len(one), len(other))
    differing = int.from_bytes(one[:size], "big") ^ int.from_bytes(other[:size], "big")
    return (8 * size - differing.bit_length()) // (8 * WORD)
