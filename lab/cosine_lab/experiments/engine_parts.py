"""The parts of the comparison of engines, one row each: rivals take turns on one model, dtype and thread count."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from enum import StrEnum
from functools import partial
from typing import Final

from cosine_lab.experiments.engine_models import EngineOptions
from cosine_lab.experiments.engine_rivals import Agreement, Decoded, PackedBatch, Timed, alternately, decoded
from cosine_lab.experiments.engine_transformers import MeasuredModel, RivalFailed
from cosine_lab.experiments.experiment import JsonRow
from cosine_lab.experiments.texts import Tokens, mixed, random_prompts, spread
from cosine_node.engine.curve import measure_curve
from cosine_node.verifier.scheduler import pass_budget_tokens

# Names of who is timed, as they stand in the JSON file.
OURS: Final = "ours"
ALONE: Final = "ours, one by one"
GENERATE: Final = "generate"
ALONE_REQUESTS: Final = 3
"""The number of requests that are also decoded one by one; all would take as long as everything else."""
ROUNDS: Final = 2
"""Requests served for each that runs at once: with one, most of the time is spent on the last few."""
LONGEST_TO_SHORTEST: Final = 8
"""A choice: contexts of one batch differ as much as those of a chat that begins and one that has gone on."""
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
    CURVE = "curve"
    BANDWIDTH = "bandwidth"


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


def curve(model: MeasuredModel, load: EngineOptions, *, clock: Clock) -> JsonRow:
    """Milliseconds of a pass by its tokens, and how many tokens a verifier would then take in one."""
    measured = measure_curve(model.engine, clock=clock, repeats=load.repeats)
    return {
        **_head(EnginePart.CURVE, model),
        "pass_ms": {str(tokens): 1e3 * seconds for tokens, seconds in measured.points},
        "budget_tokens": pass_budget_tokens(measured),
    }


def bandwidth(
    model: MeasuredModel, load: EngineOptions, *, requests: int, bytes_per_s: float, clock: Clock
) -> JsonRow:
    """A pass of one token for each of some requests, and how long its weights take at `bytes_per_s`."""
    prompts = model.prompts([load.prompt_tokens] * requests)
    fed = [prompt[:1] for prompt in prompts]
    with closing(PackedBatch(model.engine, prompts)) as packed:
        timed = alternately({OURS: lambda: packed.verify(fed)}, repeats=load.repeats, clock=clock)
    limit_s = model.read_bytes / bytes_per_s
    return {
        **_head(EnginePart.BANDWIDTH, model),
        "requests": requests,
        "read_bytes": model.read_bytes,
        "copied_bytes_per_s": bytes_per_s,
        "limit_ms": 1e3 * limit_s,
        "pass_ms": 1e3 * timed[OURS].median_s,
        "share_of_limit": limit_s / timed[OURS].median_s,
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
