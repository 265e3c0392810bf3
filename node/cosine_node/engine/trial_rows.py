"""The trial's texts as an engine serves them, over pages that are shared and reused; for every kind of logits."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, Generic, TypeVar

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.trial_texts import FIRST_PART, Text, TrialTexts
from cosine_protocol.request import Sampling

POOL_TOKENS: Final = 16 * PAGE_TOKENS
"""Bounds memory: more than the tokens of one attempt, whose sequences begin far apart in it."""
SCOPE: Final = "trial"


class Group(StrEnum):
    """The kinds of rows that are compared, in the order of what each needs: one that fails is named by this."""

    PROMPT = "a prompt"
    PIECES = "a prompt in pieces"
    TOGETHER = "two requests in one pass"
    BRANCHES = "branches below a long prompt"
    CHAIN = "a chain in a token tree"
    SIBLINGS = "siblings in a token tree"
    CHILDREN = "children of siblings in a token tree"
    GRANDCHILDREN = "children of tokens of an earlier pass"
    FAR = "positions at the end of the context"
    DECODING = "plain decoding after a token tree"
    SHARED = "a shared prefix"


Logits = TypeVar("Logits")


@dataclass(frozen=True, slots=True)
class TrialRow(Generic[Logits]):
    """The logits [vocab] of a pass after a text."""

    group: Group
    text: Text
    logits: Logits


Pass = Callable[[Sequence[Row]], Iterable[Logits]]
"""Feeds rows in one pass; the logits [vocab] after each of their tokens."""


def _take_parts(
    engine: PagedEngine, take: Pass[Logits], *parts: tuple[Row, Group, Group]
) -> list[TrialRow[Logits]]:
    """Feed rows; the first group of each is that of the tokens below the prefix, the second that of others."""
    logits = iter(take([row for row, _, _ in parts]))
    return [
        TrialRow(
            first if parent == PREFIX else below, tuple(engine.tree(row.sequence).tokens_to(name)), next(logits)
        )
        for row, first, below in parts
        for name, parent in zip(row.nodes, row.parents, strict=True)
    ]


def trial_rows(
    engine: PagedEngine, take: Pass[Logits], texts: TrialTexts, *, far: int | None = None
) -> list[TrialRow[Logits]]:
    """The rows of the trial, in six passes over an empty pool of at least `POOL_TOKENS`.

    `far` is an open sequence whose tokens stand at the far positions; without it these are left out.
    """

    rows_of = partial(_take_parts, engine, take)
    long, sharing = (engine.open(sampling=Sampling(), prompt_tokens=0, scope=SCOPE) for _ in range(2))
    short = engine.open(sampling=Sampling(), prompt_tokens=0)
    first, second = texts.branches
    begin, left, right = texts.far

    prompt = Row.chain(long, texts.long[:FIRST_PART])
    rows = rows_of((prompt, Group.PROMPT, Group.PROMPT))
    engine.keep(long, prompt.nodes)

    rest, other = Row.chain(long, texts.long[FIRST_PART:]), Row.chain(short, texts.short)
    rows += rows_of((rest, Group.PIECES, Group.PIECES), (other, Group.TOGETHER, Group.TOGETHER))
    engine.keep(long, rest.nodes)
    engine.keep(short, other.nodes)

    rows += rows_of(
        (Row(long, first + second, tuple(range(6)), (PREFIX, 0, 1, PREFIX, 3, 4)), Group.BRANCHES, Group.CHAIN),
        (
            Row(short, texts.siblings + texts.children, tuple(range(10)), (PREFIX,) * 5 + tuple(range(5))),
            Group.SIBLINGS,
            Group.CHILDREN,
        ),
    )
    grandchildren = Row(short, texts.grandchildren, tuple(range(10, 15)), tuple(range(5, 10)))
    parts = [(grandchildren, Group.GRANDCHILDREN, Group.GRANDCHILDREN)]
    if far is not None:
        far_row = Row(far, begin + left + right, tuple(range(8)), (PREFIX, 0, 1, 2, 3, 1, 5, 6))
        parts.append((far_row, Group.FAR, Group.FAR))
    rows += rows_of(*parts)
    # The kept tokens stand between those of branches that are dropped, whose slots the next tokens take.
    engine.keep(long, (0, 1, 2))
    rows += rows_of((Row.chain(long, (texts.after_branch,)), Group.DECODING, Group.DECODING))
    engine.keep(short, (2, 7, 12))
    shared = texts.long + second
    known = engine.reuse_prefix(sharing, shared)
    rows += rows_of(
        (Row.chain(short, (texts.after_grandchildren,)), Group.DECODING, Group.DECODING),
        (Row.chain(sharing, shared[known:]), Group.SHARED, Group.SHARED),
    )
    for sequence in (long, short, sharing):
        engine.release(sequence)
    return rows
