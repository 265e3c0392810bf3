"""The self-test of a model before it is served: its texts, and the passes in which an engine serves them.

The texts are few tokens, chosen so that every fault changes most of their context. A long prompt has two parts of
different words, so that an engine that loses one reads another text, and two branches below it. A short prompt has
many siblings: one that saw the others would see more of them than of its own text. The passes use shared and reused
pages. Logits are of any kind, for the caller to compare with a reference.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from itertools import count
from typing import Final, Generic, TypeVar

from cosine_engine.base import PREFIX, Row
from cosine_engine.kv_pool import PAGE_TOKENS
from cosine_engine.paged import PagedEngine
from cosine_protocol.request import Sampling

Text = tuple[int, ...]
"""Token ids from a beginning on; the self-test compares the logits after them."""

FIRST_PART: Final = 13
"""Tokens of the long prompt before the place where it is cut."""
SIBLINGS: Final = 5
"""More than twice the tokens of the short prompt."""
FAR_DEPTH: Final = 5
"""Tokens of each of the two texts at the end of the context, which share the first two."""
POOL_TOKENS: Final = 16 * PAGE_TOKENS
"""Bounds memory: more than the tokens of one attempt, whose sequences begin far apart in it."""


@dataclass(frozen=True, slots=True)
class SelfTestTexts:
    """`long` is cut at `FIRST_PART`; `branches` follow it, `after_branch` follows the first of them.

    Each of `siblings`, `children` and `grandchildren` follows `short` and those of its own number;
    `after_grandchildren` is one token for all. `far` is a beginning and two branches with tokens at
    `far_positions`, the last of which is that of the last token of a context.
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
    def of(cls, *, vocab_tokens: int, context_tokens: int, has_window: bool, attempt: int) -> "SelfTestTexts":
        """Return the texts of one attempt, in ids of a vocabulary of that size; a window must see all of `far`."""
        # Most tokenisers keep the first ids for padding and similar uses. The ids of one attempt are apart, with
        # those of the next between them.
        ids = iter((5 + attempt + 7 * i) % vocab_tokens for i in count())

        def draw(length: int) -> Text:
            return tuple(next(ids) for _ in range(length))

        # No token is next to itself, and both parts together are more than a page of the KV pool, which can then be
        # shared, and cut inside it.
        first, second = draw(3), draw(3)
        long = [first[i % 3] for i in range(FIRST_PART)] + [second[i % 3] for i in range(10)]
        end = max(context_tokens, FAR_DEPTH)
        begin = end - FAR_DEPTH if has_window else 0
        return cls(
            long=tuple(long),
            branches=(draw(3), draw(3)),
            after_branch=next(ids),
            short=draw(2),
            siblings=draw(SIBLINGS),
            children=draw(SIBLINGS),
            grandchildren=draw(SIBLINGS),
            after_grandchildren=next(ids),
            far=(draw(2), draw(FAR_DEPTH - 2), draw(FAR_DEPTH - 2)),
            far_positions=(begin, begin + 1, *range(end - FAR_DEPTH + 2, end)),
        )

    @property
    def continued(self) -> list[tuple[Text, list[Text]]]:
        """Each prompt with its continuations, which are equally long."""
        paths = zip(self.siblings, self.children, self.grandchildren, strict=True)
        return [
            (self.long, [(*branch, self.after_branch) for branch in self.branches]),
            (self.short, [(*path, self.after_grandchildren) for path in paths]),
        ]


class RowGroup(StrEnum):
    """The compared kinds of rows in the order of their prerequisites: the first that fails names the fault."""

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
class SelfTestRow(Generic[Logits]):
    """The logits [vocab] of a pass after a text."""

    group: RowGroup
    text: Text
    logits: Logits


Pass = Callable[[Sequence[Row]], Iterable[Logits]]
"""Feeds rows in one pass and returns the logits [vocab] after each of their tokens."""


def _take_parts(
    engine: PagedEngine, take: Pass[Logits], *parts: tuple[Row, RowGroup, RowGroup]
) -> list[SelfTestRow[Logits]]:
    """Feed rows; the first group of each is that of the tokens below the prefix, the second that of others."""
    logits = iter(take([row for row, _, _ in parts]))
    return [
        SelfTestRow(
            first if parent == PREFIX else below, tuple(engine.tree(row.sequence).tokens_to(name)), next(logits)
        )
        for row, first, below in parts
        for name, parent in zip(row.nodes, row.parents, strict=True)
    ]


def self_test_rows(
    engine: PagedEngine, take: Pass[Logits], texts: SelfTestTexts, *, far: int | None = None
) -> list[SelfTestRow[Logits]]:
    """Perform the six passes of the self-test over an empty pool of at least `POOL_TOKENS`.

    `far` is an open sequence with tokens at the far positions; without it these are left out.
    """

    rows_of = partial(_take_parts, engine, take)
    long, sharing = (engine.open(sampling=Sampling(), prompt_tokens=0, scope="self-test") for _ in range(2))
    short = engine.open(sampling=Sampling(), prompt_tokens=0)
    first, second = texts.branches
    begin, left, right = texts.far

    prompt = Row.chain(long, texts.long[:FIRST_PART])
    rows = rows_of((prompt, RowGroup.PROMPT, RowGroup.PROMPT))
    engine.keep(long, prompt.nodes)

    rest, other = Row.chain(long, texts.long[FIRST_PART:]), Row.chain(short, texts.short)
    rows += rows_of((rest, RowGroup.PIECES, RowGroup.PIECES), (other, RowGroup.TOGETHER, RowGroup.TOGETHER))
    engine.keep(long, rest.nodes)
    engine.keep(short, other.nodes)

    rows += rows_of(
        (
            Row(long, first + second, tuple(range(6)), (PREFIX, 0, 1, PREFIX, 3, 4)),
            RowGroup.BRANCHES,
            RowGroup.CHAIN,
        ),
        (
            Row(short, texts.siblings + texts.children, tuple(range(10)), (PREFIX,) * 5 + tuple(range(5))),
            RowGroup.SIBLINGS,
            RowGroup.CHILDREN,
        ),
    )
    grandchildren = Row(short, texts.grandchildren, tuple(range(10, 15)), tuple(range(5, 10)))
    parts = [(grandchildren, RowGroup.GRANDCHILDREN, RowGroup.GRANDCHILDREN)]
    if far is not None:
        far_row = Row(far, begin + left + right, tuple(range(8)), (PREFIX, 0, 1, 2, 3, 1, 5, 6))
        parts.append((far_row, RowGroup.FAR, RowGroup.FAR))
    rows += rows_of(*parts)
    # The kept tokens are between those of dropped branches, whose slots the next tokens take.
    engine.keep(long, (0, 1, 2))
    rows += rows_of((Row.chain(long, (texts.after_branch,)), RowGroup.DECODING, RowGroup.DECODING))
    engine.keep(short, (2, 7, 12))
    shared = texts.long + second
    known = engine.reuse_prefix(sharing, shared)
    rows += rows_of(
        (Row.chain(short, (texts.after_grandchildren,)), RowGroup.DECODING, RowGroup.DECODING),
        (Row.chain(sharing, shared[known:]), RowGroup.SHARED, RowGroup.SHARED),
    )
    for sequence in (long, short, sharing):
        engine.release(sequence)
    return rows
