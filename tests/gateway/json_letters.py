"""Swarms whose target writes JSON, or calls, where it must: tokens of a few letters, and compiled constraints."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.records import facts_of
from cosine_lab.simulation.swarm import SimulatedSwarm
from tests.engine.letter_grammars import END, LETTERS, letter_grammars
from tests.gateway.gateways import QUICK, ChatLetters


class JsonLetters(ChatLetters):
    """A codec of `LETTERS` that drops other characters of a prompt."""

    vocab_tokens = END + 1

    def encode(self, text: str, add_special_tokens: bool = True) -> tuple[int, ...]:
        return tuple(LETTERS.index(letter) for letter in text if letter in LETTERS)

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(LETTERS[token] for token in tokens if token != END)


@asynccontextmanager
async def json_swarm(**_: Any) -> AsyncIterator[SimulatedSwarm]:
    """A verifier that obeys constraints, alone."""
    engine = ScriptedEngine(vocab_tokens=END + 1, grammars=letter_grammars())
    async with SimulatedSwarm(one_way_s=0.001, codec=JsonLetters(), facts=facts_of((END,))) as swarm:
        await swarm.verifier(engine, curve=QUICK)
        yield swarm
