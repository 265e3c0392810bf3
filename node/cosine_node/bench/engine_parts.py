"""The parts of the comparison of engines, one row each: rivals take turns on one model, dtype and thread count."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from typing import Any, Final

from cosine_node.bench.engine_models import Load, Subject
from cosine_node.bench.engine_rivals import Agreement, Decoded, PackedBatch, Timed, alternately, decoded
from cosine_node.bench.engine_transformers import RivalFailed
from cosine_node.bench.texts import Tokens, mixed, random_prompts, spread
from cosine_node.engine.base import Engine
from cosine_node.engine.curve import measure_curve
from cosine_node.verifier.scheduler import pass_budget_tokens

OURS: Final = "ours"
ALONE: Final = "ours, one by one"
GENERATE: Final = "generate"
ALONE_REQUESTS: Final = 3
"""How many of the requests are also decoded one by one; all would take as long as everything else."""
ROUNDS: Final = 2
"""How many requests are served for each place: with one, most of the time is spent on the last few."""
LONGEST_TO_SHORTEST: Final = 8
BATCH_TOKENS: Final = (128, 1024)
"""The tokens of a pass that continuous batching is tried with; the best counts."""
CACHES: Final[Mapping[str, bool]] = {"default cache": False, "static cache": True}
"""The caches that padded batches are tried with, and whether each is static; the best counts."""

Row = dict[str, Any]
Clock = Callable[[], float]
Run = Callable[[], list[Decoded]]


class Part(StrEnum):
    """What a row is about."""

    PLAIN = "plain"
    CONCURRENT = "concurrent"
    VERIFICATION = "verification"
    CURVE = "curve"
    BANDWIDTH = "bandwidth"


def plain(subject: Subject, load: Load, *, clock: Clock) -> Row:
    """One request, prefill included: tokens a second of this engine and of `generate`."""
    [prompt] = subject.prompts([load.prompt_tokens])
    engine, rival = subject.pair.engine, subject.pair.rival
    timed = alternately(
        {
            OURS: lambda: decoded(engine, [prompt], [load.tokens]),
            GENERATE: lambda: [_of(rival.generate(prompt, tokens=load.tokens))],
        },
        repeats=load.repeats,
        clock=clock,
    )
    return {
        **_head(Part.PLAIN, subject),
        "prompt_tokens": load.prompt_tokens,
        "tokens": load.tokens,
        "tokens_per_s": {name: load.tokens / run.median_s for name, run in timed.items()},
        "ratio": timed[GENERATE].median_s / timed[OURS].median_s,
        **_agreement(subject, timed, [GENERATE]),
    }


def concurrent(subject: Subject, load: Load, *, clock: Clock) -> Row:
    """Requests of unequal length, a number at once: this engine and continuous batching; and a few one by one."""
    served = ROUNDS * load.requests
    tokens = mixed(spread(served, least=max(1, load.tokens // 4), most=load.tokens), seed=subject.seed)
    lengths = spread(served, least=max(1, load.prompt_tokens // 2), most=2 * load.prompt_tokens)
    prompts = subject.prompts(mixed(lengths, seed=subject.seed + 1))
    engine = subject.pair.engine
    some = slice(0, ALONE_REQUESTS)
    runs: dict[str, Run] = {
        OURS: lambda: decoded(engine, prompts, tokens, at_once=load.requests),
        ALONE: lambda: [_alone(engine, *one) for one in zip(prompts[some], tokens[some], strict=True)],
    }
    with ExitStack() as stack:
        batching, errors = _continuous(stack, subject, load, prompts, tokens)
        timed = alternately({**runs, **batching}, repeats=load.repeats, clock=clock)
    best = _quickest(timed, batching)
    tokens_per_s = {name: sum(len(text.tokens) for text in run.done) / run.median_s for name, run in timed.items()}
    return {
        **_head(Part.CONCURRENT, subject),
        "requests": load.requests,
        "served": served,
        "prompt_tokens": [min(lengths), max(lengths)],
        "tokens": [min(tokens), max(tokens)],
        "tokens_per_s": tokens_per_s,
        "ratio": tokens_per_s[OURS] / tokens_per_s[best] if best else None,
        "ratio_to_alone": tokens_per_s[OURS] / tokens_per_s[ALONE],
        "rival_error": "" if best else "; ".join(dict.fromkeys(errors)),
        **_agreement(subject, timed, [ALONE, *batching]),
    }


def _alone(engine: Engine, prompt: Tokens, tokens: int) -> Decoded:
    return decoded(engine, [prompt], [tokens])[0]


def _continuous(
    stack: ExitStack, subject: Subject, load: Load, prompts: Sequence[Tokens], tokens: Sequence[int]
) -> tuple[dict[str, Run], list[str]]:
    """What of continuous batching can be run here, and why the rest cannot."""
    runs: dict[str, Run] = {}
    errors: list[str] = []
    for batch_tokens in BATCH_TOKENS:
        serving = subject.pair.rival.continuous_batching(
            requests=load.requests, request_tokens=load.request_tokens, batch_tokens=batch_tokens
        )
        try:
            serve = stack.enter_context(serving)
            serve(prompts, tokens)
        except RivalFailed as failure:
            errors.append(str(failure))
        else:
            runs[f"continuous batching, {batch_tokens} tokens a pass"] = partial(_served, serve, prompts, tokens)
    return runs, errors


def _served(
    serve: Callable[[Sequence[Tokens], Sequence[int]], list[Tokens]],
    prompts: Sequence[Tokens],
    tokens: Sequence[int],
) -> list[Decoded]:
    return [_of(text) for text in serve(prompts, tokens)]


def verification(subject: Subject, load: Load, *, clock: Clock) -> Row:
    """Passes over sequences of unequal length with drafts: packed, and padded to the longest."""
    longest = load.longest_context_tokens
    lengths = spread(load.requests, least=max(1, longest // LONGEST_TO_SHORTEST), most=longest)
    contexts = subject.prompts(lengths)
    width = load.draft_tokens + 1
    vocab_tokens = subject.pair.vocab_tokens
    fed = random_prompts([width] * load.requests, vocab_tokens=vocab_tokens, seed=subject.seed + 2)
    padded = {
        f"padded, {name}": subject.pair.rival.padded(contexts, fed_tokens=width, has_static_cache=is_static)
        for name, is_static in CACHES.items()
    }
    runs: dict[str, Run] = {
        name: partial(lambda batch: [_of(tokens) for tokens in batch.verify(fed)], batch)
        for name, batch in padded.items()
    }
    packed = PackedBatch(subject.pair.engine, contexts)
    try:
        runs = {OURS: lambda: packed.verify(fed), **runs}
        timed = alternately(runs, repeats=load.repeats, clock=clock)
    finally:
        packed.close()
    best = _quickest(timed, padded)
    return {
        **_head(Part.VERIFICATION, subject),
        "requests": load.requests,
        "context_tokens": [min(lengths), max(lengths)],
        "draft_tokens": load.draft_tokens,
        "padding_share": 1.0 - sum(lengths) / (max(lengths) * len(lengths)),
        "pass_ms": {name: 1e3 * run.median_s for name, run in timed.items()},
        "ratio": timed[best].median_s / timed[OURS].median_s,
        **_differing_choices(subject, timed, list(padded)),
    }


def curve(subject: Subject, load: Load, *, clock: Clock) -> Row:
    """Milliseconds of a pass by its tokens, and how many tokens a verifier would then take in one."""
    measured = measure_curve(subject.pair.engine, clock=clock, repeats=load.repeats)
    return {
        **_head(Part.CURVE, subject),
        "pass_ms": {str(tokens): 1e3 * seconds for tokens, seconds in measured.points},
        "budget_tokens": pass_budget_tokens(measured),
    }


def bandwidth(subject: Subject, load: Load, *, requests: int, bytes_per_s: float, clock: Clock) -> Row:
    """A pass of one token for each of some requests, and how long its weights take at `bytes_per_s`."""
    prompts = subject.prompts([load.prompt_tokens] * requests)
    packed = PackedBatch(subject.pair.engine, prompts)
    fed = [prompt[:1] for prompt in prompts]
    try:
        timed = alternately({OURS: lambda: packed.verify(fed)}, repeats=load.repeats, clock=clock)
    finally:
        packed.close()
    limit_s = subject.pair.read_bytes / bytes_per_s
    return {
        **_head(Part.BANDWIDTH, subject),
        "requests": requests,
        "read_bytes": subject.pair.read_bytes,
        "copied_bytes_per_s": bytes_per_s,
        "limit_ms": 1e3 * limit_s,
        "pass_ms": 1e3 * timed[OURS].median_s,
        "share_of_limit": limit_s / timed[OURS].median_s,
    }


def _head(part: Part, subject: Subject) -> Row:
    return {"part": str(part), "model": subject.name, "dtype": subject.pair.dtype}


def _of(tokens: Sequence[int]) -> Decoded:
    return Decoded(list(tokens))


def _quickest(timed: Mapping[str, Timed[list[Decoded]]], names: Mapping[str, object]) -> str:
    return min(names, key=lambda name: timed[name].median_s, default="")


def _agreement(subject: Subject, timed: Mapping[str, Timed[list[Decoded]]], others: Sequence[str]) -> Row:
    """How many texts the others wrote otherwise than this engine."""
    found = [
        own.compared(text.tokens, near_tie=subject.near_tie)
        for name in others
        for own, text in zip(timed[OURS].done, timed[name].done, strict=False)
    ]
    return _counted(found)


def _differing_choices(subject: Subject, timed: Mapping[str, Timed[list[Decoded]]], others: Sequence[str]) -> Row:
    """How many choices are others; each stands for itself, for what was fed is equal."""
    found = [
        Decoded([own], [margin]).compared([other], near_tie=subject.near_tie)
        for name in others
        for ours, theirs in zip(timed[OURS].done, timed[name].done, strict=True)
        for own, margin, other in zip(ours.tokens, ours.margins, theirs.tokens, strict=True)
    ]
    return _counted(found)


def _counted(found: Sequence[Agreement]) -> Row:
    return {
        "compared": len(found),
        "mismatches": found.count(Agreement.DIFFERENT),
        "near_ties": found.count(Agreement.NEAR_TIE),
    }
