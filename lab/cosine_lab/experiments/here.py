"""The speed of a swarm for its client, by the clock: plain decoding and other ways in turns.

The swarm runs already, or is started for the measurement on this machine. Nothing is simulated or emulated, except
links if requested. Every prompt is generated in every way, one after the other and `repeats` times, so that a
change of load affects all ways; a prompt counts with one figure of its runs. The verifier's copying from the text
is measured separately from drafters.
"""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass
from itertools import chain
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from cosine_engine import zoo
from cosine_lab.experiments.experiment import ExperimentOptions, JsonRow, Say, grouped
from cosine_lab.experiments.progress import CellProgress
from cosine_lab.report.intervals import bootstrap_interval, medians
from cosine_node.demo.race import OPTIONS, RacedWay
from cosine_node.demo.swarm import SETTLE_S, Cast, running_nodes
from cosine_p2p import AsyncClient
from cosine_p2p.request.options import GenerationOptions, Prompt
from cosine_protocol.errors import UsageError
from cosine_train.training.questions import SUFFIXES, Question, in_turns, read_questions

PLAIN: Final = RacedWay.PLAIN.value
"""The way that all others are compared with."""
WARM_UP_TOKENS: Final = 8
"""Tokens of the first request of each way, which opens links and loads code."""
GROUP_PROMPTS: Final = 10
"""Size of the groups of consecutive prompts whose worst is reported: a good median hides no bad hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HereOptions(ExperimentOptions):
    """The requests: `prompts` prompts of `tokens` tokens at each temperature, `repeats` times in each way.

    Prompts are those of `prompts_from`, else ones suitable for the target, with the domains in turn; none begins
    after `minutes`. They are generated once for each of `rtts_ms`, which is added to the links.
    """

    target: str = "zoo:target"
    temperatures: tuple[float, ...] = (0.0, 0.8, 1.0)
    rtts_ms: tuple[float, ...] = (0.0,)
    prompts_from: Path | None = None
    prompts: int = 30
    tokens: int = 64
    repeats: int = 3
    minutes: float = inf

    @classmethod
    def quick(cls) -> "HereOptions":
        return cls(temperatures=(0.0,), prompts=3, tokens=32, repeats=1)


class Asked(NamedTuple):
    """A prompt and its kind. Without a `seed` it is sampled with the experiment's, which differs by prompt."""

    kind: str
    prompt: Prompt
    seed: int | None = None

    @classmethod
    def of(cls, question: Question) -> "Asked":
        """Return the question as a client takes it."""
        asked = question.asked
        return cls(question.domain, asked if isinstance(asked, str) else [dict(turn) for turn in asked])


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """The ways that take turns, including plain decoding, by name with their options.

    `typical` is the figure of the runs of a prompt in one way, `findings_of` returns the findings of rows by a
    seed. `about` returns further fields of the row of a prompt. `warms_all` is False where the first looks of a
    client at drafters are part of what is measured.
    """

    what: str
    ways: Mapping[str, GenerationOptions]
    typical: Callable[[Sequence[float]], float]
    findings_of: Callable[[Sequence[JsonRow], int], JsonRow]
    warms_all: bool = True
    about: Callable[[Mapping[str, Sequence["TimedRun"]]], JsonRow] = lambda runs: {}


async def run_family(
    cast: Cast, connect: Callable[[str, float], AsyncClient], options: HereOptions, *, rows: list[JsonRow], say: Say
) -> JsonRow:
    """Start a family's nodes on this machine, and measure them as `run`; `connect` also takes a peer's address.

    Raises `NodeDied` as well.
    """
    with tempfile.TemporaryDirectory(prefix="cosine-bench-") as folder:
        async with running_nodes(cast, Path(folder), say) as nodes:
            result = await run(lambda rtt_ms: connect(nodes.peer, rtt_ms), options, rows=rows, say=say)
    result["setup"] |= {"verifier_options": list(cast.verifier_options), "drafter_models": list(cast.drafters)}
    return result


async def run(
    connect: Callable[[float], AsyncClient], options: HereOptions, *, rows: list[JsonRow], say: Say
) -> JsonRow:
    """Measure a swarm and return one JSON object. Raises as a generation does.

    `connect` makes a client with a round-trip time in milliseconds added to its links. `rows` gets each row as it
    is measured, so that an interrupted measurement keeps them.
    """
    return await run_contest(connect, HERE, questions_of(options), options, rows=rows, say=say)


async def run_contest(
    connect: Callable[[float], AbstractAsyncContextManager[AsyncClient]],
    contest: Contest,
    asked: Sequence[Asked],
    options: HereOptions,
    *,
    rows: list[JsonRow],
    say: Say,
) -> JsonRow:
    """Perform `run` for any ways and questions."""
    cells = len(options.rtts_ms) * len(options.temperatures) * len(asked)
    progress = CellProgress("cell", cells, clock=asyncio.get_running_loop().time)
    for rtt_ms in options.rtts_ms:
        async with connect(rtt_ms) as client:
            verifiers = await client.find_verifiers()
            async with aclosing(measure(client, contest, asked, options, say=say)) as measured:
                async for row in measured:
                    rows.append({"emulated_rtt_ms": rtt_ms, **row})
                    say(f"{progress.advance()}: {_told(row)}")
    emulated = {"emulated_rtt_ms": list(options.rtts_ms)} if any(options.rtts_ms) else {}
    return {
        "what": contest.what,
        "setup": {
            "target": options.target,
            "temperatures": list(options.temperatures),
            "prompts": len({row["prompt"] for row in rows}),
            "tokens": options.tokens,
            "repeats": options.repeats,
            "processors_of_the_client": os.cpu_count(),
            "verifiers": [
                {
                    "model": record.model,
                    "numerics": record.numerics,
                    "pass_ms": record.pass_us / 1e3,
                    "emulated": record.emulated,
                }
                for record in verifiers
            ],
            "drafters": sorted(set(chain.from_iterable(row["drafters"] for row in rows))),
            **emulated,
        },
        "rows": rows,
        "findings": contest.findings_of(rows, options.seed),
    }


def questions_of(options: HereOptions) -> Sequence[Asked]:
    """Return the prompts. Raises `UsageError` for a source without any.

    The source is a file with a prompt on each line, or held-out texts in the form of
    `cosine_train.training.questions`, else the zoo's prompts.
    """
    source = options.prompts_from
    if source is None:
        is_chat = options.target == f"{zoo.SCHEME}{zoo.target_of(zoo.Family.SMOL)}"
        own = [
            Question(domain, tuple(asked) if isinstance(asked := prompt.asked, list) else asked)
            for domain in (zoo.DOMAINS)
            for prompt in zoo.prompts(domain)
            if prompt.messages or not is_chat
        ]
        return list(map(Asked.of, in_turns(own)[: options.prompts]))
    if source.is_dir() or source.name.endswith(SUFFIXES):
        held_out = [question for question in read_questions(source) if question.is_held_out]
        return list(map(Asked.of, in_turns(held_out)[: options.prompts]))
    try:
        lines = source.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The prompts in {source} cannot be read: {error}.") from None
    if not any(line.strip() for line in lines):
        raise UsageError(f"There is no prompt in {source}; write one on each line.")
    return [Asked("", line) for line in lines if line.strip()][: options.prompts]


async def measure(
    client: AsyncClient, contest: Contest, asked: Sequence[Asked], options: HereOptions, *, say: Say
) -> AsyncGenerator[JsonRow, None]:
    """Return a row for each prompt and temperature: milliseconds per token, and whether the texts are equal."""
    for name, wanted in contest.ways.items():
        if contest.warms_all or name == PLAIN:
            warm_up: GenerationOptions = {**wanted, "max_new_tokens": min(WARM_UP_TOKENS, options.tokens)}
            await client.generate(asked[0].prompt, **warm_up)
    ends_s = asyncio.get_running_loop().time() + 60 * options.minutes
    for number, each in enumerate(asked):
        if asyncio.get_running_loop().time() > ends_s:
            say(f"{options.minutes:g} minutes are over: {len(asked) - number} prompts are not asked.")
            break
        for temperature in options.temperatures:
            wanted = {
                "max_new_tokens": options.tokens,
                "temperature": temperature,
                "seed": options.seed + number if each.seed is None else each.seed,
            }
            runs = await take_turns(client, contest.ways, each.prompt, wanted, turn=number, repeats=options.repeats)
            row = {"temperature": temperature, "prompt": number, "kind": each.kind}
            yield {**row, **row_of(runs, contest.typical), **contest.about(runs)}


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRun:
    """One generation: its milliseconds per token, its text, and its tokens by origin.

    gaps_s: Seconds between each token and the one before, 0 for tokens that came together.
    drafted: Number of nodes that volunteers drafted.
    """

    ms_per_token: float
    token_ids: tuple[int, ...]
    origins: Counter[str]
    drafters: tuple[str, ...]
    near_ties: int
    gaps_s: tuple[float, ...]
    drafted: int


async def take_turns(
    client: AsyncClient,
    ways: Mapping[str, GenerationOptions],
    prompt: Prompt,
    wanted: GenerationOptions,
    *,
    turn: int,
    repeats: int,
) -> dict[str, list[TimedRun]]:
    """Measure the runs of one prompt in each way. Raises as a generation does.

    Each verifier reads the prompt before the ways take turns, as in a continued chat: otherwise the first way would
    pay for the prompt, which a verifier keeps for the others.
    """
    for verifier in {options.get("verifier") for options in ways.values()}:
        await client.generate(prompt, strategy="plain", max_new_tokens=1, verifier=verifier)
    runs: dict[str, list[TimedRun]] = {name: [] for name in ways}
    for repeat in range(repeats):
        for name in in_turn(list(ways), turn + repeat):
            options: GenerationOptions = {**ways[name], **wanted}
            runs[name].append(await timed_run(client, prompt, options))
            await asyncio.sleep(SETTLE_S)
    return runs


async def timed_run(client: AsyncClient, prompt: Prompt, options: GenerationOptions) -> TimedRun:
    """Generate once, by the loop's clock. Raises as a generation does."""
    clock = asyncio.get_running_loop().time
    began_s = clock()
    run = await client.start(prompt, **options)
    gaps_s: list[float] = []
    came_s = None
    async for chunk in run.chunks():
        if chunk.token_ids:
            now_s = clock()
            # The first token waits for the prompt.
            gaps_s += [0.0 if came_s is None else now_s - came_s, *[0.0] * (len(chunk.token_ids) - 1)]
            came_s = now_s
    done = run.result()
    seconds = clock() - began_s
    origins = Counter[str]()
    for origin in done.swarm.origins:
        origins[origin.name] += origin.tokens
    return TimedRun(
        ms_per_token=1e3 * seconds / max(1, done.usage.completion_tokens),
        token_ids=done.token_ids,
        origins=origins,
        drafters=tuple(drafter.domain for drafter in done.swarm.drafters),
        near_ties=done.swarm.near_ties,
        gaps_s=tuple(gaps_s),
        drafted=done.swarm.drafted,
    )


def in_turn(ways: Sequence[str], turn: int) -> Sequence[str]:
    """Return all ways: each is first equally often, and the order is reversed every other time."""
    start = turn % len(ways)
    order = [*ways[start:], *ways[:start]]
    return order[:1] + order[:0:-1] if turn // len(ways) % 2 else order


def row_of(runs: Mapping[str, Sequence[TimedRun]], typical: Callable[[Sequence[float]], float]) -> JsonRow:
    """Return the result of the runs of one prompt: figures and origins of each way, and whether texts are equal."""
    ms_per_token = {way: typical([run.ms_per_token for run in own]) for way, own in runs.items()}
    origins = {way: sum((run.origins for run in own), Counter[str]()) for way, own in runs.items()}
    every = list(chain.from_iterable(runs.values()))
    return {
        "ms_per_token": ms_per_token,
        "times_plain": {way: ms_per_token[PLAIN] / ms for way, ms in ms_per_token.items()},
        "is_identical": len({run.token_ids for run in every}) == 1,
        "near_ties": sum(run.near_ties for run in every),
        "drafters": sorted(set(chain.from_iterable(run.drafters for run in every))),
        "tokens_by_origin": {way: dict(tokens) for way, tokens in origins.items()},
    }


def _told(row: JsonRow) -> str:
    ways = ", ".join(f"{name} {ms:.1f} ms a token" for name, ms in row["ms_per_token"].items())
    return f"temperature {row['temperature']:g}, prompt {row['prompt'] + 1}: {ways}"


def speed_of(rows: Sequence[JsonRow], way: str, *, seed: int) -> JsonRow:
    """Return the fields of a finding: the speedup of a way over plain decoding, in the median over rows."""
    ratios = [row["times_plain"][way] for row in rows]
    return {
        "way": way,
        "ms_per_token": median(row["ms_per_token"][way] for row in rows),
        "plain_ms_per_token": median(row["ms_per_token"][PLAIN] for row in rows),
        "times_plain": median(ratios),
        "interval": bootstrap_interval(ratios, medians, seed=seed),
        "prompts": len(rows),
    }


def tokens_by_origin(rows: Sequence[JsonRow], way: str) -> dict[str, int]:
    """Return the number of a way's tokens by origin, largest first."""
    counts = sum((Counter(row["tokens_by_origin"][way]) for row in rows), Counter[str]())
    return dict(counts.most_common())


def mismatches(rows: Sequence[JsonRow]) -> int:
    """Return the number of prompts whose texts differ between ways."""
    return sum(not row["is_identical"] for row in rows)


def findings_of(rows: Sequence[JsonRow], seed: int) -> dict[str, Any]:
    """Return for each round trip, temperature and way the median over prompts, its interval and the worst group."""
    found = []
    for (rtt_ms, temperature), own in grouped(rows, "emulated_rtt_ms", "temperature").items():
        for way in (RacedWay.COPYING.value, RacedWay.COSINE.value):
            ratios = [row["times_plain"][way] for row in own]
            groups = [ratios[at : at + GROUP_PROMPTS] for at in range(0, len(ratios), GROUP_PROMPTS)]
            whole = [group for group in groups if len(group) == GROUP_PROMPTS] or [ratios]
            place = {"emulated_rtt_ms": rtt_ms, "temperature": temperature}
            more = {"worst_group": min(map(median, whole)), "tokens_by_origin": tokens_by_origin(own, way)}
            found.append({**place, **speed_of(own, way, seed=seed), **more})
    return {"ways": found, "mismatches": mismatches(rows)}


HERE: Final = Contest(
    what="Seconds a token of each way to generate, in turns on one running swarm, by the clock.",
    ways={way.value: OPTIONS[way] for way in RacedWay},
    typical=median,
    findings_of=findings_of,
)
"""Plain decoding, the verifier's copying, and drafters; a prompt counts with the medians of its runs."""


def sentences(findings: dict[str, Any]) -> Iterator[str]:
    """Describe the findings for people."""
    for entry in findings["ways"]:
        low, high = entry["interval"]
        rtt_ms = entry["emulated_rtt_ms"]
        whose = ", ".join(f"{name} {tokens}" for name, tokens in entry["tokens_by_origin"].items())
        links = f" and {rtt_ms:g} ms of emulated round trip" if rtt_ms else ""
        yield (
            f"Temperature {entry['temperature']:g}{links}, {entry['way']}: {entry['times_plain']:.2f} times plain "
            f"decoding ({low:.2f} to {high:.2f}, 95 %), the worst {min(GROUP_PROMPTS, entry['prompts'])} prompts "
            f"in a row {entry['worst_group']:.2f}; tokens by origin: {whose}."
        )
    differ = findings["mismatches"]
    yield f"{differ} texts differ between the ways." if differ else "All texts are identical in all ways."
