"""Engines on a CPU with one model, in turns: speed, whether texts depend on other requests, and quality.

Each engine has a process of its own, pinned to the same cores; of all processes one works at a time.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any, Final, Self

from cosine_lab.experiments import engine_runs as runs
from cosine_lab.experiments.experiment import ExperimentOptions, JsonRow, Prompts, Say, grouped, setup_of
from cosine_lab.experiments.here import in_turn
from cosine_node import zoo
from cosine_node.demo.machine import on_core
from cosine_node.engine.processor import processor_name
from cosine_node.engine.torch.loading import DTYPES, load_model
from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import write_gguf
from cosine_node.zoo.family import Family
from cosine_protocol.errors import CosineError, UsageError

FILE: Final = "Q4_1"
"""The weights of the model that all engines run, as in its file; others are converted from these."""
REFERENCE: Final = "transformers float32"
ENGINES: Final = (
    *(f"llama.cpp {weights}" for weights in (FILE, "Q4_0", "Q8_0")),
    *(REFERENCE, "transformers bfloat16"),
    *(f"torch {numerics}" for numerics in ("int4", "float16", "float32", "bfloat16")),
    *(f"llama {FILE}", "vllm bfloat16"),
)
"""llama.cpp and transformers by themselves, then the values of `--engine`, each with its numerics."""
CONTEXT_TOKENS: Final = 16
"""Tokens before the timed ones of each request."""
TEMPERATURE: Final = 0.8
"""That of the recorded answers."""
ANSWER_TOKENS: Final = 64
"""Tokens of an answer that are compared, at most."""
FEWEST_TOKENS: Final = 2
"""New tokens of a request, of which the first is not timed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesOptions(ExperimentOptions):
    """`tokens` new tokens of a request, fewer of many `requests` at once; texts of `prompts` are compared.

    `threads` is the number of cores. Default: one, then two.
    """

    family: str = Family.SMOL.value
    prompts: int = 12
    tokens: int = 32
    repeats: int = 3
    threads: int | None = None
    requests: tuple[int, ...] = (1, 8, 32)
    at_once: int = 8
    engines: tuple[str, ...] = ENGINES

    @classmethod
    def quick(cls) -> Self:
        return cls(family=Family.TOY.value, prompts=3, tokens=4, repeats=1, threads=1, requests=(1, 2), at_once=2)


def run(options: EnginesOptions, *, say: Say) -> JsonRow:
    """Measure all engines that are installed; return one JSON object. Raises `UsageError` without enough cores."""
    usable = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    counts = (options.threads,) if options.threads else (1, 2)
    if len(usable) < max(counts):
        raise UsageError(f"This experiment needs Linux and {max(counts)} processor cores; see --threads.")
    rows: list[JsonRow] = []
    skipped: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="cosine-bench-") as folder:
        files = _files(Family(options.family), Path(folder))
        for cores in counts:
            with on_core(usable[:cores]):
                rows += _rows(options, files, cores, skipped, say, compares=cores == counts[-1])
    facts = {"processor": processor_name(), "context_tokens": CONTEXT_TOKENS, "prefix_tokens": runs.PREFIX_TOKENS}
    return {
        "what": "Greedy decoding, passes and numerics of engines with one model, in real time, in turns.",
        "setup": setup_of(options, **facts),
        "rows": rows,
        "findings": {**findings_of(rows), "skipped": skipped},
    }


def _files(family: Family, folder: Path) -> dict[str, Path]:
    """Write the files of a family's target, by the type of their weights. Raises `UsageError`."""
    source, dense = zoo.location(zoo.target_of(family)), folder / runs.DENSE
    files = {runs.DENSE: dense, FILE: source}
    if source.is_dir():
        files[FILE] = folder / f"{FILE}.gguf"
        write_gguf(source, files[FILE], weights=FILE)
    unfolded = unfold(files[FILE])
    load_model(str(unfolded), dtype=DTYPES["float32"]).save_pretrained(dense)
    for file in unfolded.glob("*token*"):
        shutil.copy(file, dense)
    for weights in ("Q4_0", "Q8_0"):
        files[weights] = folder / f"{weights}.gguf"
        write_gguf(dense, files[weights], weights=weights)
    return files


def _rows(
    options: EnginesOptions,
    files: dict[str, Path],
    cores: int,
    skipped: dict[str, str],
    say: Say,
    *,
    compares: bool,
) -> Iterator[JsonRow]:
    """Yield a row of each engine, which `compares` texts or not; add the reasons of those not run to `skipped`."""
    traces = Prompts(family=Family(options.family), count=options.prompts).traces(TEMPERATURE)
    prompts = [trace.asked or trace.prompt() for trace in traces]
    answers = [
        ((*prompt, *trace.stream[:ANSWER_TOKENS]), len(prompt))
        for prompt, trace in zip(prompts, traces, strict=True)
    ]
    text = tuple(chain.from_iterable(tokens for tokens, _ in answers))
    most = max(options.requests)
    apart = (len(text) - CONTEXT_TOKENS) // most
    contexts = [text[apart * number :][:CONTEXT_TOKENS] for number in range(most)]
    pools: dict[str, ProcessPoolExecutor] = {}

    def done(name: str, work: Callable[..., Any], *told: Any) -> Any:
        return pools[name].submit(work, *told).result()

    with ExitStack() as stack, tempfile.NamedTemporaryFile(suffix=".npy") as reference:
        for name in options.engines:
            pools[name] = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
            try:
                done(name, runs.load, name, files, cores, most)
                done(name, runs.step_ms, contexts[:1], FEWEST_TOKENS)
                say(f"{name} is ready; cores: {cores}")
            except (CosineError, ImportError, BrokenProcessPool) as error:
                skipped[name] = str(error)
                say(f"{name} is left out: {error}")
        ready = [name for name in options.engines if name not in skipped]
        steps: dict[tuple[str, int], list[float]] = {}
        passes: dict[str, list[list[float]]] = {}
        for turn in range(options.repeats):
            for name in in_turn(ready, turn):
                for count in options.requests:
                    tokens = max(FEWEST_TOKENS, options.tokens // (1 + count // 8))
                    steps.setdefault((name, count), []).append(done(name, runs.step_ms, contexts[:count], tokens))
                passes.setdefault(name, []).append(done(name, runs.pass_ms, text))
            say(f"turn {turn + 1} of {options.repeats}; cores: {cores}")
        if compares:
            done(REFERENCE, runs.save_likelihoods, answers, reference.name)
        for name in ready:
            step_ms = {count: median(steps[name, count]) for count in options.requests}
            of_lengths = zip(runs.PASS_TOKENS, zip(*passes[name], strict=True), strict=True)
            row: JsonRow = {
                "engine": name,
                "cores": cores,
                "ms_per_token": {str(count): ms for count, ms in step_ms.items()},
                "tokens_per_s": {str(count): 1e3 * count / ms for count, ms in step_ms.items()},
                "pass_ms": {str(length): median(times) for length, times in of_lengths},
            }
            if compares:
                row["differing"] = done(name, runs.differing, prompts, options.tokens, options.at_once)
                row |= done(name, runs.quality, answers, reference.name)
                say(f"the texts of {name} are compared")
            yield row


def findings_of(rows: Sequence[JsonRow]) -> JsonRow:
    """Return a table with a line for each engine; passes are those on the fewest cores."""
    lines = []
    for (name,), own in grouped(rows, "engine").items():
        speeds = {f"tokens/s, {row['cores']} core{'s' * (row['cores'] > 1)}": row["tokens_per_s"] for row in own}
        first, last = own[0], own[-1]
        divergence = max(0.0, last["divergence_nats"])
        lines.append(
            {
                "engine": name,
                **{title: _joined(figures) for title, figures in speeds.items()},
                "pass, ms": _joined(first["pass_ms"]),
                "texts change": last["differing"],
                "choices/divergence": f"{100 * last['equal_choices']:.1f}%/{divergence:.1g}",
            }
        )
    return {"engines": lines, "positions": rows[-1]["positions"]}


def _joined(figures: dict[str, float]) -> str:
    return "/".join(f"{figure:.{0 if figure >= 100 else 1}f}" for figure in figures.values())
