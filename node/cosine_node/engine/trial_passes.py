"""The passes of the trial: its texts as an engine serves them, over pages that are shared and reused."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from torch import Tensor

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.pass_model import PassModel
from cosine_node.engine.support import context_tokens, numerics
from cosine_node.engine.tree import SequenceTree
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


@dataclass(frozen=True, slots=True)
class TrialRow:
    """The logits [vocab] of a pass after a text."""

    group: Group
    text: Text
    logits: Tensor


class _FarTree(SequenceTree):
    """A sequence whose tokens stand at given positions by their depth. Its nodes may not be kept."""

    __slots__ = ("positions",)

    def __init__(self, positions: Sequence[int]) -> None:
        super().__init__(sampling=Sampling(), prompt_tokens=0)
        self.positions = positions

    def index_after(self, parent: int) -> int:
        return self.positions[len(self.path(parent))]


class TrialPasses(PagedEngine):
    """A model of at least `POOL_TOKENS` slots over an empty pool: good for one `run`."""

    def __init__(self, passes: PassModel) -> None:
        self._passes = passes
        super().__init__(
            PagePool(tokens=POOL_TOKENS),
            vocab_tokens=passes.vocab_tokens,
            # A model whose context is shorter than the trial says so itself.
            context_tokens=max(context_tokens(passes.model.config), POOL_TOKENS),
            numerics=numerics(passes.model),
        )

    def run(self, texts: TrialTexts) -> list[TrialRow]:
        """The rows of the trial, in six passes."""
        long, sharing = (self.open(sampling=Sampling(), prompt_tokens=0, scope=SCOPE) for _ in range(2))
        short, far = (self.open(sampling=Sampling(), prompt_tokens=0) for _ in range(2))
        self._trees[far] = _FarTree(texts.far_positions)
        first, second = texts.branches
        begin, left, right = texts.far

        prompt = Row.chain(long, texts.long[:FIRST_PART])
        rows = self._rows_of((prompt, Group.PROMPT, Group.PROMPT))
        self.keep(long, prompt.nodes)

        rest, other = Row.chain(long, texts.long[FIRST_PART:]), Row.chain(short, texts.short)
        rows += self._rows_of((rest, Group.PIECES, Group.PIECES), (other, Group.TOGETHER, Group.TOGETHER))
        self.keep(long, rest.nodes)
        self.keep(short, other.nodes)

        rows += self._rows_of(
            (Row(long, first + second, tuple(range(6)), (PREFIX, 0, 1, PREFIX, 3, 4)), Group.BRANCHES, Group.CHAIN),
            (
                Row(short, texts.siblings + texts.children, tuple(range(10)), (PREFIX,) * 5 + tuple(range(5))),
                Group.SIBLINGS,
                Group.CHILDREN,
            ),
        )
        rows += self._rows_of(
            (
                Row(short, texts.grandchildren, tuple(range(10, 15)), tuple(range(5, 10))),
                Group.GRANDCHILDREN,
                Group.GRANDCHILDREN,
            ),
            (Row(far, begin + left + right, tuple(range(8)), (PREFIX, 0, 1, 2, 3, 1, 5, 6)), Group.FAR, Group.FAR),
        )
        # The kept tokens stand between those of branches that are dropped, whose slots the next tokens take.
        self.keep(long, (0, 1, 2))
        rows += self._rows_of((Row.chain(long, (texts.after_branch,)), Group.DECODING, Group.DECODING))
        self.keep(short, (2, 7, 12))
        shared = texts.long + second
        known = self.reuse_prefix(sharing, shared)
        rows += self._rows_of(
            (Row.chain(short, (texts.after_grandchildren,)), Group.DECODING, Group.DECODING),
            (Row.chain(sharing, shared[known:]), Group.SHARED, Group.SHARED),
        )
        return rows

    def _rows_of(self, *parts: tuple[Row, Group, Group]) -> list[TrialRow]:
        """Feed rows in one pass; the logits after each of their tokens.

        A part's first group is that of the tokens that follow the prefix, the second that of those below them.
        """
        fed = [row for row, _, _ in parts]
        trees = self.feed(fed)
        count = sum(len(row.tokens) for row in fed)
        logits = iter(self._passes.logits(list(zip(trees, fed, strict=True)), wanted=list(range(count))).float())
        return [
            TrialRow(first if parent == PREFIX else below, tuple(tree.tokens_to(name)), next(logits))
            for tree, (row, first, below) in zip(trees, parts, strict=True)
            for name, parent in zip(row.nodes, row.parents, strict=True)
        ]
