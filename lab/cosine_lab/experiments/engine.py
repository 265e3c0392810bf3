"""This engine against transformers itself, in real time: whoever is compared takes turns on one machine."""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from enum import StrEnum
from functools import partial
from typing import Any, Final

from cosine_lab.experiments.decoding import Agreement, Decoded, PackedBatch, Timed, alternately, decoded
from cosine_lab.experiments.engine_transformers import (
    EMBEDDED,
    EngineOptions,
    MeasuredModel,
    RivalFailed,
    device_name,
    measured_model,
    versions,
)
from cosine_lab.experiments.experiment import JsonRow, Say, setup_of
from cosine_lab.experiments.texts import Tokens, mixed, random_prompts, spread
from cosine_node import zoo
from cosine_node.engine.torch.threads import limit_threads

# Targets, as they were set before anything was measured.
PLAIN_EMBEDDED: Final = 1.5
PLAIN_OTHERS: Final = 1.0
CONTINUOUS: Final = 1.3
ONE_BY_ONE: Final = 4.0
PADDED: Final = 1.0
# Names of who is timed, as they stand in the JSON file.
OURS: Final = "ours"
ALONE: Final = "ours, one by one"
GENERATE: Final = "generate"
ALONE_REQUESTS: Final = 3
"""The number of requests that are also decoded one by one; all would take as long as everything else."""
ROUNDS: Final = 2
"""Requests served for each that runs at once: with one, most of the time is spent on the last few."""
LONGEST_TO_SHORTEST: Final = 8
"""Contexts of one batch differ as much as those of a chat that begins and one that has gone on."""
BATCH_TOKENS: Final = (128, 1024)
"""The tokens of a pass that continuous batching is tried with; the best counts."""
CACHES: Final[Mapping[str, bool]] = {"default cache": False, "static cache": True}
"""The caches that padded batches are tried with, and whether each is static; the best counts."""

Clock = Callable[[], float]
Run = Callable[[], list[Decoded]]


class EnginePart(StrEnum):
    """The comparisons, each with a row for every model."""

    PLAIN = "plain"
    CONCURRENT = "concurrent"
    VERIFICATION = "verification"


def run(options: EngineOptions, *, say: Say) -> JsonRow:
    """Measure every model; the result (docs/benchmarks.md). Raises `UsageError`."""
    limit_threads(options.threads, zoo.folder("target"))
    rows = []
    for name in options.models:
        model = measured_model(name, options)
        for measure in (plain, concurrent, verification):
            rows.append(measure(model, options, clock=time.perf_counter))
            say(f"{name}: {measure.__name__}")
    return {
        "what": "Passes of this engine against transformers itself, in real time, on the same weights, dtype and "
        "number of threads. Rivals take turns, so what counts is the ratio of their medians.",
        "setup": setup_of(
            options,
            time="real; every ratio is of medians of runs that took turns",
            device_name=device_name(options.device),
            **versions(),
            generate="do_sample=False, the default cache, no end token; prefill is part of every run",
            continuous_batching=f"the best of {BATCH_TOKENS} tokens a pass; no prefix is shared",
            padded=f"one batch padded on the left, the best of {', '.join(CACHES)}",
            random_weights="all Llamas but the embedded models",
        ),
        "rows": rows,
        "skipped": [
            {"what": f"continuous batching of {row['model']}", "reason": row["rival_error"]}
            for row in rows
            if row.get("rival_error")
        ],
        "findings": findings_of(rows),
    }


def plain(model: MeasuredModel, load: EngineOptions, *, clock: Clock) -> JsonRow:
    """One request, prefill included: tokens a second of this engine and of `generate`."""
    [prompt] = model.prompts([load.prompt_tokens])
    engine, rival = model.engine, model.rival
    timed = alternately(
        {
            OURS: lambda: decoded(engine, [prompt], [load.tokens]),
            GENERATE: lambda: [_of(rival.generate(prompt, tokens=load.tokens))],
        },
        repeats=load.repeats,
        clock=clock,
    )
    return {
        **_head(EnginePart.PLAIN, model),
        "prompt_tokens": load.prompt_tokens,
        "tokens": load.tokens,
        "tokens_per_s": {name: load.tokens / run.median_s for name, run in timed.items()},
        "ratio": timed[GENERATE].median_s / timed[OURS].median_s,
        **_agreement(model, timed, [GENERATE]),
    }


def concurrent(model: MeasuredModel, load: EngineOptions, *, clock: Clock) -> JsonRow:
    """Requests of unequal length, a number at once: this engine and continuous batching; and a few one by one."""
    served = ROUNDS * load.requests
    tokens = mixed(spread(served, least=max(1, load.tokens // 4), most=load.tokens), seed=model.seed)
    lengths = spread(served, least=max(1, load.prompt_tokens // 2), most=2 * load.prompt_tokens)
    prompts = model.prompts(mixed(lengths, seed=model.seed + 1))
    engine = model.engine
    some = slice(0, ALONE_REQUESTS)
    runs: dict[str, Run] = {
        OURS: lambda: decoded(engine, prompts, tokens, at_once=load.requests),
        ALONE: lambda: decoded(engine, prompts[some], tokens[some], at_once=1),
    }
    with ExitStack() as stack:
        batching, errors = _continuous(stack, model, load, prompts, tokens)
        timed = alternately({**runs, **batching}, repeats=load.repeats, clock=clock)
    best = _quickest(timed, batching)
    tokens_per_s = {name: sum(len(text.tokens) for text in run.done) / run.median_s for name, run in timed.items()}
    return {
        **_head(EnginePart.CONCURRENT, model),
        "requests": load.requests,
        "served": served,
        "prompt_tokens": [min(lengths), max(lengths)],
        "tokens": [min(tokens), max(tokens)],
        "tokens_per_s": tokens_per_s,
        "ratio": tokens_per_s[OURS] / tokens_per_s[best] if best else None,
        "ratio_to_alone": tokens_per_s[OURS] / tokens_per_s[ALONE],
        "rival_error": "" if best else "; ".join(dict.fromkeys(errors)),
        **_agreement(model, timed, [ALONE, *batching]),
    }


def _continuous(
    stack: ExitStack, model: MeasuredModel, load: EngineOptions, prompts: Sequence[Tokens], tokens: Sequence[int]
) -> tuple[dict[str, Run], list[str]]:
    """The runs of continuous batching that are possible here, and the reasons why others are not."""
    runs: dict[str, Run] = {}
    errors: list[str] = []
    for batch_tokens in BATCH_TOKENS:
        serving = model.rival.continuous_batching(
            requests=load.requests, request_tokens=load.request_tokens, batch_tokens=batch_tokens
        )
        try:
            serve = stack.enter_context(serving)
            serve(prompts, tokens)
        except RivalFailed as failure:
            errors.append(str(failure))
        else:
            runs[f"continuous batching, {batch_tokens} tokens a pass"] = partial(
                lambda serve: [_of(text) for text in serve(prompts, tokens)], serve
            )
    return runs, errors


def verification(model: MeasuredModel, load: EngineOptions, *, clock: Clock) -> JsonRow:
    """Passes over sequences of unequal length with drafts: packed, and padded to the longest."""
    longest = load.longest_context_tokens
    lengths = spread(load.requests, least=max(1, longest // LONGEST_TO_SHORTEST), most=longest)
    contexts = model.prompts(lengths)
    width = load.draft_tokens + 1
    vocab_tokens = model.engine.vocab_tokens
    fed = random_prompts([width] * load.requests, vocab_tokens=vocab_tokens, seed=model.seed + 2)
    padded = {
        f"padded, {name}": model.rival.padded(contexts, fed_tokens=width, has_static_cache=is_static)
        for name, is_static in CACHES.items()
    }
    runs: dict[str, Run] = {
        name: partial(lambda batch: [_of(tokens) for tokens in batch.verify(fed)], batch)
        for name, batch in padded.items()
    }
    with closing(PackedBatch(model.engine, contexts)) as packed:
        runs = {OURS: lambda: packed.verify(fed), **runs}
        timed = alternately(runs, repeats=load.repeats, clock=clock)
    best = _quickest(timed, padded)
    return {
        **_head(EnginePart.VERIFICATION, model),
        "requests": load.requests,
        "context_tokens": [min(lengths), max(lengths)],
        "draft_tokens": load.draft_tokens,
        "padding_share": 1.0 - sum(lengths) / (max(lengths) * len(lengths)),
        "pass_ms": {name: 1e3 * run.median_s for name, run in timed.items()},
        "ratio": timed[best].median_s / timed[OURS].median_s,
        **_differing_choices(model, timed, padded),
    }


def _head(part: EnginePart, model: MeasuredModel) -> JsonRow:
    return {"part": str(part), "model": model.name, "dtype": model.dtype}


def _of(tokens: Sequence[int]) -> Decoded:
    return Decoded(list(tokens))


def _quickest(timed: Mapping[str, Timed[list[Decoded]]], names: Mapping[str, object]) -> str:
    return min(names, key=lambda name: timed[name].median_s, default="")


def _agreement(model: MeasuredModel, timed: Mapping[str, Timed[list[Decoded]]], others: Iterable[str]) -> JsonRow:
    """Count the texts that others wrote otherwise than this engine."""
    return _counted(
        own.compared(text.tokens, near_tie=model.near_tie)
        for name in others
        for own, text in zip(timed[OURS].done, timed[name].done, strict=False)
    )


def _differing_choices(
    model: MeasuredModel, timed: Mapping[str, Timed[list[Decoded]]], others: Iterable[str]
) -> JsonRow:
    """Count the choices that differ; each stands for itself, for what was fed is equal."""
    return _counted(
        Decoded([own], [margin]).compared([other], near_tie=model.near_tie)
        for name in others
        for ours, theirs in zip(timed[OURS].done, timed[name].done, strict=True)
        for own, margin, other in zip(ours.tokens, ours.margins, theirs.tokens, strict=True)
    )


def _counted(found: Iterable[Agreement]) -> JsonRow:
    counts = Counter(found)
    return {
        "compared": counts.total(),
        "mismatches": counts[Agreement.DIFFERENT],
        "near_ties": counts[Agreement.NEAR_TIE],
    }


def findings_of(rows: Sequence[JsonRow]) -> dict[str, Any]:
    """Targets against what was measured, and how many texts differ."""
    compared = [row for row in rows if "compared" in row]
    return {
        "targets": [target for row in rows for target in _targets(row)],
        "compared": sum(row["compared"] for row in compared),
        "mismatches": sum(row["mismatches"] for row in compared),
        "near_ties": sum(row["near_ties"] for row in compared),
    }


def _targets(row: JsonRow) -> Iterator[JsonRow]:
    is_embedded = row["model"] == EMBEDDED
    match row["part"]:
        case EnginePart.PLAIN:
            wanted = PLAIN_EMBEDDED if is_embedded else PLAIN_OTHERS
            yield _target(row, "one request, against generate", row["ratio"], wanted)
        case EnginePart.CONCURRENT:
            if row["ratio"] is not None:
                yield _target(row, "requests at once, against continuous batching", row["ratio"], CONTINUOUS)
            yield _target(row, "requests at once, against one by one", row["ratio_to_alone"], ONE_BY_ONE)
        case EnginePart.VERIFICATION:
            yield _target(row, "packed verification, against padded", row["ratio"], PADDED)


def _target(row: JsonRow, what: str, ratio: float, wanted: float) -> JsonRow:
    return {"model": row["model"], "what": what, "ratio": ratio, "wanted": wanted, "is_met": ratio >= wanted}
