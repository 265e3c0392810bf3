"""Stages that lie, each in its own way."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Any, Final

import torch

from cosine_engine.base import Row, RowResult
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.host import HostedChain, StageHost, StageModel
from cosine_node.stages.proof import ComputedFeed, ComputedFeeds
from cosine_node.stages.served_chain import ServedChain
from cosine_node.stages.service import StageService
from cosine_p2p.transport.channel import Channel
from cosine_protocol.stage import FeedPart, Join

SHORT_TOKENS: Final = 8
"""Rows of texts that are written have fewer, those of prompts and replays more."""
NOISE: Final = {torch.float32: 0.01, torch.bfloat16: 0.3, torch.float16: 0.1}
"""As a share of how far the numbers spread."""


class Lie(Enum):
    """What a liar does."""

    NONSENSE = auto()
    """It sends finite nonsense, and says so."""
    NOISE = auto()
    """It adds a little noise to what it computes."""
    ONLY_WRITING = auto()
    """It is honest in long rows, and sends nonsense in short ones."""
    OTHER_CLAIM = auto()
    """It computes honestly, and says that it has sent something else."""
    HIDDEN = auto()
    """It sends nonsense, and says that it has sent what is right."""
    BLAMES = auto()
    """It says that it was sent something else, and computes with that."""
    NO_WORD = auto()
    """It sends nonsense, and says nothing of its passes."""


def drawn_like(raw: bytes | bytearray, dtype: torch.dtype, *, share: float | None = None) -> bytes:
    """Other numbers of about the same size; with a `share` the same, with so much noise."""
    true = torch.frombuffer(bytearray(raw), dtype=dtype).float()
    drawn = torch.randn(true.shape, generator=torch.Generator().manual_seed(len(raw))) * true.std()
    other = drawn if share is None else true + share * drawn
    return other.to(dtype).view(torch.uint8).numpy().tobytes()


class LyingHost(StageHost):
    """A stage's layers in the hands of a liar."""

    def __init__(self, model: StageModel, lie: Lie) -> None:
        super().__init__(model)
        self.lie = lie
        self._dtype = model.dtype

    def open(self, **options: Any) -> HostedChain:
        return LyingChain(super().open(**options), self.lie, self._dtype)


class LyingChain(HostedChain):
    """One chain's sequences there, and what is claimed of them."""

    def __init__(self, true: HostedChain, lie: Lie, dtype: torch.dtype) -> None:
        self._true = true
        self._lie = lie
        self._dtype = dtype
        self.books = true.books
        self.close = true.close
        self.sent: list[tuple[bytes, bytes]] = []

    def claims(self) -> ComputedFeeds:
        return ClaimedFeeds(self._lie, self._dtype, self.sent)

    def run(self, rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]:
        if self._lie is Lie.BLAMES and activations is not None:
            activations = drawn_like(activations, self._dtype)
        found = self._true.run(rows, activations)
        if self._lie in (Lie.BLAMES, Lie.OTHER_CLAIM) or (
            self._lie is Lie.ONLY_WRITING and count_tokens(rows) >= SHORT_TOKENS
        ):
            return found
        if isinstance(found, list):
            return [
                replace(
                    result,
                    choices=tuple(
                        replace(choice, token=(choice.token + 1) % self.books.vocab_tokens)
                        for choice in result.choices
                    ),
                )
                for result in found
            ]
        wrong = drawn_like(found, self._dtype, share=NOISE[self._dtype] if self._lie is Lie.NOISE else None)
        self.sent.append((wrong, found))
        return wrong


class ClaimedFeeds(ComputedFeeds):
    """What a liar says of its passes."""

    def __init__(self, lie: Lie, dtype: torch.dtype, sent: Sequence[tuple[bytes, bytes]]) -> None:
        super().__init__()
        self._lie = lie
        self._dtype = dtype
        self._sent = sent

    def take(self, parts: Sequence[FeedPart]) -> list[ComputedFeed | None]:
        found = super().take(parts)
        if self._lie is Lie.NO_WORD:
            return [None] * len(found)
        return [None if feed is None else self._claimed(feed) for feed in found]

    def _claimed(self, feed: ComputedFeed) -> ComputedFeed:
        entered, left = feed.entered, feed.left
        if self._lie is Lie.OTHER_CLAIM and left is not None:
            left = drawn_like(left, self._dtype)
        if self._lie is Lie.HIDDEN:
            left = next((true for wrong, true in self._sent if wrong == left), left)
        if self._lie is Lie.BLAMES and entered is not None:
            entered = bytearray(drawn_like(entered, self._dtype))
        return replace(feed, entered=entered, left=left)


def lying_hosts(lies: dict[int, Lie]) -> Callable[[int, StageModel], StageHost]:
    """The hosts of stages, of which some lie, by their numbers."""

    def host_of(number: int, model: StageModel) -> StageHost:
        return LyingHost(model, lies[number]) if number in lies else StageHost(model)

    return host_of


class CandidService(StageService):
    """A stage's service, by which a liar says what suits it."""

    def _open(self, head: Channel, join: Join, network: str) -> ServedChain:
        chain = super()._open(head, join, network)
        if isinstance(chain.hosted, LyingChain):
            chain.computed = chain.hosted.claims()
        return chain
