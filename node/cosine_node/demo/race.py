"""A race of three ways to generate one prompt: progress of the lanes and speed-ups. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

from cosine_engine.zoo.prompt_set import Prompt
from cosine_p2p.request.options import GenerationOptions
from cosine_p2p.request.origins import Origin
from cosine_p2p.request.results import Chunk, Generation


class RacedWay(Enum):
    """The ways to generate: plain decoding, with copying by the verifier, and also with drafters."""

    PLAIN = "plain"
    COPYING = "without drafters"
    COSINE = "cosine"


OPTIONS: Final[Mapping[RacedWay, GenerationOptions]] = MappingProxyType(
    {
        RacedWay.PLAIN: {"strategy": "plain"},
        RacedWay.COPYING: {"strategy": "cosine", "max_drafters": 0},
        RacedWay.COSINE: {"strategy": "cosine"},
    }
)


@dataclass(slots=True)
class Lane:
    """The text of one way so far, in pieces with their authors."""

    tokens: int = 0
    pieces: list[tuple[str, str]] = field(default_factory=list)
    seconds: float = 0.0
    done: Generation | None = None

    def add(self, chunk: Chunk, domains: Mapping[str, str], *, seconds: float) -> None:
        """Add a chunk that arrived `seconds` after the start. `domains` are those of drafters, by peer id."""
        source = chunk.source
        author = Origin(source=source, is_copied=chunk.is_copied, domain=domains.get(source, "")).name
        self.tokens += len(chunk.token_ids)
        self.seconds = seconds
        self.pieces.append((chunk.text, author))


@dataclass(frozen=True, slots=True, kw_only=True)
class Race:
    prompt: Prompt
    temperature: float
    max_new_tokens: int
    lanes: Mapping[RacedWay, Lane] = field(default_factory=lambda: {way: Lane() for way in RacedWay})


@dataclass(frozen=True, slots=True, kw_only=True)
class RacedPrompt:
    """The results for one prompt. `pass_s` is the time of an emulated one-token pass."""

    prompt: Prompt
    temperature: float
    pass_s: float | None
    done: Mapping[RacedWay, Generation]

    @property
    def identical(self) -> bool:
        return len({generation.token_ids for generation in self.done.values()}) == 1

    @property
    def plain_s(self) -> float:
        """Seconds of plain decoding, on an emulated device without delays of this machine.

        There it is the earliest first token of all lanes and an emulated pass for each further one. A slow machine
        thus makes only the other ways look worse.
        """
        plain = self.done[RacedWay.PLAIN]
        if self.pass_s is None:
            return plain.seconds
        first_s = min(generation.time_to_first_token_s for generation in self.done.values())
        return min(plain.seconds, first_s + (plain.swarm.rounds - 1) * self.pass_s)

    def speedup(self, way: RacedWay) -> float:
        """Lower bound of the speed-up over plain decoding."""
        return self.plain_s / self.done[way].seconds
