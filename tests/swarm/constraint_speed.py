"""What it is worth that the verifier and its drafters know the constraint of a text.

`python -m tests.swarm.constraint_speed` prints it for SmolLM2-135M in virtual time, with `--clock` by the clock: of
texts by some schemas, of a verifier that drafts what they force, of one that does not, and of plain decoding; the
same with drafters that know the constraint or do not; and of free texts after the same prompts. Texts of one schema
may differ where two tokens are as likely, for engines round.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from llguidance import LLTokenizer

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_lab.simulation.verifiers import Policy
from cosine_node.engine.base import Engine
from cosine_node.engine.constraints.grammars import Grammars
from cosine_node.engine.curve import measure_curve
from cosine_node.engine.paged import PagedEngine
from cosine_node.models.engine_kind import EngineChoice, EngineKind
from cosine_node.models.model import ModelSource, fetch_folder, load_weights
from cosine_node.passes.runner import ThreadRunner
from cosine_p2p.request.generation_config import read_eos
from cosine_p2p.request.results import Generation
from cosine_p2p.text.tokenizer import load_tokenizer
from tests.node.engine.letter_grammars import at_once, tried

TOKENS: Final = 120
TARGET: Final = "zoo:smol-target"
DOMAINS: Final = ("general", "code", "dialogue")
SHORT: Final = {"type": "string", "maxLength": 24}


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: Final[Mapping[str, dict[str, Any]]] = {
    "person": _object(
        customer_name=SHORT,
        age_in_years={"type": "integer", "minimum": 0, "maximum": 200},
        kind={"enum": ["residential", "commercial"]},
        is_active={"type": "boolean"},
    ),
    "tool call": _object(
        name={"const": "get_current_weather"},
        arguments=_object(location=SHORT, unit={"enum": ["celsius", "fahrenheit"]}),
    ),
    "list": _object(
        title=SHORT,
        items={
            "type": "array",
            "items": _object(
                identifier={"type": "integer", "minimum": 0, "maximum": 999}, label={"enum": ["a", "b"]}
            ),
            "minItems": 2,
            "maxItems": 4,
        },
    ),
    "answer": _object(reasoning={"type": "string", "maxLength": 160}, final_answer={"type": "number"}),
}
ASKED: Final = (
    "Ann Miller, 43, lives in a flat and pays her bills. Describe this as JSON.",
    "What will the weather be in Paris tomorrow, and how many apples are three and four? Answer in JSON.",
    "Make up an example, as one JSON object.",
)


@dataclass(slots=True)
class Sum:
    """Texts of one way together."""

    texts: int = 0
    tokens: int = 0
    passes: int = 0
    seconds: float = 0.0
    accepted: int = 0

    def note(self, done: Generation) -> None:
        self.texts += 1
        self.tokens += done.tokens
        self.passes += done.rounds
        self.seconds += done.seconds
        self.accepted += done.accepted

    def __str__(self) -> str:
        a_pass, a_s = self.tokens / self.passes, self.tokens / self.seconds
        return f"{self.tokens:5} tokens, {a_pass:5.2f} a pass, {a_s:6.2f} a second, {self.accepted:5} accepted"


class Models:
    """SmolLM2-135M and the drafters for it, each loaded once: by llama.cpp, or in PyTorch to be timed."""

    def __init__(self, *, is_timed: bool) -> None:
        self._folder = fetch_folder(TARGET)
        self.codec = load_tokenizer(self._folder)
        self.eos = read_eos(self._folder)
        self._choice = EngineChoice(device="cpu", threads=1)
        if is_timed:
            self._choice = EngineChoice(kind=EngineKind.TORCH, dtype="bfloat16", device="cpu", threads=1)
        tokenizer = LLTokenizer(self.codec.library.to_str())
        self._grammars = {
            waits: Grammars(tokenizer, waits=waits, offload=at_once, tried=tried) for waits in (True, False)
        }
        self._loaded: dict[str, Engine] = {}
        self.verifier: dict[str, Any] = {}
        """The options of a verifier that is timed: its own passes, and what they cost."""
        if is_timed:
            engine = self.engine(TARGET, knows=True, waits=True)
            curve = measure_curve(engine, clock=time.perf_counter, budget_s=20.0)
            self.verifier = {"runner": ThreadRunner(engine), "curve": curve}

    def engine(self, name: str, *, knows: bool, waits: bool) -> Engine:
        """The engine of a model, for one swarm at a time."""
        if name not in self._loaded:
            source = ModelSource(model=name, target=TARGET, engine=self._choice)
            self._loaded[name] = load_weights(source, fetch_folder(name), self._folder)
        engine = self._loaded[name]
        if isinstance(engine, PagedEngine):
            engine.grammars = self._grammars[waits] if knows else None
        return engine


async def text_of(
    models: Models, prompt: str, *, drafters: Sequence[str], knows: bool, **options: Any
) -> Generation:
    """What a swarm writes after a prompt."""
    async with SimulatedSwarm(codec=models.codec, eos=models.eos, one_way_s=0.010) as swarm:
        engine = models.engine(TARGET, knows=True, waits=True)
        await swarm.verifier(engine, policy=Policy(drafts_forced=knows), **models.verifier)
        for domain in drafters:
            await swarm.drafter(models.engine(f"zoo:smol-{domain}", knows=knows, waits=False), domain=domain)
        client = await swarm.client(timeout_s=60.0)
        done = await client.generate([{"role": "user", "content": prompt}], max_new_tokens=TOKENS, **options)
        # Until its sequences are given back.
        await asyncio.sleep(1.0)
        return done


WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "knows": {"drafters": (), "knows": True},
    "does not": {"drafters": (), "knows": False},
    "plain": {"drafters": (), "knows": False, "strategy": "plain"},
    "drafters, knows": {"drafters": DOMAINS, "knows": True},
    "drafters, does not": {"drafters": DOMAINS, "knows": False},
}


def main() -> None:
    """Measure it."""
    parser = argparse.ArgumentParser(prog="python -m tests.swarm.constraint_speed")
    parser.add_argument("--schemas", nargs="*", default=list(SCHEMAS))
    parser.add_argument("--temperatures", nargs="*", type=float, default=[0.0, 1.0])
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--clock", action="store_true", help="time real passes in bfloat16, the ways in turn")
    parser.add_argument("--compact", action="store_true", help="let schemas allow no white space")
    given = parser.parse_args()
    rest = {"x-guidance": {"whitespace_flexible": False}} if given.compact else {}
    models = Models(is_timed=given.clock)
    run = asyncio.run if given.clock else run_virtual
    for temperature in given.temperatures:
        sums, differing = {way: Sum() for way in (*given.ways, "free text")}, 0
        for name, prompt in product(given.schemas, ASKED):
            asked = {"seed": 1, "temperature": temperature, "schema": json.dumps(SCHEMAS[name] | rest)}
            texts = {way: run(text_of(models, prompt, **WAYS[way], **asked)) for way in given.ways}
            for way, done in texts.items():
                sums[way].note(done)
            differing += len({done.token_ids for done in texts.values()}) - 1
            sys.stdout.write(f"{name}: {next(iter(texts.values())).text!r}\n")
            sys.stdout.flush()
        for prompt in ASKED:
            free = run(text_of(models, prompt, **WAYS[given.ways[0]], seed=1, temperature=temperature))
            sums["free text"].note(free)
        lines = [f"temperature {temperature:g}", *(f"  {way:20} {total}" for way, total in sums.items())]
        sys.stdout.write("\n".join(lines) + f"\n  {differing} texts differ by rounding\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
