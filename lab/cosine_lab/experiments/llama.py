"""A GGUF file in llama.cpp as this engine runs it, in its own plain loop, and in PyTorch, in real time."""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from cosine_lab.experiments.decoding import Decoded, alternately, decoded
from cosine_lab.experiments.experiment import ExperimentOptions, JsonRow, Say, setup_of
from cosine_node import zoo
from cosine_node.engine.base import Engine
from cosine_node.engine.curve import measure_curve
from cosine_node.engine.llama.library import llama_library
from cosine_node.engine.llama.model import FedToken, LlamaContext, LlamaModel
from cosine_node.engine.pool_size import PoolSize
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import write_gguf
from cosine_node.models.engine_kind import EngineChoice, EngineKind, load_with
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling

OURS: Final = "llama.cpp, this engine"
LOOP: Final = "llama.cpp, a plain loop"
TORCH: Final = "PyTorch in float32"
PASS_TOKENS: Final = (1, 4, 8, 16)
"""The lengths of passes that are timed: plain decoding, and token trees of usual sizes."""
ONE: Final = "one request"
SAMPLED: Final = "one request, sampled"
TEMPERATURE: Final = 0.8
"""Of the sampled request: this project's usual one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaOptions(ExperimentOptions):
    """The file, the load and the repeats; without a file, `quick` writes the embedded target as one."""

    model: str = "zoo:smol-target"
    threads: int = 1
    repeats: int = 5
    tokens: int = 64
    prompt_tokens: int = 64
    requests: int = 8

    @classmethod
    def quick(cls) -> "LlamaOptions":
        return cls(model="", repeats=1, tokens=6, prompt_tokens=8, requests=2)


def run(options: LlamaOptions, *, say: Say) -> JsonRow:
    """Measure; the result (docs/benchmarks.md). Raises `UsageError` where there is no such file."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "target.Q8_0.gguf"
        if options.model:
            resolved = zoo.resolve(options.model)
            if not isinstance(resolved, Path) or not resolved.is_file():
                raise UsageError(f"{options.model} is no GGUF file on this machine; --model names one.")
            file = resolved
        else:
            write_gguf(zoo.folder("target"), file)
        rows = list(_rows(file, options, Path(folder), say))
    return {
        "what": "A GGUF file in llama.cpp as this engine runs it, in llama.cpp's own plain loop, and dequantised "
        "in PyTorch, in real time. They take turns, so what counts is the ratio of their medians.",
        "setup": setup_of(options, time="real; every ratio is of medians of runs that took turns"),
        "rows": rows,
        "findings": {"of_loop": [row for row in rows if row["part"] in (ONE, SAMPLED) and row["engine"] == OURS]},
    }


def _rows(file: Path, options: LlamaOptions, cache: Path, say: Say) -> Iterator[JsonRow]:
    before_bytes = resident_bytes()
    engines: dict[str, Engine] = {}
    for name, kind in ((OURS, EngineKind.LLAMA), (TORCH, EngineKind.TORCH)):
        loading = EngineChoice(
            kind=kind, device="cpu", threads=options.threads, pool_size=PoolSize(requests=options.requests)
        )
        engines[name] = load_with(loading, unfold(file, cache_folder=cache), file)
        curve = measure_curve(engines[name], clock=time.perf_counter, tokens=PASS_TOKENS, repeats=options.repeats)
        yield {
            "part": "passes",
            "engine": name,
            "resident_mib": (resident_bytes() - before_bytes) / 2**20,
            **{f"ms_of_{tokens}": 1000 * seconds for tokens, seconds in curve.points},
        }
        before_bytes = resident_bytes()
        say(f"{name}: passes")
    loop = PlainLoop(file, tokens=2 * (options.prompt_tokens + options.tokens), threads=options.threads)
    vocab_tokens = engines[OURS].vocab_tokens
    rng = random.Random(options.seed)
    prompts = [
        tuple(rng.randrange(vocab_tokens) for _ in range(options.prompt_tokens)) for _ in range(options.requests)
    ]
    counts = [options.tokens] * options.requests
    one = {name: partial(decoded, engine, prompts[:1], counts[:1]) for name, engine in engines.items()}
    plain = {LOOP: lambda: [loop.decode(prompts[0], options.tokens)]}
    yield from _timed(ONE, {**one, **plain}, options, 1)
    say(ONE)
    seeds = count(options.seed)

    def sampled() -> list[Decoded]:
        # Noise is kept for a while, so each run must have a seed that was not used before.
        sampling = Sampling(temperature=TEMPERATURE, seed=next(seeds))
        return decoded(engines[OURS], prompts[:1], counts[:1], samplings=[sampling])

    yield from _timed(SAMPLED, {OURS: sampled, **plain}, options, 1)
    say(SAMPLED)
    many = {name: partial(decoded, engine, prompts, counts) for name, engine in engines.items()}
    yield from _timed(f"{options.requests} requests at once", many, options, options.requests)
    say(f"{options.requests} requests at once")


def _timed(
    part: str, runs: Mapping[str, Callable[[], list[Decoded]]], options: LlamaOptions, requests: int
) -> Iterator[JsonRow]:
    timed = alternately(runs, repeats=options.repeats, clock=time.perf_counter)
    baseline_s = timed[LOOP if LOOP in timed else TORCH].median_s
    for name, one in timed.items():
        yield {
            "part": part,
            "engine": name,
            "tokens_per_s": requests * options.tokens / one.median_s,
            "ratio": baseline_s / one.median_s,
        }


class PlainLoop:
    """llama.cpp's cache and passes, one token after the other, without pages, trees or a sampler of ours."""

    def __init__(self, file: Path, *, tokens: int, threads: int) -> None:
        model = LlamaModel(llama_library(), GgufFile.open(file))
        self._context = LlamaContext(model, tokens=tokens, lanes=1, pass_tokens=512, threads=threads)

    def decode(self, prompt: Sequence[int], tokens: int) -> Decoded:
        """The greedy text after a prompt."""
        fed = [FedToken(token, place, [0], place == len(prompt) - 1) for place, token in enumerate(prompt)]
        found = Decoded()
        while True:
            found.tokens.append(int(self._context.logits(fed)[-1].argmax()))
            if len(found.tokens) == tokens:
                break
            fed = [FedToken(found.tokens[-1], fed[-1].position + 1, [0], True)]
        self._context.forget(0, 0)
        return found


def resident_bytes() -> int:
    """The memory that this process has now, 0 where the system does not tell (proc(5))."""
    try:
        lines = Path("/proc/self/status").read_text("ascii").splitlines()
        return 1024 * int(next(line.split()[1] for line in lines if line.startswith("VmRSS:")))
    except (OSError, ValueError, StopIteration):
        return 0
