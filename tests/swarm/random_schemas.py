"""Random JSON schemas against whole swarms: every text that ended is valid, and that of plain constrained decoding.

`python -m tests.swarm.random_schemas --schemas 1000 --seed 1` prints what it found, and fails if anything is wrong.
Each schema is asked for with a prompt at temperature 0 and at 1: of the target alone, one token at a time; of a
swarm with two drafters that know the grammar; of one whose drafters do not, so that most they say is not allowed;
and of one whose verifier vanishes after a few tokens. `jsonschema`, which compiles no grammars, says what is valid.
"""

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, ClassVar, Final

import numpy as np
from jsonschema import Draft202012Validator
from llguidance import LLTokenizer, TokenizerWrapper

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.emulation.scripted_engine import ORDER, SPREAD, ScriptedEngine
from cosine_lab.emulation.virtual_loop import call_at_once, run_virtual
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.constraints.grammars import Grammars
from cosine_node.engine.sampling import Floats, choose, failure_of, row_queries
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.errors import GenerationFailed
from cosine_protocol.request import Constraint, ConstraintKind, Sampling
from tests.node.engine.letter_grammars import tried
from tests.swarm.reference import assert_freed

WORDS: Final = (
    '":',
    '": ',
    '{"',
    '"}',
    '", "',
    "]}",
    "  ",
    "true",
    "false",
    "null",
    "name",
    "ab",
    "12",
    "00",
    "e+",
    "\\u",
)
PIECES: Final = (*(bytes([byte]) for byte in (*range(32, 127), 10, 0xC3, 0xA9)), *(word.encode() for word in WORDS))
"""The bytes of tokens 0, 1, ...: ASCII, one letter in two halves, and some words that cross the signs of JSON."""
END: Final = len(PIECES)
MAX_TOKENS: Final = 60
TOO_COMPLEX: Final = "too complex"


class PieceTokens:
    """The tokenizer of `PIECES`, as llguidance wants it."""

    eos_token_id: int = END
    bos_token_id: int | None = None
    tokens: Sequence[bytes] = (*PIECES, b"<end>")
    special_token_ids: ClassVar[Sequence[int]] = [END]

    def __call__(self, text: bytes | str) -> list[int]:
        """The longest pieces first."""
        rest, found = text.encode() if isinstance(text, str) else text, list[int]()
        while rest:
            longest = max(filter(rest.startswith, PIECES), key=len, default=b"")
            if longest:
                found.append(PIECES.index(longest))
            rest = rest[max(1, len(longest)) :]
        return found


TOKENIZER: Final = LLTokenizer(TokenizerWrapper(PieceTokens()))


def text_of(tokens: Sequence[int]) -> str:
    """What tokens write, up to the end of the text."""
    return b"".join(PIECES[token] for token in tokens if token != END).decode(errors="replace")


class Schemas:
    """Random schemas of all that is usual in those of tools and APIs, and of some that is not."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def draw(self) -> dict[str, Any]:
        """One schema, in one of two ways with definitions that it refers to."""
        rng = self._rng
        if rng.random() < 0.8:
            return self._value(3)
        names = rng.sample(["node", "leaf", "a/b"], rng.randint(1, 2))
        defined = {name: self._value(2) for name in names}
        reference = {"$ref": "#/$defs/" + rng.choice(names).replace("/", "~1")}
        if rng.random() < 0.4:
            # One that stands in itself.
            inner = {"anyOf": [{"type": "null"}, reference]}
            key = reference["$ref"].removeprefix("#/$defs/").replace("~1", "/")
            defined[key] = {"type": "object", "properties": {"next": inner}, "required": ["next"]}
        return {"$defs": defined, **rng.choice([reference, {"type": "array", "items": reference, "maxItems": 2}])}

    def _value(self, depth: int) -> dict[str, Any]:
        simple = [self._word, self._number, self._integer, self._string, self._pattern, self._fixed]
        nested = [self._object, self._object, self._object, self._array, self._tuple, self._several, self._odd]
        return self._rng.choice([*simple, *(nested * 2 if depth else [])])(depth - 1)

    def _word(self, depth: int) -> dict[str, Any]:
        return {"type": self._rng.choice(["boolean", "null", ["null", "boolean"], ["integer", "null"]])}

    def _bounds(self, low: float, high: float) -> dict[str, Any]:
        rng, bounds = self._rng, dict[str, Any]()
        if rng.random() < 0.8:
            bounds[rng.choice(["minimum", "exclusiveMinimum"])] = low
        if rng.random() < 0.8:
            bounds[rng.choice(["maximum", "exclusiveMaximum"])] = high
        return bounds

    def _integer(self, depth: int) -> dict[str, Any]:
        low = self._rng.randint(-200, 100)
        found = {"type": "integer", **self._bounds(low, low + self._rng.randint(3, 300))}
        if self._rng.random() < 0.2:
            found["multipleOf"] = self._rng.choice([2, 5, 10])
        return found

    def _number(self, depth: int) -> dict[str, Any]:
        low = self._rng.randint(-40, 40) / 4
        return {"type": "number", **self._bounds(low, low + self._rng.randint(1, 40) / 8)}

    def _string(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        longest = rng.randint(0, 6)
        found: dict[str, Any] = {"type": "string", "maxLength": longest}
        if rng.random() < 0.4:
            found["minLength"] = rng.randint(0, longest)
        if rng.random() < 0.1:
            del found["maxLength"]
        return found

    def _pattern(self, depth: int) -> dict[str, Any]:
        patterns = ["^[ab]{2,3}$", "^a.c$", "ab", "^(a|bc)*$", "^[^a-d]{1,2}$", r"^\d+$", r"^\w{2}$", "^a(?=b)b$"]
        formats = ["date", "time", "uuid", "ipv4", "email", "date-time", "hostname", "uri"]
        one = self._rng.choice(patterns)
        return {"type": "string", **self._rng.choice([{"pattern": one}, {"format": self._rng.choice(formats)}])}

    def _fixed(self, depth: int) -> dict[str, Any]:
        constants = [1, -3, 2.5, "a", "é", 'a"b\\', "", None, True, [1, 2], {"a": [True]}, {"b": 1, "a": "x"}, []]
        several = self._rng.sample(constants, self._rng.randint(1, 4))
        return {"const": several[0]} if len(several) == 1 else {"enum": several}

    def _object(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        keys = rng.sample(["a", "b", "name", "é", "table", "x_1", 'a"', ""], rng.randint(1, 4))
        found: dict[str, Any] = {
            "type": "object",
            "properties": {key: self._value(depth) for key in keys},
            "required": [key for key in keys if rng.random() < 0.6],
        }
        if (others := rng.random()) < 0.7:
            found["additionalProperties"] = False
        elif others < 0.85:
            found["additionalProperties"] = self._value(0)
        if rng.random() < 0.1:
            found["patternProperties"] = {"^x_": self._value(0)}
        if rng.random() < 0.1:
            found["required"].append("other")
            found["additionalProperties"] = self._value(0)
        if rng.random() < 0.1:
            found[rng.choice(["minProperties", "maxProperties"])] = rng.randint(1, 3)
        return found

    def _array(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        found: dict[str, Any] = {"type": "array", "items": self._value(depth), "maxItems": rng.randint(0, 3)}
        if rng.random() < 0.4:
            found["minItems"] = rng.randint(0, 1) if found["maxItems"] else 0
        if rng.random() < 0.1:
            found["uniqueItems"] = True
        return found

    def _tuple(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        found: dict[str, Any] = {
            "type": "array",
            "prefixItems": [self._value(depth) for _ in range(rng.randint(1, 2))],
        }
        found["items"] = False if rng.random() < 0.8 else self._value(0)
        if rng.random() < 0.5:
            found["minItems"] = len(found["prefixItems"])
        return found

    def _several(self, depth: int) -> dict[str, Any]:
        rng = self._rng
        return {rng.choice(["anyOf", "anyOf", "oneOf"]): [self._value(depth) for _ in range(rng.randint(1, 3))]}

    def _odd(self, depth: int) -> dict[str, Any]:
        """What few schemas have."""
        rng = self._rng
        inner = self._value(depth)
        return rng.choice(
            [
                {"allOf": [inner, self._value(depth)]},
                {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 40}]},
                {"not": inner},
                {"if": inner, "then": self._value(0)},
                {"type": "object", "propertyNames": {"pattern": "^a"}},
                {"type": "array", "contains": inner},
                {"type": "object", "dependentRequired": {"a": ["b"]}},
                {**inner, "title": "A title", "description": "What it is for", "default": None, "examples": []},
                {},
            ]
        )


@dataclass(slots=True)
class Findings:
    """What was asked and what came of it. `wrong` has a line for each text that should not be."""

    schemas: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    texts: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    runs: int = 0
    accepted: int = 0
    wrong: list[str] = field(default_factory=list)

    def lines(self) -> Iterator[str]:
        """For people."""
        yield f"{self.schemas} schemas, {sum(self.refused.values())} refused"
        for reason, count in self.refused.most_common():
            yield f"  {count:4}  {reason}"
        told = ", ".join(f"{count} {how}" for how, count in self.texts.most_common())
        yield f"texts of plain decoding: {told}; {self.tokens} tokens"
        yield f"{self.runs} texts of swarms, {self.accepted} drafts accepted; {len(self.wrong)} wrong"
        yield from self.wrong


class RandomEngine(ScriptedEngine):
    """Random logits after the last tokens of a path, the same for all targets; choices as of llama.cpp's logits."""

    def _result(self, tree: SequenceTree, row: Row) -> RowResult:
        names = row.nodes[row.scored_from :]
        own = 1.0 - self._fidelity
        logits = [
            random_logits(0, tail) + (own * random_logits(self._drafter_seed, tail) if own else 0)
            for tail in (tuple(tree.tokens_to(name)[-ORDER:]) for name in names)
        ]
        chosen = choose(np.stack(logits), row_queries(tree, row)) if logits else []
        choices = tuple(choice for choice in chosen if choice is not None)
        if len(choices) < len(chosen):
            return RowResult((), error=failure_of(tree, row))
        return RowResult(choices, nll=1.0 if row.wants_nll else None)


@lru_cache(maxsize=1 << 14)
def random_logits(seed: int, tail: tuple[int, ...]) -> Floats:
    """The logits [vocab] after these tokens."""
    return SPREAD * np.random.default_rng([seed, *tail]).random(END + 1, dtype=np.float32)


def engine_of(fidelity: float = 1.0, seed: int = 0, *, waits: bool = True, knows: bool = True) -> ScriptedEngine:
    """The target, or a drafter of so much fidelity that may not know the grammar."""
    engine = RandomEngine(vocab_tokens=END + 1, fidelity=fidelity, drafter_seed=seed)
    if knows:
        engine.grammars = Grammars(TOKENIZER, waits=waits, offload=call_at_once, tried=tried)
    return engine


def plain(engine: ScriptedEngine, prompt: Sequence[int], sampling: Sampling) -> tuple[int, ...] | None:
    """The target's own text, one token at a time; None where its constraint becomes too complex."""
    sequence = engine.open(sampling=sampling, prompt_tokens=len(prompt))
    fed, output = list(prompt), list[int]()
    while len(output) < MAX_TOKENS and END not in output:
        [result] = engine.forward([Row.chain(sequence, fed, scored_from=len(fed) - 1)])
        if result.error is not None:
            return None
        engine.keep(sequence, range(len(fed)))
        fed = [result.choices[0].token]
        output += fed
    engine.release(sequence)
    return tuple(output)


async def of_a_swarm(
    prompt: Sequence[int], schema: str, drafters: Sequence[ScriptedEngine], *, vanishes: bool, **sampling: Any
) -> tuple[tuple[int, ...] | None, int]:
    """The text that a swarm writes and the drafts it accepted; None where the constraint becomes too complex."""
    async with SimulatedSwarm(one_way_s=0.005, eos=(END,)) as swarm:
        first = await swarm.verifier(engine_of())
        if vanishes:
            await swarm.verifier(engine_of())
        for number, drafter in enumerate(drafters):
            await swarm.drafter(drafter, domain=f"domain-{number}")
        client = await swarm.client(timeout_s=60.0)
        try:
            text = LetterCodec().decode(prompt)
            run = await client.start(text, max_new_tokens=MAX_TOKENS, schema=schema, **sampling)
            seen = 0
            async for chunk in run.chunks():
                seen += len(chunk.token_ids)
                if vanishes and seen > 3 and not first.is_killed:
                    await first.kill()
        except GenerationFailed as error:
            if "too complex" in str(error):
                return None, 0
            raise
        await assert_freed(swarm)
        done = run.result()
        return done.token_ids, done.accepted


def look_at(schema: dict[str, Any], number: int, rng: random.Random, findings: Findings) -> None:
    """Ask for texts of one schema in every way."""
    findings.schemas += 1
    text = json.dumps(schema)
    constraint = Constraint(ConstraintKind.SCHEMA, text, (END,))
    if reason := tried(constraint).fault:
        findings.refused[re.sub(r"[0-9]+", "...", reason)[:70]] += 1
        return
    prompt = tuple(rng.randrange(END) for _ in range(5))
    fidelity = rng.choice([0.5, 0.8, 1.0])
    ways: dict[str, Callable[[], list[ScriptedEngine]]] = {
        "with drafters": lambda: [engine_of(fidelity, 1, waits=False), engine_of(0.6, 2, waits=False)],
        "with drafters that do not know": lambda: [
            engine_of(fidelity, 1, knows=False),
            engine_of(0.3, 2, knows=False),
        ],
        "after its verifier vanished": lambda: [engine_of(fidelity, 1, waits=False)],
    }
    for temperature in (0.0, 1.0):
        expected = plain(engine_of(), prompt, Sampling(temperature=temperature, seed=number, constraint=constraint))
        here = f"schema {number} at {temperature:g}: {text}"
        if expected is None:
            findings.texts[TOO_COMPLEX] += 1
        else:
            findings.tokens += len(expected)
            if END in expected:
                findings.texts["ended"] += 1
                if reason := invalid(text_of(expected), schema):
                    findings.wrong.append(f"{here}: {text_of(expected)!r} is invalid, {reason}")
            else:
                findings.texts["cut by their length"] += 1
        for way, drafters in ways.items():
            vanishes = way.startswith("after")
            found, accepted = run_virtual(
                of_a_swarm(prompt, text, drafters(), vanishes=vanishes, temperature=temperature, seed=number)
            )
            findings.runs += 1
            findings.accepted += accepted
            if found != expected:
                findings.wrong.append(
                    f"{here}: {way} {found and text_of(found)!r}, not {expected and text_of(expected)!r}"
                )


def invalid(text: str, schema: dict[str, Any]) -> str:
    """Why a text is not what a schema allows; empty for one that is."""
    try:
        value = json.loads(text)
    except ValueError as error:
        return str(error)
    return next((error.message for error in Draft202012Validator(schema).iter_errors(value)), "")


def look_at_many(numbers: range, seed: int) -> Findings:
    """The schemas of these numbers; each depends on its number and the seed alone."""
    findings = Findings()
    for number in numbers:
        rng = random.Random(f"{seed} {number}")
        look_at(Schemas(rng).draw(), number, rng, findings)
    return findings


def main() -> None:
    """Look at so many schemas, from the first on."""
    parser = argparse.ArgumentParser(prog="python -m tests.swarm.random_schemas")
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    findings = look_at_many(range(given.first, given.first + given.schemas), given.seed)
    sys.stdout.write("\n".join(findings.lines()) + "\n")
    sys.exit(bool(findings.wrong))


if __name__ == "__main__":
    main()
