"""The share of a text that is new: texts that loop can be drafted by copying, whatever drafts them."""

from collections.abc import Iterable, Sequence
from typing import Final

RUN_TOKENS: Final = 4
"""A choice: runs of four tokens seldom recur in texts that do not repeat themselves."""


def distinct_share(texts: Iterable[Sequence[int]]) -> float:
    """Of all runs of `RUN_TOKENS` tokens in texts, the share that their own text has not had before; in (0, 1].

    Texts too short for a run do not count; without any other the share is 1.
    """
    distinct = runs = 0
    for text in texts:
        found = [tuple(text[at : at + RUN_TOKENS]) for at in range(len(text) - RUN_TOKENS + 1)]
        distinct += len(set(found))
        runs += len(found)
    return distinct / runs if runs else 1.0
