"""What it is worth that drafters and the verifier know the constraint of a text, in virtual time.

`python -m tests.swarm.constraint_speed` prints it for SmolLM2-135M and its drafters: texts of some schemas by a
swarm that knows them, by one whose drafters draft without them and whose verifier drafts nothing that is forced, by
the target alone, and free texts of the same prompts. Where rounding decides,
texts of one schema differ; it is told how many do.
"""

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from llguidance import LLTokenizer

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_lab.simulation.verifiers import Policy
from cosine_node.engine.base import Engine
from cosine_node.engine.constraints.grammars import Grammars
from cosine_node.engine.paged import PagedEngine
from cosine_node.models.engine_kind import EngineChoice
from cosine_node.models.model import ModelSource, fetch_folder, load_weights
from cosine_p2p.request.generation_config import read_eos
from cosine_p2p.request.results import Generation
from cosine_p2p.text.tokenizer import load_tokenizer
from tests.node.engine.letter_grammars import at_once, fault

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
    """SmolLM2-135M and the drafters for it, each loaded once."""

    def __init__(self) -> None:
        self._folder = fetch_folder(TARGET)
        self.codec = load_tokenizer(self._folder)
        self.eos = read_eos(self._folder)
        self._tokenizer = LLTokenizer(self.codec.library.to_str())
        self._loaded: dict[str, Engine] = {}

    def engine(self, name: str, *, knows: bool, waits: bool) -> Engine:
        """The engine of a model, for one swarm at a time."""
        if name not in self._loaded:
            source = ModelSource(model=name, target=TARGET, engine=EngineChoice(device="cpu", threads=1))
            self._loaded[name] = load_weights(source, fetch_folder(name), self._folder)
        engine = self._loaded[name]
        if isinstance(engine, PagedEngine):
            grammars = Grammars(self._tokenizer, waits=waits, offload=at_once, fault_of=fault)
            engine.grammars = grammars if knows else None
        return engine


async def texts_of(
    models: Models, prompts: Sequence[str], *, drafters: Sequence[str], knows: bool, **options: Any
) -> list[Generation]:
    """What a swarm writes after these prompts, one after the other."""
    async with SimulatedSwarm(codec=models.codec, eos=models.eos, one_way_s=0.010) as swarm:
        await swarm.verifier(models.engine(TARGET, knows=True, waits=True), policy=Policy(drafts_forced=knows))
        for domain in drafters:
            engine = models.engine(f"zoo:smol-{domain}", knows=knows, waits=False)
            await swarm.drafter(engine, domain=domain)
        client = await swarm.client(timeout_s=60.0)
        done = []
        for prompt in prompts:
            done.append(
                await client.generate([{"role": "user", "content": prompt}], max_new_tokens=TOKENS, **options)
            )
            # Until its sequences are given back.
            await asyncio.sleep(3.0)
        return done


WAYS: Final[Mapping[str, Mapping[str, Any]]] = {
    "that knows": {"drafters": DOMAINS, "knows": True},
    "that does not": {"drafters": DOMAINS, "knows": False},
    "no drafters, knows": {"drafters": (), "knows": True},
    "no drafters, does not": {"drafters": (), "knows": False},
    "plain": {"drafters": (), "knows": False, "strategy": "plain"},
}


def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(prog="python -m tests.swarm.constraint_speed")
    parser.add_argument("--schemas", nargs="*", default=list(SCHEMAS))
    parser.add_argument("--temperatures", nargs="*", type=float, default=[0.0, 1.0])
    given = parser.parse_args()
    models = Models()
    for temperature in given.temperatures:
        sums, differing = {way: Sum() for way in (*WAYS, "free")}, 0
        for name in given.schemas:
            own = {way: Sum() for way in WAYS}
            expected = None
            for way, how in WAYS.items():
                found = run_virtual(
                    texts_of(
                        models, ASKED, seed=1, temperature=temperature, schema=json.dumps(SCHEMAS[name]), **how
                    )
                )
                for done in found:
                    own[way].note(done)
                    sums[way].note(done)
                told = [done.token_ids for done in found]
                expected = expected or told
                differing += sum(one != other for one, other in zip(told, expected, strict=True))
            sys.stdout.write("".join(f"    {done.text!r}\n" for done in found))
            print_lines(f"{name}, temperature {temperature:g}", own)
        for done in run_virtual(
            texts_of(models, ASKED, seed=1, temperature=temperature, drafters=DOMAINS, knows=True)
        ):
            sums["free"].note(done)
        sys.stdout.write(f"{differing} texts are not the first way's\n")
        print_lines(f"all, temperature {temperature:g}", sums)


def print_lines(title: str, sums: Mapping[str, Sum]) -> None:
    """A heading, and a line for each way."""
    lines = [f"{title}", *(f"  {way:22} {total}" for way, total in sums.items())]
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
