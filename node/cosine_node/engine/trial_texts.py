"""The texts of the load-time trial: few tokens, chosen so that every fault changes what most of them attend to.

A long prompt in two parts of different words: whoever loses one of them reads another text. Below it two branches.
A short prompt with many siblings: one that saw the others would see more of them than of its own text.
"""

from dataclasses import dataclass
from itertools import count
from typing import Final

Text = tuple[int, ...]
"""Token ids from a beginning on; the trial compares the logits after them."""

FIRST_TOKEN: Final = 5
"""Most tokenisers keep the ids before it for padding and the like."""
TOKEN_STEP: Final = 7
"""A choice: ids of one trial lie apart, and the next trial's lie between them."""
CYCLE: Final = 3
"""A choice: words of each part of the long prompt, so that no token stands beside itself."""
FIRST_PART: Final = 13
SECOND_PART: Final = 10
"""A choice: together more than a page of the KV pool, which can then be shared, and cut inside it."""
BRANCH_TOKENS: Final = 3
SIBLINGS: Final = 5
"""A choice: more than twice as many as the tokens of the short prompt."""
FAR_DEPTH: Final = 5
"""Tokens of each of the two texts that end where the context does, of which they share the first two."""


@dataclass(frozen=True, slots=True)
class TrialTexts:
    """`long` is cut at `FIRST_PART`; `branches` follow it, `after_branch` follows the first of them.

    Each of `siblings`, `children` and `grandchildren` follows `short` and those of its own number;
    `after_grandchildren` is one token for all. `far` is a beginning and two branches whose tokens
    stand at `far_positions`, of which the last is that of the last token of a context.
    """

    long: Text
    branches: tuple[Text, Text]
    after_branch: int
    short: Text
    siblings: Text
    children: Text
    grandchildren: Text
    after_grandchildren: int
    far: tuple[Text, Text, Text]
    far_positions: tuple[int, ...]

    @classmethod
    def of(cls, *, vocab_tokens: int, context_tokens: int, has_window: bool, attempt: int) -> "TrialTexts":
        """The texts of one attempt, in ids of a vocabulary of that size; a window must see all of `far`."""
        ids = iter((FIRST_TOKEN + attempt + TOKEN_STEP * i) % vocab_tokens for i in count())

        def draw(length: int) -> Text:
            return tuple(next(ids) for _ in range(length))

        first, second = draw(CYCLE), draw(CYCLE)
        long = [first[i % CYCLE] for i in range(FIRST_PART)] + [second[i % CYCLE] for i in range(SECOND_PART)]
        end = max(context_tokens, FAR_DEPTH)
        begin = end - FAR_DEPTH if has_window else 0
        return cls(
            long=tuple(long),
            branches=(draw(BRANCH_TOKENS), draw(BRANCH_TOKENS)),
            after_branch=next(ids),
            short=draw(2),
            siblings=draw(SIBLINGS),
            children=draw(SIBLINGS),
            grandchildren=draw(SIBLINGS),
            after_grandchildren=next(ids),
            far=(draw(2), draw(FAR_DEPTH - 2), draw(FAR_DEPTH - 2)),
            far_positions=(begin, begin + 1, *range(end - FAR_DEPTH + 2, end)),
        )
