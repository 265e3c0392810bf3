"""This engine against transformers itself, in real time: whoever is compared takes turns on one machine."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Final

from cosine_node import zoo
from cosine_node.bench.engine_models import EMBEDDED, Load, Subject, subject_of
from cosine_node.bench.engine_parts import (
    BATCH_TOKENS,
    CACHES,
    Part,
    bandwidth,
    concurrent,
    curve,
    plain,
    verification,
)
from cosine_node.bench.engine_transformers import DoesNotFit, copied_bytes_per_s, device_name, versions
from cosine_node.bench.experiment import Say
from cosine_node.engine.loading import resolve_device
from cosine_node.engine.threads import limit_threads

NAME: Final = "engine"
PLAIN_EMBEDDED: Final = 1.5
PLAIN_OTHERS: Final = 1.0
CONTINUOUS: Final = 1.3
ONE_BY_ONE: Final = 4.0
PADDED: Final = 1.0
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """What to measure and how often. Models of `cuda_models` are measured only on a CUDA device."""

    seed: int = 0
    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    repeats: int = 5
    tokens: int = 128
    prompt_tokens: int = 64
    requests: int = 16
    cuda_requests: int = 32
    draft_tokens: int = 4
    longest_context_tokens: int = 512
    models: tuple[str, ...] = (EMBEDDED, "llama-100m")
    cuda_models: tuple[str, ...] = ("llama-1b", "llama-8b")

    @classmethod
    def quick(cls) -> "EngineOptions":
        """The smallest form, for tests and a look."""
        return cls(
            repeats=2,
            tokens=6,
            prompt_tokens=8,
            requests=3,
            longest_context_tokens=32,
            models=("llama-tiny",),
            cuda_models=(),
        )

    @property
    def load(self) -> Load:
        return Load(
            prompt_tokens=self.prompt_tokens,
            tokens=self.tokens,
            requests=self.requests,
            draft_tokens=self.draft_tokens,
            longest_context_tokens=self.longest_context_tokens,
            repeats=self.repeats,
        )


def run(options: EngineOptions, *, say: Say) -> dict[str, object]:
    """Measure every model; one JSON object (docs/benchmarks.md). Raises `UsageError`."""
    limit_threads(options.threads, zoo.folder("target"))
    has_cuda = resolve_device(options.device).type == "cuda"
    rows = [row for name in options.models for row in _rows(options, name, say)]
    skipped = []
    for name in options.cuda_models if has_cuda else ():
        try:
            rows += _cuda_rows(options, name, say)
        except DoesNotFit as reason:
            skipped.append({"what": name, "reason": str(reason)})
    return {
        "name": NAME,
        "what": "Passes of this engine against transformers itself, in real time, on the same weights, dtype and "
        "number of threads. Rivals take turns, so what counts is the ratio of their medians.",
        "command": f"cosine-node bench {NAME}",
        "setup": _setup(options),
        "rows": rows,
        "skipped": [*skipped, *_skipped(options, rows, has_cuda=has_cuda)],
        "findings": findings_of(rows),
    }


def _rows(options: EngineOptions, name: str, say: Say) -> Iterator[Row]:
    yield from _said(_subject(options, name, options.load), options.load, say)


def _cuda_rows(options: EngineOptions, name: str, say: Say) -> Iterator[Row]:
    """The same with more requests, and the share of what the memory's bandwidth allows."""
    load = replace(options.load, requests=options.cuda_requests)
    subject = _subject(options, name, load)
    yield from _said(subject, load, say)
    bytes_per_s = copied_bytes_per_s(options.device, repeats=options.repeats, clock=time.perf_counter)
    for requests in (1, load.requests):
        yield bandwidth(subject, load, requests=requests, bytes_per_s=bytes_per_s, clock=time.perf_counter)
    say(f"{name}: {Part.BANDWIDTH}")


def _subject(options: EngineOptions, name: str, load: Load) -> Subject:
    return subject_of(
        name, seed=options.seed, device=options.device, dtype=options.dtype, pool_tokens=load.pool_tokens
    )


def _said(subject: Subject, load: Load, say: Say) -> Iterator[Row]:
    for part, measure in (
        (Part.PLAIN, plain),
        (Part.CONCURRENT, concurrent),
        (Part.VERIFICATION, verification),
        (Part.CURVE, curve),
    ):
        yield measure(subject, load, clock=time.perf_counter)
        say(f"{subject.name}: {part}")


def _setup(options: EngineOptions) -> dict[str, Any]:
    return {
        "time": "real; every ratio is of medians of runs that took turns",
        "device": device_name(options.device),
        "threads": options.threads,
        **versions(),
        "repeats": options.repeats,
        "load": {name: value for name, value in asdict(options.load).items() if name != "repeats"},
        "generate": "do_sample=False, the default cache, no end token; prefill is part of every run",
        "continuous_batching": f"the best of {_either(BATCH_TOKENS)} tokens a pass; no prefix is shared",
        "padded": f"one batch padded on the left, the best of {_either(tuple(CACHES))}",
        "random_weights": "all Llamas but the embedded models",
    }


def _either(values: Sequence[object]) -> str:
    return " and ".join(str(value) for value in values)


def _skipped(options: EngineOptions, rows: Sequence[Row], *, has_cuda: bool) -> Iterator[Row]:
    if options.cuda_models and not has_cuda:
        yield {"what": ", ".join(options.cuda_models), "reason": "there is no CUDA device"}
    for row in rows:
        if row.get("rival_error"):
            yield {"what": f"continuous batching of {row['model']}", "reason": row["rival_error"]}


def findings_of(rows: Sequence[Row]) -> dict[str, Any]:
    """What was aimed at against what was measured, and how many texts differ."""
    compared = [row for row in rows if "compared" in row]
    return {
        "targets": [target for row in rows for target in _targets(row)],
        "compared": sum(row["compared"] for row in compared),
        "mismatches": sum(row["mismatches"] for row in compared),
        "near_ties": sum(row["near_ties"] for row in compared),
    }


def _targets(row: Row) -> Iterator[Row]:
    is_embedded = row["model"] == EMBEDDED
    match row["part"]:
        case Part.PLAIN:
            wanted = PLAIN_EMBEDDED if is_embedded else PLAIN_OTHERS
            yield _target(row, "one request, against generate", row["ratio"], wanted)
        case Part.CONCURRENT:
            if row["ratio"] is not None:
                yield _target(row, "requests at once, against continuous batching", row["ratio"], CONTINUOUS)
            yield _target(row, "requests at once, against one by one", row["ratio_to_alone"], ONE_BY_ONE)
        case Part.VERIFICATION:
            yield _target(row, "packed verification, against padded", row["ratio"], PADDED)


def _target(row: Row, what: str, ratio: float, wanted: float) -> Row:
    return {"model": row["model"], "what": what, "ratio": ratio, "wanted": wanted, "is_met": ratio >= wanted}
