"""The passes of the trial with a model of torch."""

from collections.abc import Sequence

from torch import Tensor

from cosine_node.engine.base import Row
from cosine_node.engine.kv_pool import PagePool
from cosine_node.engine.paged import PagedEngine
from cosine_node.engine.pass_model import PassModel
from cosine_node.engine.support import context_tokens, numerics
from cosine_node.engine.tree import SequenceTree
from cosine_node.engine.trial_rows import POOL_TOKENS, TrialRow, trial_rows
from cosine_node.engine.trial_texts import TrialTexts
from cosine_protocol.request import Sampling


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

    def run(self, texts: TrialTexts) -> list[TrialRow[Tensor]]:
        """The rows of the trial, in six passes."""
        far = self.open(sampling=Sampling(), prompt_tokens=0)
        self._trees[far] = _FarTree(texts.far_positions)
        return trial_rows(self, self._logits, texts, far=far)

    def _logits(self, rows: Sequence[Row]) -> list[Tensor]:
        trees = self.feed(rows)
        wanted = list(range(sum(len(row.tokens) for row in rows)))
        logits = self._passes.logits(list(zip(trees, rows, strict=True)), wanted=wanted)
        return list(logits.float())
