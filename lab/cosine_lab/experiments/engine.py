"""This engine against transformers itself, in real time: whoever is compared takes turns on one machine."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from cosine_lab.experiments.engine_models import EMBEDDED, EngineOptions
from cosine_lab.experiments.engine_parts import (
    BATCH_TOKENS,
    CACHES,
    EnginePart,
    bandwidth,
    concurrent,
    curve,
    plain,
    verification,
)
from cosine_lab.experiments.engine_transformers import (
    DoesNotFit,
    copied_bytes_per_s,
    device_name,
    measured_model,
    versions,
)
from cosine_lab.experiments.experiment import JsonRow, Say, setup_of
from cosine_node import zoo
from cosine_node.engine.torch.loading import resolve_device
from cosine_node.engine.torch.threads import limit_threads

# Targets, as they were set before anything was measured.
PLAIN_EMBEDDED: Final = 1.5
PLAIN_OTHERS: Final = 1.0
CONTINUOUS: Final = 1.3
ONE_BY_ONE: Final = 4.0
PADDED: Final = 1.0


def run(options: EngineOptions, *, say: Say) -> JsonRow:
    """Measure every model; the result (docs/benchmarks.md). Raises `UsageError`."""
    limit_threads(options.threads, zoo.folder("target"))
    has_cuda = resolve_device(options.device).type == "cuda"
    rows = [row for name in options.models for row in _rows(options, name, say)]
    skipped = []
    for name in options.cuda_models if has_cuda else ():
        try:
            rows += _rows(options, name, say, is_large=True)
        except DoesNotFit as reason:
            skipped.append({"what": name, "reason": str(reason)})
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
        "skipped": [*skipped, *_skipped(options, rows, has_cuda=has_cuda)],
        "findings": findings_of(rows),
    }


def _rows(options: EngineOptions, name: str, say: Say, *, is_large: bool = False) -> Iterator[JsonRow]:
    """The rows of a model; a large one is given more requests, and compared with the bandwidth of the memory."""
    load = replace(options, requests=options.cuda_requests) if is_large else options
    model = measured_model(name, load)
    for measure in (plain, concurrent, verification, curve):
        yield measure(model, load, clock=time.perf_counter)
        say(f"{name}: {measure.__name__}")
    if is_large:
        copied = copied_bytes_per_s(options.device, repeats=options.repeats, clock=time.perf_counter)
        for requests in (1, load.requests):
            yield bandwidth(model, load, requests=requests, bytes_per_s=copied, clock=time.perf_counter)
        say(f"{name}: bandwidth")


def _skipped(options: EngineOptions, rows: Sequence[JsonRow], *, has_cuda: bool) -> Iterator[JsonRow]:
    if options.cuda_models and not has_cuda:
        yield {"what": ", ".join(options.cuda_models), "reason": "there is no CUDA device"}
    for row in rows:
        if row.get("rival_error"):
            yield {"what": f"continuous batching of {row['model']}", "reason": row["rival_error"]}


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
