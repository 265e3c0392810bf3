"""A scripted agent over a small repository, with and without drafts from own texts: calls, files read back, edits.

The user's words and the tools' results are scripted, the replies are the target's. Every turn is asked in each way,
at one verifier on a core of its own, without drafters. An earlier session did the same work with other names.
"""

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Final, Self

import cosine_protocol
from cosine_lab.emulation.cores import on_core
from cosine_lab.experiments.experiment import ExperimentOptions, JsonRow, Say, setup_of
from cosine_lab.experiments.here import in_turn
from cosine_lab.experiments.here_cores import VERIFIER_OPTIONS, swarm_on_cores, two_cores
from cosine_node.demo.swarm import Cast
from cosine_node.engine.processor import processor_name
from cosine_node.terminal.interrupts import run_interruptibly
from cosine_node.zoo.family import Family
from cosine_p2p import AsyncClient, ClientOptions

FILES: Final[Mapping[str, str]] = {
    "nodes.py": "NodeBlock",
    "digests.py": "extend_digest",
    "noise.py": "gumbel",
    "numerics.py": "Numerics",
    "errors.py": "CosineError",
}
"""The repository: modules of the protocol, and what is renamed in each."""
FILE_CHARACTERS: Final = 1200
"""A file's length; with the turn before, a prompt then has at most 1,100 tokens."""
SYSTEM: Final = "You are a coding agent. Reply with what is asked for and nothing else."
WITHOUT: Final = "without"
FOLDER: Final = "folder"
REPLIES: Final = "folder and earlier replies"
"""The ways: copying from the prompt alone, drafts from the repository, and from earlier replies as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentOptions(ExperimentOptions):
    """`tokens` new tokens of each of the 20 turns, or of the first `prompts`."""

    family: str = Family.SMOL.value
    prompts: int = 20
    tokens: int = 64

    @classmethod
    def quick(cls) -> Self:
        return cls(family=Family.TOY.value, prompts=4, tokens=16)


def run(options: AgentOptions, *, say: Say) -> JsonRow:
    """Measure the loop and return one JSON object. Raises `UsageError` without two cores."""
    with tempfile.TemporaryDirectory(prefix="cosine-bench-") as name:
        texts = Path(name, "texts")
        texts.mkdir()
        for file in FILES:
            text = Path(cosine_protocol.__file__).with_name(file).read_text("utf-8")
            (texts / file).write_text(text[:FILE_CHARACTERS], "utf-8")
        # Where indices and replies are kept.
        os.environ["XDG_STATE_HOME"] = name
        rows = run_interruptibly(_run(options, texts, say))
    return {
        "what": "Turns of a scripted agent with and without drafts from own texts, in turns, by the clock.",
        "setup": setup_of(options, processor=processor_name(), verifier_options=dict(VERIFIER_OPTIONS)),
        "rows": rows,
        "findings": findings_of(rows),
    }


def turns(folder: Path, name: str) -> Iterator[tuple[str, str]]:
    """Yield the kind and the user's words of each turn; `name` becomes part of the new names."""
    for file, old in FILES.items():
        text, new = (folder / file).read_text("utf-8"), f"{name}_{old}"
        yield "call", f'Rename {old} to {new} in {file}. Read it first, by {{"tool": "read", "path": ...}}.'
        yield "edit", f"Result:\n{text}\n\nWrite the whole file with {new} in place of {old}."
        changed = text.replace(old, new)
        yield "patch", f"Result: written. The file is now:\n{changed}\n\nShow the change as a unified diff."
        yield "more", f"Result: applied. The file ends with:\n{changed[-300:]}\n\nWrite what should follow."


async def _run(options: AgentOptions, texts: Path, say: Say) -> list[JsonRow]:
    cores = two_cores()
    words = tuple(word for name, value in VERIFIER_OPTIONS.items() for word in (f"--{name}", value))
    # No drafter is asked; one without a model starts at once.
    cast = Cast(Family(options.family), None, verifier_options=words, own_drafters=("ngram",))
    alone: ClientOptions = {"target": cast.target, "max_drafters": 0, "audit": 0.0, "temperature": 0.0}
    drafted: ClientOptions = {**alone, "draft_from": [str(texts)]}
    options_of: dict[str, ClientOptions] = {WITHOUT: alone, FOLDER: drafted}
    options_of[REPLIES] = {**drafted, "past_replies": "keep"}
    rows = []
    with on_core(cores.others):
        async with AsyncExitStack() as stack:
            swarm = await stack.enter_async_context(swarm_on_cores(cast, None, cores, texts.parent, say))
            ways = {
                way: await stack.enter_async_context(AsyncClient([swarm.peer], memory=False, **asked))
                for way, asked in options_of.items()
            }
            for name, session in (("first", {REPLIES: ways[REPLIES]}), ("second", ways)):
                async for row in _session(session, turns(texts, name), options):
                    say(
                        f"{name} session, turn {row['turn']}, {row['kind']}: passes {row['passes']}, ms {row['ms']}"
                    )
                    rows.append(row)
    return rows[len(rows) // 2 :]


async def _session(
    ways: Mapping[str, AsyncClient], script: Iterator[tuple[str, str]], options: AgentOptions
) -> AsyncIterator[JsonRow]:
    """Yield a row for each turn. Before the ways take turns the verifier has read the prompt."""
    clock = asyncio.get_running_loop().time
    last: list[dict[str, str]] = []
    for turn, (kind, words) in enumerate(islice(script, options.prompts)):
        question = {"role": "user", "content": words}
        prompt = [{"role": "system", "content": SYSTEM}, *last, question]
        for asking in ways.values():
            await asking.generate(prompt, strategy="plain", max_new_tokens=1)
        done, ms = {}, {}
        for way in in_turn(list(ways), turn):
            began_s = clock()
            done[way] = await ways[way].generate(prompt, max_new_tokens=options.tokens)
            ms[way] = round(1e3 * (clock() - began_s), 1)
        reply = done[REPLIES]
        last = [question, {"role": "assistant", "content": reply.text}]
        yield {
            "turn": turn,
            "kind": kind,
            "tokens": reply.tokens,
            "ms": ms,
            "passes": {way: one.rounds for way, one in done.items()},
            "is_identical": len({one.token_ids for one in done.values()}) == 1,
        }


def findings_of(rows: Sequence[JsonRow]) -> JsonRow:
    """Return passes, seconds and the median of the speed-ups of each way, and the number of texts that differ."""
    ways = [
        {
            "way": way,
            "passes": sum(row["passes"][way] for row in rows),
            "seconds": sum(row["ms"][way] for row in rows) / 1e3,
            "times_without": median(row["ms"][WITHOUT] / row["ms"][way] for row in rows),
        }
        for way in (WITHOUT, FOLDER, REPLIES)
    ]
    differing = sum(not row["is_identical"] for row in rows)
    return {"tokens": sum(row["tokens"] for row in rows), "ways": ways, "mismatches": differing}
