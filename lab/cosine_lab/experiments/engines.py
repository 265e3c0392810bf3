"""Engines on a CPU with one model, in turns: speed, whether texts depend on other requests, and quality.

Each engine has a separate process, pinned to the same cores; only one of them works at a time.
"""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final, Self

import numpy as np
import torch
import transformers as tf

from cosine_engine import zoo
from cosine_engine.base import Row
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.model_files import ModelFiles
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.gguf.writing import write_gguf
from cosine_engine.lanes.engine import LaneEngine
from cosine_engine.lanes.lanes import FedToken, Floats
from cosine_engine.llama.library import llama_library
from cosine_engine.llama.loading import load_llama
from cosine_engine.llama.model import LlamaContext, LlamaModel
from cosine_engine.load_options import LoadOptions, VllmOptions
from cosine_engine.pool_size import PoolSize
from cosine_engine.processor import processor_name
from cosine_engine.torch.engine import TorchEngine
from cosine_engine.torch.loading import DTYPES, load_engine, load_model
from cosine_engine.vllm.loading import load_vllm
from cosine_engine.zoo.family import Family
from cosine_lab.emulation.cores import on_core
from cosine_lab.experiments.experiment import ExperimentOptions, JsonRow, Prompts, Say, grouped, setup_of
from cosine_lab.experiments.here import in_turn
from cosine_lab.experiments.results import rounded
from cosine_protocol.errors import CosineError, UsageError
from cosine_protocol.request import Sampling

FILE: Final = "Q4_1"
"""The weights of the model that all engines run, as in its file; others are converted from these."""
DENSE: Final = "dense"
"""The name of the folder with weights in float32."""
REFERENCE: Final = "transformers float32"
ENGINES: Final = (
    *(f"llama.cpp {weights}" for weights in (FILE, "Q4_0", "Q8_0")),
    *(REFERENCE, "transformers bfloat16"),
    *(f"torch {numerics}" for numerics in ("int4", "float16", "float32", "bfloat16")),
    *(f"llama {FILE}", "vllm bfloat16"),
)
"""llama.cpp and transformers by themselves, then the values of `--engine`, each with its numerics."""
VLLM_PYTHON: Final = "COSINE_VLLM_PYTHON"
REQUEST_TOKENS: Final = 320
"""Room of a request."""
CONTEXT_TOKENS: Final = 16
PREFIX_TOKENS: Final = 200
"""Tokens before the timed ones of each request, and before the timed passes."""
PASS_TOKENS: Final = (1, 2, 4, 8, 16)
PASS_REPEATS: Final = 5
ANSWER_TOKENS: Final = 64
"""Tokens of an answer, recorded at `TEMPERATURE`, that are compared, at most."""
TEMPERATURE: Final = 0.8
FEWEST_TOKENS: Final = 2
"""New tokens of a request, of which the first is not timed."""

Tokens = Sequence[int]
Files = Mapping[str, Path]


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
                measured = _rows(options, files, cores, skipped, say, compares=cores == counts[-1])
                # As in the file, so that the table follows from it.
                rows += map(rounded, measured)
    facts = {"processor": processor_name(), "context_tokens": CONTEXT_TOKENS, "prefix_tokens": PREFIX_TOKENS}
    return {
        "what": "Greedy decoding, passes and numerics of engines with one model, in real time, in turns.",
        "setup": setup_of(options, **facts),
        "rows": rows,
        "findings": {**findings_of(rows), "skipped": skipped},
    }


def _files(family: Family, folder: Path) -> Files:
    """Write the files of a family's target, by the type of their weights. Raises `UsageError`."""
    source, dense = zoo.location(zoo.target_of(family)), folder / DENSE
    files = {DENSE: dense, FILE: source}
    if source.is_dir():
        files[FILE] = folder / f"{FILE}.gguf"
        write_gguf(source, files[FILE], weights=FILE)
    unfolded = unfold(files[FILE])
    load_model(ModelFiles.in_folder(unfolded), dtype=torch.float32).save_pretrained(dense)
    for file in unfolded.glob("*token*"):
        shutil.copy(file, dense)
    for weights in ("Q4_0", "Q8_0"):
        files[weights] = folder / f"{weights}.gguf"
        write_gguf(dense, files[weights], weights=weights)
    return files


def _rows(
    options: EnginesOptions, files: Files, cores: int, skipped: dict[str, str], say: Say, *, compares: bool
) -> Iterator[JsonRow]:
    """Yield a row of each engine, which `compares` texts or not; add the reasons of those not run to `skipped`."""
    traces = Prompts(family=Family(options.family), count=options.prompts).traces(TEMPERATURE)
    prompts = [trace.asked or trace.prompt() for trace in traces]
    answers = [(prompt, trace.stream[:ANSWER_TOKENS]) for prompt, trace in zip(prompts, traces, strict=True)]
    text = tuple(chain(*chain(*answers)))
    apart = (len(text) - CONTEXT_TOKENS) // max(options.requests)
    contexts = [text[apart * number :][:CONTEXT_TOKENS] for number in range(max(options.requests))]
    # Every prompt alone, with others, and with them in another order.
    orders = ((prompts, 1), (prompts, options.at_once), (prompts[::-1], options.at_once))
    groups = [order[at : at + size] for order, size in orders for at in range(0, len(order), size)]
    pools: dict[str, ProcessPoolExecutor] = {}

    def done(name: str, work: Callable[..., Any], *told: Any) -> Any:
        return pools[name].submit(work, *told).result()

    with ExitStack() as stack:
        for name in options.engines:
            pools[name] = stack.enter_context(ProcessPoolExecutor(1, mp_context=get_context("spawn")))
            try:
                done(name, load, name, files, cores, len(contexts))
                done(name, decode, contexts[:1], FEWEST_TOKENS)
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
                    steps.setdefault((name, count), []).append(done(name, decode, contexts[:count], tokens)[1])
                passes.setdefault(name, []).append(done(name, pass_ms, text))
            say(f"turn {turn + 1} of {options.repeats}; cores: {cores}")
        expected = done(REFERENCE, likelihoods, answers) if compares else None
        for name in ready:
            step_ms = {str(count): median(steps[name, count]) for count in options.requests}
            of_lengths = zip(PASS_TOKENS, zip(*passes[name], strict=True), strict=True)
            row: JsonRow = {
                "engine": name,
                "cores": cores,
                "ms_per_token": step_ms,
                "tokens_per_s": {count: 1e3 * int(count) / ms for count, ms in step_ms.items()},
                "pass_ms": {str(length): median(times) for length, times in of_lengths},
            }
            if expected is not None:
                texts = [done(name, decode, group, options.tokens)[0] for group in groups]
                pairs = set(zip(chain(*groups), map(str, chain(*texts)), strict=True))
                found = done(name, likelihoods, answers)
                divergence = (np.exp(expected) * (expected - found)).sum(axis=1, dtype=np.float64)
                row |= {
                    "differing": sum(count > 1 for count in Counter(prompt for prompt, _ in pairs).values()),
                    "equal_choices": float((found.argmax(axis=1) == expected.argmax(axis=1)).mean()),
                    "divergence_nats": float(divergence.mean()),
                    "positions": len(found),
                }
                say(f"the texts of {name} are compared")
            yield row


def findings_of(rows: Sequence[JsonRow]) -> JsonRow:
    """Return a table with a line for each engine; passes are those on the fewest cores."""
    lines = []
    for (name,), own in grouped(rows, "engine").items():
        speeds = {f"tokens/s, {row['cores']} core{'s' * (row['cores'] > 1)}": row["tokens_per_s"] for row in own}
        first, last = own[0], own[-1]
        line = {"engine": name, **{title: _joined(figures) for title, figures in speeds.items()}}
        line |= {"pass, ms": _joined(first["pass_ms"]), "texts change": last["differing"]}
        divergence = max(0.0, last["divergence_nats"])
        lines.append(line | {"choices/divergence": f"{100 * last['equal_choices']:.1f}%/{divergence:.1g}"})
    return {"engines": lines, "positions": rows[-1]["positions"]}


def _joined(figures: dict[str, float]) -> str:
    return "/".join(f"{figure:.{0 if figure >= 100 else 1}f}" for figure in figures.values())


class OwnEngine:
    """An engine of this project.

    As each of these classes, it decodes greedily, past the ends of texts. `decode` continues contexts, all at once,
    and returns the texts and the milliseconds of a step. `feed` begins a sequence with tokens, or tries them at a
    place `start` after these; it returns the logits [tokens, vocab].
    """

    def __init__(self, engine: TorchEngine | LaneEngine) -> None:
        self._engine = engine
        self._sequence = self._opened(0)

    def decode(self, contexts: Sequence[Tokens], tokens: int) -> tuple[list[Any], float]:
        opened = [self._opened(len(context)) for context in contexts]
        texts: list[list[int]] = [[] for _ in contexts]
        fed, began_s = list(contexts), 0.0
        for _ in range(tokens):
            rows = [Row.chain(one, new, scored_from=len(new) - 1) for one, new in zip(opened, fed, strict=True)]
            for text, row, result in zip(texts, rows, self._engine.forward(rows), strict=True):
                self._engine.keep(row.sequence, row.nodes)
                text.append(result.choices[0].token)
            fed = [text[-1:] for text in texts]
            began_s = began_s or perf_counter()
        step_ms = 1e3 * (perf_counter() - began_s) / (tokens - 1)
        for one in opened:
            self._engine.release(one)
        return texts, step_ms

    def feed(self, tokens: Tokens, start: int) -> Floats:
        if not start:
            self._engine.release(self._sequence)
            self._sequence = self._opened(0)
        row = Row.chain(self._sequence, tokens)
        found = np.stack(self._engine.logits([row]))
        (self._engine.prune if start else self._engine.keep)(self._sequence, row.nodes)
        return found

    def _opened(self, prompt_tokens: int) -> int:
        return self._engine.open(sampling=Sampling(), prompt_tokens=prompt_tokens)


class LlamaServer:
    """llama.cpp's own server for texts, and its plain passes."""

    def __init__(self, file: Path, threads: int, requests: int) -> None:
        model, room = LlamaModel(llama_library(), GgufFile.open(file)), REQUEST_TOKENS
        self._passes = LlamaContext(model, tokens=2 * room, lanes=1, pass_tokens=room, threads=threads)
        from xllamacpp import CommonParams, Server

        params = CommonParams()
        params.model.path, params.n_parallel, params.n_ctx = str(file), requests, requests * room
        params.verbosity = 0
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        self._server = Server(params)

    def decode(self, contexts: Sequence[Tokens], tokens: int) -> tuple[list[Any], float]:
        with ThreadPoolExecutor(len(contexts)) as pool:
            # First the contexts alone, which the server keeps, so that no prompt is read between the timed steps.
            list(pool.map(partial(self._asked, tokens=1), contexts))
            done = list(pool.map(partial(self._asked, tokens=tokens), contexts))
        step_ms = median(float(one["timings"]["predicted_per_token_ms"]) for one in done)
        return [one["choices"][0]["text"] for one in done], step_ms

    def _asked(self, context: Tokens, tokens: int) -> Any:
        asked = {"prompt": list(context), "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
        return self._server.handle_completions(asked)

    def feed(self, tokens: Tokens, start: int) -> Floats:
        self._passes.forget(0, start)
        fed = [FedToken(token, place, [0], True) for place, token in enumerate(tokens, start)]
        return self._passes.logits(fed).copy()


class Generate:
    """`generate` of transformers."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._model: Any = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
        self._model.generation_config.eos_token_id = None
        self._cache = tf.DynamicCache()

    def decode(self, contexts: Sequence[Tokens], tokens: int) -> tuple[list[Any], float]:
        longest = max(map(len, contexts))
        ids = torch.tensor([[0] * (longest - len(context)) + list(context) for context in contexts])
        mask = torch.tensor([[place >= longest - len(context) for place in range(longest)] for context in contexts])
        times_s: list[float] = []

        def note(chosen: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
            times_s.append(perf_counter())
            return torch.zeros(len(chosen), dtype=torch.bool)

        told: Any = {"max_new_tokens": tokens, "do_sample": False, "pad_token_id": 0}
        told["stopping_criteria"] = tf.StoppingCriteriaList([note])
        found = self._model.generate(ids, attention_mask=mask.long(), **told)
        return found[:, longest:].tolist(), 1e3 * (times_s[-1] - times_s[0]) / (tokens - 1)

    def feed(self, tokens: Tokens, start: int) -> Floats:
        if not start:
            self._cache = tf.DynamicCache(config=self._model.config)
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([list(tokens)]), past_key_values=self._cache)
        if start:
            self._cache.crop(-len(tokens))
        found: Floats = output.logits[0].float().numpy()
        return found


_LOADED: list[OwnEngine | LlamaServer | Generate] = []
"""The engine of this process."""


def load(name: str, files: Files, threads: int, requests: int) -> None:
    """Load an engine with its numerics. Raises `UsageError` or `ImportError` if it is not installed."""
    torch.set_num_threads(threads)
    kind, numerics = name.split()
    how = LoadOptions(device="cpu", threads=threads, pool_size=PoolSize(exact_tokens=requests * REQUEST_TOKENS))
    if kind == "llama.cpp":
        _LOADED.append(LlamaServer(files[numerics], threads, requests))
    elif kind == "transformers":
        _LOADED.append(Generate(files[DENSE], DTYPES[numerics]))
    elif kind == "llama":
        _LOADED.append(OwnEngine(load_llama(GgufFile.open(files[numerics]), how)))
    elif kind == "vllm":
        options = VllmOptions(Path(os.environ[VLLM_PYTHON]) if VLLM_PYTHON in os.environ else None)
        told = replace(how, dtype=numerics, vllm=options)
        _LOADED.append(OwnEngine(load_vllm(ModelFiles.in_folder(files[DENSE]), told)))
    else:
        quantize, dtype = (None, numerics) if numerics in ("float32", "bfloat16") else (numerics, "auto")
        source = ModelFiles.in_folder(unfold(files[FILE]))
        _LOADED.append(OwnEngine(load_engine(source, replace(how, dtype=dtype, quantize=quantize))))


def decode(contexts: Sequence[Tokens], tokens: int) -> tuple[list[Any], float]:
    return _LOADED[0].decode(contexts, tokens)


def pass_ms(tokens: Tokens) -> list[float]:
    """Return the milliseconds of passes over `PASS_TOKENS` tokens after a prefix."""
    _LOADED[0].feed(tokens[:PREFIX_TOKENS], 0)
    found = []
    for length in PASS_TOKENS:
        times_s = []
        for _ in range(PASS_REPEATS):
            began_s = perf_counter()
            _LOADED[0].feed(tokens[PREFIX_TOKENS : PREFIX_TOKENS + length], PREFIX_TOKENS).argmax(axis=1)
            times_s.append(perf_counter() - began_s)
        found.append(1e3 * median(times_s))
    return found


def likelihoods(answers: Sequence[tuple[Tokens, Tokens]]) -> Floats:
    """Return the log-probabilities [positions, vocab] at the tokens of answers, given with their prompts."""
    logits = [_LOADED[0].feed((*prompt, *answer[:-1]), 0)[len(prompt) - 1 :] for prompt, answer in answers]
    found: Floats = torch.log_softmax(torch.from_numpy(np.concatenate(logits)), dim=1).numpy()
    return found
