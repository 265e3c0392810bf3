"""The speed that a swarm brings to whoever asks it, by the clock: plain decoding and `cosine` in turns.

The swarm runs already, or is started for it on this machine. Nothing is simulated, and nothing emulated but links
where that is asked for. Every prompt is generated in every way, one after the other and `repeats` times, so that a
change of load falls on all of them; a prompt counts with the medians of its runs. The verifier's copying from the
text stands apart from what drafters bring.
"""

import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, zip_longest
from pathlib import Path
from statistics import median
from typing import Any, Final

from cosine_lab.experiments.experiment import ExperimentOptions, JsonRow, Say, grouped
from cosine_lab.report.intervals import bootstrap_interval, medians
from cosine_node import zoo
from cosine_node.demo.race import OPTIONS, Way
from cosine_node.demo.swarm import SETTLE_S, Cast, running_nodes
from cosine_node.training.questions import SUFFIXES, in_turns, read_questions
from cosine_p2p import AsyncClient
from cosine_p2p.request.options import GenerationOptions, Prompt
from cosine_protocol.errors import UsageError

WARM_UP_TOKENS: Final = 8
"""The first request of each way opens links and loads code."""
GROUP_PROMPTS: Final = 10
"""The worst group of so many prompts in a row is told, so that a good median hides no bad hour."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HereOptions(ExperimentOptions):
    """The requests: `prompts` prompts of `tokens` tokens at each temperature, `repeats` times in each way.

    Prompts are those of `prompts_from`, else the zoo's own that suit the target, the domains taking turns. All is
    asked once for each of `rtts_ms`, by which links are made longer.
    """

    target: str = "zoo:target"
    temperatures: tuple[float, ...] = (0.0, 0.8, 1.0)
    rtts_ms: tuple[float, ...] = (0.0,)
    prompts_from: Path | None = None
    prompts: int = 30
    tokens: int = 64
    repeats: int = 3

    @classmethod
    def quick(cls) -> "HereOptions":
        return cls(temperatures=(0.0,), prompts=3, tokens=32, repeats=1)


async def run_family(
    cast: Cast, connect: Callable[[str, float], AsyncClient], options: HereOptions, *, say: Say
) -> JsonRow:
    """Start a family's nodes on this machine, and measure them as `run`; `connect` also takes a peer's address.

    Raises `NodeDied` as well.
    """
    with tempfile.TemporaryDirectory(prefix="cosine-bench-") as folder:
        async with running_nodes(cast, Path(folder), say) as nodes:
            result = await run(lambda rtt_ms: connect(nodes.peer, rtt_ms), options, say=say)
    result["setup"] |= {"verifier_options": list(cast.verifier_options), "drafter_models": list(cast.drafters)}
    return result


async def run(connect: Callable[[float], AsyncClient], options: HereOptions, *, say: Say) -> JsonRow:
    """Measure a swarm; one JSON object. Raises as a generation does.

    `connect` makes a client whose links are longer by a round-trip time in milliseconds.
    """
    rows: list[JsonRow] = []
    for rtt_ms in options.rtts_ms:
        async with connect(rtt_ms) as client:
            verifiers = await client.find_verifiers()
            rows += [{"emulated_rtt_ms": rtt_ms, **row} for row in await measure(client, options, say=say)]
    emulated = {"emulated_rtt_ms": list(options.rtts_ms)} if any(options.rtts_ms) else {}
    return {
        "what": "Seconds a token of each way to generate, in turns on one running swarm, by the clock.",
        "setup": {
            "target": options.target,
            "temperatures": list(options.temperatures),
            "prompts": len(rows) // (len(options.temperatures) * len(options.rtts_ms)),
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
        "findings": findings_of(rows, seed=options.seed),
    }


def prompts_of(options: HereOptions) -> Sequence[Prompt]:
    """The prompts to ask for. Raises `UsageError` for a source without any.

    A source is a file with a prompt on each line, or held-out questions as `distillation.questions` reads them.
    """
    source = options.prompts_from
    if source is None:
        is_chat = options.target == f"{zoo.SCHEME}{zoo.target_of(zoo.Family.SMOL)}"
        own = [
            [prompt for prompt in zoo.prompts(domain) if prompt.messages or not is_chat]
            for domain in (zoo.SMOL_DOMAINS if is_chat else zoo.DOMAINS)
        ]
        return [one.asked for one in islice(filter(None, chain.from_iterable(zip_longest(*own))), options.prompts)]
    if source.is_dir() or source.name.endswith(SUFFIXES):
        held_out = in_turns([question for question in read_questions(source) if question.is_held_out])
        asked = [
            one.asked if isinstance(one.asked, str) else [dict(turn) for turn in one.asked] for one in held_out
        ]
        return asked[: options.prompts]
    try:
        lines = source.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"The prompts in {source} cannot be read: {error}.") from None
    if not any(line.strip() for line in lines):
        raise UsageError(f"There is no prompt in {source}; write one on each line.")
    return [line for line in lines if line.strip()][: options.prompts]


async def measure(client: AsyncClient, options: HereOptions, *, say: Say) -> list[JsonRow]:
    """One row for each temperature and prompt: milliseconds a token in each way, and if the texts are equal.

    The verifier has read a prompt before the ways take turns, as it does when a chat goes on.
    """
    asked, clock = prompts_of(options), asyncio.get_running_loop().time
    rows: list[JsonRow] = []
    for way in Way:
        warm_up: GenerationOptions = {**OPTIONS[way], "max_new_tokens": min(WARM_UP_TOKENS, options.tokens)}
        await client.generate(asked[0], **warm_up)
    for temperature in options.temperatures:
        for number, prompt in enumerate(asked):
            runs: dict[Way, list[float]] = {way: [] for way in Way}
            texts: set[tuple[int, ...]] = set()
            drafters: set[str] = set()
            origins: dict[Way, Counter[str]] = {way: Counter() for way in Way}
            near_ties = 0
            # Else the way whose turn is first would pay for the prompt, which the verifier keeps for the others.
            reading: GenerationOptions = {**OPTIONS[Way.PLAIN], "max_new_tokens": 1}
            await client.generate(prompt, **reading)
            for repeat in range(options.repeats):
                for way in _in_turn(number + repeat):
                    wanted: GenerationOptions = {
                        **OPTIONS[way],
                        "max_new_tokens": options.tokens,
                        "temperature": temperature,
                        "seed": options.seed + number,
                    }
                    began_s = clock()
                    done = await client.generate(prompt, **wanted)
                    runs[way].append(1e3 * (clock() - began_s) / max(1, done.tokens))
                    texts.add(done.token_ids)
                    drafters.update(drafter.domain for drafter in done.drafters)
                    near_ties += done.near_ties
                    for origin in done.origins:
                        origins[way][origin.name] += origin.tokens
                    await asyncio.sleep(SETTLE_S)
            medians = {way: median(found) for way, found in runs.items()}
            rows.append(
                {
                    "temperature": temperature,
                    "prompt": number,
                    "ms_per_token": {way.value: medians[way] for way in Way},
                    "times_plain": {way.value: medians[Way.PLAIN] / medians[way] for way in Way},
                    "is_identical": len(texts) == 1,
                    "near_ties": near_ties,
                    "drafters": sorted(drafters),
                    "tokens_by_origin": {way.value: dict(origins[way]) for way in Way},
                }
            )
            say(f"temperature {temperature:g}, prompt {number + 1} of {len(asked)}: {_told(rows[-1])}")
    return rows


def _in_turn(turn: int) -> Iterator[Way]:
    """All ways; each begins as often as any other."""
    ways = list(Way)
    start = turn % len(ways)
    return iter(ways[start:] + ways[:start])


def _told(row: JsonRow) -> str:
    return ", ".join(f"{name} {ms:.1f} ms a token" for name, ms in row["ms_per_token"].items())


def findings_of(rows: Sequence[JsonRow], *, seed: int) -> dict[str, Any]:
    """For each length of links, temperature and way the median over prompts, its interval, and the worst group."""
    found = []
    for (rtt_ms, temperature), own in grouped(rows, "emulated_rtt_ms", "temperature").items():
        for way in (Way.COPYING, Way.COSINE):
            ratios = [row["times_plain"][way.value] for row in own]
            groups = [ratios[at : at + GROUP_PROMPTS] for at in range(0, len(ratios), GROUP_PROMPTS)]
            tokens = sum((Counter(row["tokens_by_origin"][way.value]) for row in own), Counter[str]())
            whole = [group for group in groups if len(group) == GROUP_PROMPTS] or [ratios]
            found.append(
                {
                    "emulated_rtt_ms": rtt_ms,
                    "temperature": temperature,
                    "way": way.value,
                    "ms_per_token": median(row["ms_per_token"][way.value] for row in own),
                    "plain_ms_per_token": median(row["ms_per_token"][Way.PLAIN.value] for row in own),
                    "times_plain": median(ratios),
                    "interval": bootstrap_interval(ratios, medians, seed=seed),
                    "worst_group": min(map(median, whole)),
                    "prompts": len(own),
                    "tokens_by_origin": dict(tokens.most_common()),
                }
            )
    return {"ways": found, "mismatches": sum(not row["is_identical"] for row in rows)}


def sentences(findings: dict[str, Any]) -> Iterator[str]:
    """The findings for people."""
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
