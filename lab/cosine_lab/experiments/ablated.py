"""Our strategy and its router without a part, to see what it brings."""

from collections.abc import Mapping, Set
from dataclasses import dataclass

from cosine_p2p.strategy.base import Action
from cosine_p2p.strategy.cosine import Cosine, CosineOptions, Drafter
from cosine_p2p.strategy.router import HedgeRouter


@dataclass(frozen=True, slots=True, kw_only=True)
class AblatedOptions(CosineOptions):
    """With `recalls` released drafters come back for a trial, or when the request changes its subject."""

    recalls: bool = True


class PromptlessRouter(HedgeRouter):
    """The likelihood of the prompt does not count."""

    def __init__(self) -> None:
        super().__init__()
        self._prompt_weight = 0.0


class RankingRouter(HedgeRouter):
    """Of those that draft, the first by weight go on, and nobody is tried."""

    def __init__(self, drafters: Mapping[int, Drafter]) -> None:
        super().__init__()
        self._drafters = drafters

    def pick(self, count: int) -> tuple[int, ...]:
        weights = {author: w for author, w in self.weights().items() if self._drafters[author].is_active}
        return tuple(sorted(weights, key=lambda author: (-weights[author], author))[: max(0, count)])

    def trials(self, count: int) -> tuple[int, ...]:
        return ()


class AblatedCosine(Cosine):
    """With all of its parts it is what ships."""

    def __init__(self, root: bytes, position: int = 0, options: AblatedOptions | None = None) -> None:
        super().__init__(root, position, options)
        self._recalls = options is None or options.recalls
        if not self._recalls:
            self._router = RankingRouter(self._drafters)

    def _recall(self, wanted: Set[int]) -> list[Action]:
        return super()._recall(wanted) if self._recalls else []
