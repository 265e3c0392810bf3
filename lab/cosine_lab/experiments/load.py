"""Many requests for a long time: what clients wait for, whether memory grows, whether every text is right."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from cosine_lab.experiments.experiment import JsonRow, Say, setup_of
from cosine_lab.experiments.load_swarm import (
    EMBEDDED,
    PLAIN,
    SCRIPTED,
    WARM_UP_SHARE,
    LoadedSwarm,
    LoadMeasurement,
    LoadOptions,
    perform,
)
from cosine_lab.experiments.texts import embedded_prompts, mixed, random_prompts, spread
from cosine_lab.simulation.scripted_engine import ScriptedEngine
from cosine_lab.simulation.virtual_loop import run_virtual
from cosine_lab.simulation.workload import Task, plain_stream
from cosine_node import zoo
from cosine_node.engine.base import Engine
from cosine_node.passes.emulation import Emulation
from cosine_node.verifier.scheduler import STALL, pass_budget_tokens
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role
from cosine_protocol.request import Sampling

DRAFTERS: Final = ("draft-general", "draft-code")
"""A choice: a generalist and an expert of one of the domains asked for."""
SCRIPTED_VOCAB_TOKENS: Final = 64
"""A choice: as in simulations with scripted engines."""
# Choices: one of ten prompts is eight times as long as the median, the shortest have a quarter of the most tokens.
LONG_EVERY: Final = 10
LONG: Final = 8
LEAST_SHARE: Final = 4
MEMORY_GROWTH: Final = 0.05
"""The target for memory: more than an allocator gives back late, less than a leak for each request would take."""


def run(options: LoadOptions, *, say: Say) -> JsonRow:
    """Load a verifier with every strategy in turn; the result (docs/benchmarks.md).

    Raises `UsageError` for models or a profile that do not exist, and where nothing was there to wait for.
    """
    target = _engine(options, "target")
    tasks = _tasks(options, target)
    say(f"{len(tasks)} prompts decoded for reference")
    rows = []
    for strategy in options.strategies:
        names = DRAFTERS if strategy != PLAIN else ()
        drafters = [_engine(options, name, fidelity=0.7, drafter_seed=n) for n, name in enumerate(names)]
        loaded = LoadedSwarm(options=options, strategy=strategy, target=target, drafters=drafters, tasks=tasks)
        rows.append(_row(strategy, options, run_virtual(perform(loaded))))
        say(f"{strategy}: {rows[-1]['requests']} requests")
    return {
        "what": "One verifier with real passes and many clients that ask again and again, for a long time that is "
        "virtual; the device and the links are emulated, memory is the process's own.",
        "setup": setup_of(
            options,
            emulated=Emulation.parse(options.profile).describe(),
            prompt_lengths_tokens=sorted({len(task.prompt) for task in tasks}),
            sampling="temperature 0 and the other in turn",
            drafters=f"{', '.join(DRAFTERS)} with every strategy but {PLAIN}",
            memory=f"of the whole process, after {100 * WARM_UP_SHARE:g} % of the time and at its end",
        ),
        "rows": rows,
        "findings": findings_of(rows, bound_ms=bound_ms(options)),
    }


def bound_ms(options: LoadOptions) -> float:
    """The longest that tokens may be apart: the longest pass a verifier lets happen beside decoding.

    That is one that prompts have made `STALL` times as long, or one that drafts have filled; more clients than a
    pass has room for take turns.
    """
    curve = Emulation.parse(options.profile).curve(Role.VERIFIER)
    budget_tokens = pass_budget_tokens(curve)
    decoding = min(options.clients, budget_tokens)
    longest_s = max(STALL * curve.seconds(decoding), curve.seconds(budget_tokens))
    return 1e3 * longest_s * math.ceil(options.clients / budget_tokens)


def _engine(options: LoadOptions, name: str, **scripted: Any) -> Engine:
    """The engine of an embedded model, or a scripted one with these options."""
    if options.models == SCRIPTED:
        return ScriptedEngine(vocab_tokens=SCRIPTED_VOCAB_TOKENS, pool_tokens=options.pool_tokens, **scripted)
    if options.models != EMBEDDED:
        raise UsageError(f"The models of a load are {EMBEDDED} or {SCRIPTED}, not {options.models!r}.")
    from cosine_node.engine.torch.loading import load_engine
    from cosine_node.engine.torch.threads import limit_threads

    folder = zoo.folder(name)
    limit_threads(1, folder)
    return load_engine(str(folder), dtype="float32", device="cpu", pool_tokens=options.pool_tokens)


def _tasks(options: LoadOptions, target: Engine) -> list[Task]:
    """Prompts of unequal length, every other sampled, with the stream that plain decoding gives each."""
    least = max(1, options.prompt_tokens // LEAST_SHARE)
    lengths = list(mixed(spread(options.prompts, least=least, most=options.prompt_tokens), seed=options.seed))
    longest = LONG * sorted(lengths)[len(lengths) // 2]
    lengths[::LONG_EVERY] = [longest] * len(lengths[::LONG_EVERY])
    outputs = spread(options.prompts, least=max(1, options.tokens // LEAST_SHARE), most=options.tokens)
    if options.models == SCRIPTED:
        prompts = random_prompts(lengths, vocab_tokens=SCRIPTED_VOCAB_TOKENS, seed=options.seed)
    else:
        prompts = embedded_prompts(lengths)
    tasks = []
    for number, (prompt, tokens) in enumerate(zip(prompts, mixed(outputs, seed=options.seed + 1), strict=True)):
        sampling = Sampling(temperature=options.temperature * (number % 2), seed=options.seed + number)
        stream = plain_stream(target, prompt, sampling, tokens=tokens)
        tasks.append(Task(domain="", prompt=prompt, sampling=sampling, max_new_tokens=tokens, stream=stream))
    return tasks


def _row(strategy: str, options: LoadOptions, measured: LoadMeasurement) -> JsonRow:
    gaps_s, firsts_s = tuple(measured.gaps_s), tuple(measured.firsts_s)
    warm, end = measured.warm_bytes, measured.end_bytes
    if not gaps_s:
        raise UsageError("No request got a second token; load for longer, or ask for more tokens.")
    return {
        "strategy": strategy,
        "clients": options.clients,
        "requests": measured.requests,
        "tokens": measured.tokens,
        "tokens_per_s": measured.tokens / options.seconds,
        "between_tokens_p50_ms": 1e3 * float(np.percentile(gaps_s, 50)),
        "between_tokens_p99_ms": 1e3 * float(np.percentile(gaps_s, 99)),
        "between_tokens_most_ms": 1e3 * max(gaps_s),
        "first_token_p50_ms": 1e3 * float(np.percentile(firsts_s, 50)),
        "first_token_most_ms": 1e3 * max(firsts_s),
        "memory_warm_mb": None if warm is None else warm / 1e6,
        "memory_end_mb": None if end is None else end / 1e6,
        "memory_growth": None if warm is None or end is None else end / warm - 1.0,
        "pool_most_tokens": measured.most_held_tokens,
        "pool_left_tokens": measured.left_tokens,
        "mismatches": measured.mismatches,
        "near_ties": measured.near_ties,
        "failures": measured.failures,
    }


def findings_of(rows: Sequence[JsonRow], *, bound_ms: float) -> dict[str, Any]:
    """Targets against what was measured."""
    return {
        "targets": [target for row in rows for target in _targets(row, bound_ms)],
        "bound_ms": bound_ms,
        "mismatches": sum(row["mismatches"] for row in rows),
        "near_ties": sum(row["near_ties"] for row in rows),
        "failures": sum(row["failures"] for row in rows),
    }


def _targets(row: JsonRow, bound_ms: float) -> Iterator[JsonRow]:
    most = {
        "between_tokens_p99_ms": bound_ms,
        "memory_growth": MEMORY_GROWTH,
        "pool_left_tokens": 0,
        "mismatches": 0,
        "failures": 0,
    }
    for what, limit in most.items():
        if row[what] is not None:
            yield {
                "strategy": row["strategy"],
                "what": what,
                "measured": row[what],
                "most": limit,
                "is_met": row[what] <= limit,
            }
