"""One engine in a process of its own, and what `engines` measures of it; all functions run in that process."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Final

import numpy as np
import torch
import transformers as tf

from cosine_node.engine.base import Row
from cosine_node.engine.lanes.engine import LaneEngine
from cosine_node.engine.lanes.lanes import FedToken, Floats
from cosine_node.engine.llama.library import llama_library
from cosine_node.engine.llama.loading import load_llama
from cosine_node.engine.llama.model import LlamaContext, LlamaModel
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.engine.torch.loading import DTYPES, load_engine
from cosine_node.engine.vllm.environment import VllmOptions
from cosine_node.engine.vllm.loading import load_vllm
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.unfolding import unfold
from cosine_protocol.request import Sampling

REQUEST_TOKENS: Final = 320
"""Room of a request."""
PREFIX_TOKENS: Final = 200
"""Tokens before the timed passes."""
PASS_TOKENS: Final = (1, 2, 4, 8, 16)
PASS_REPEATS: Final = 5
DENSE: Final = "dense"
"""The name of the folder with weights in float32."""
VLLM_PYTHON: Final = "COSINE_VLLM_PYTHON"

Tokens = Sequence[int]


class OwnEngine:
    """An engine of this project.

    As each of these classes, it decodes greedily, past the ends of texts. `decode` continues contexts, all at once,
    and returns the texts and the milliseconds of a step. `feed` appends tokens to one sequence, which `restart`
    empties, or only tries them; it returns the logits [tokens, vocab].
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

    def restart(self) -> None:
        self._engine.release(self._sequence)
        self._sequence = self._opened(0)

    def feed(self, tokens: Tokens, *, is_kept: bool) -> Floats:
        row = Row.chain(self._sequence, tokens)
        found = np.stack(self._engine.logits([row]))
        (self._engine.keep if is_kept else self._engine.prune)(self._sequence, row.nodes)
        return found

    def _opened(self, prompt_tokens: int) -> int:
        return self._engine.open(sampling=Sampling(), prompt_tokens=prompt_tokens)


class LlamaServer:
    """llama.cpp's own server for texts, and its plain passes."""

    def __init__(self, file: Path, threads: int, requests: int) -> None:
        model, room = LlamaModel(llama_library(), GgufFile.open(file)), REQUEST_TOKENS
        self._passes = LlamaContext(model, tokens=2 * room, lanes=1, pass_tokens=room, threads=threads)
        self._fed = 0
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

    def restart(self) -> None:
        self._passes.clear()
        self._fed = 0

    def feed(self, tokens: Tokens, *, is_kept: bool) -> Floats:
        fed = [FedToken(token, place, [0], True) for place, token in enumerate(tokens, self._fed)]
        found = self._passes.logits(fed).copy()
        if is_kept:
            self._fed += len(tokens)
        else:
            self._passes.forget(0, self._fed)
        return found


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

    def restart(self) -> None:
        self._cache = tf.DynamicCache(config=self._model.config)

    def feed(self, tokens: Tokens, *, is_kept: bool) -> Floats:
        with torch.inference_mode():
            output = self._model(input_ids=torch.tensor([list(tokens)]), past_key_values=self._cache)
        if not is_kept:
            self._cache.crop(-len(tokens))
        found: Floats = output.logits[0].float().numpy()
        return found


_LOADED: list[OwnEngine | LlamaServer | Generate] = []
"""The engine of this process."""


def load(name: str, files: Mapping[str, Path], threads: int, requests: int) -> None:
    """Load an engine with its numerics. Raises `UsageError` or `ImportError` if it is not installed."""
    torch.set_num_threads(threads)
    kind, numerics = name.split()
    room = requests * REQUEST_TOKENS
    if kind == "llama.cpp":
        _LOADED.append(LlamaServer(files[numerics], threads, requests))
    elif kind == "transformers":
        _LOADED.append(Generate(files[DENSE], DTYPES[numerics]))
    elif kind == "llama":
        llama = load_llama(files[numerics], device="cpu", threads=threads, pool_tokens=room)
        _LOADED.append(OwnEngine(llama))
    elif kind == "vllm":
        python = os.environ.get(VLLM_PYTHON)
        options = VllmOptions(Path(python) if python else None)
        vllm = load_vllm(files[DENSE], options, dtype=numerics, threads=threads, pool_tokens=room)
        _LOADED.append(OwnEngine(vllm))
    else:
        is_dtype = numerics in ("float32", "bfloat16")
        quantize, dtype = (None, numerics) if is_dtype else (numerics, "auto")
        source = str(unfold(files["Q4_1"]))
        engine = load_engine(source, dtype=dtype, device="cpu", quantize=quantize, pool_tokens=room)
        _LOADED.append(OwnEngine(engine))


def step_ms(contexts: Sequence[Tokens], tokens: int) -> float:
    """Return the milliseconds of a step of all contexts at once."""
    return _LOADED[0].decode(contexts, tokens)[1]


def pass_ms(tokens: Tokens) -> list[float]:
    """Return the milliseconds of passes over `PASS_TOKENS` tokens after a prefix."""
    engine = _LOADED[0]
    engine.restart()
    engine.feed(tokens[:PREFIX_TOKENS], is_kept=True)
    found = []
    for length in PASS_TOKENS:
        times_s = []
        for _ in range(PASS_REPEATS):
            began_s = perf_counter()
            engine.feed(tokens[PREFIX_TOKENS : PREFIX_TOKENS + length], is_kept=False).argmax(axis=1)
            times_s.append(perf_counter() - began_s)
        found.append(1e3 * median(times_s))
    return found


def differing(prompts: Sequence[Tokens], tokens: int, at_once: int) -> int:
    """Return the number of prompts with more than one text: alone, `at_once` together, and so in reverse order."""
    found: list[set[str]] = [set() for _ in prompts]
    for order, together in ((1, 1), (1, at_once), (-1, at_once)):
        places = range(len(prompts))[::order]
        for start in range(0, len(prompts), together):
            chosen = places[start : start + together]
            texts, _ = _LOADED[0].decode([prompts[place] for place in chosen], tokens)
            for place, text in zip(chosen, texts, strict=True):
                found[place].add(str(text))
    return sum(len(texts) > 1 for texts in found)


def save_likelihoods(answers: Sequence[tuple[Tokens, int]], file: Path) -> None:
    """Write the log-probabilities [positions, vocab] at the tokens of answers, given with their first places."""
    np.save(file, np.concatenate([_likelihoods(tokens, start) for tokens, start in answers]))


def quality(answers: Sequence[tuple[Tokens, int]], file: Path) -> dict[str, float]:
    """Compare the same with a file: the share of equal first choices, and the mean divergence in nats."""
    expected = np.load(file, mmap_mode="r")
    equal, divergence, place = 0, 0.0, 0
    for tokens, start in answers:
        found = _likelihoods(tokens, start)
        told = expected[place : place + len(found)]
        place += len(found)
        equal += int((found.argmax(1) == told.argmax(1)).sum())
        divergence += float((np.exp(told) * (told - found)).sum(dtype=np.float64))
    return {"equal_choices": equal / place, "divergence_nats": divergence / place, "positions": place}


def _likelihoods(tokens: Tokens, start: int) -> Floats:
    _LOADED[0].restart()
    logits = torch.from_numpy(_LOADED[0].feed(tokens[:-1], is_kept=True)[start - 1 :])
    found: Floats = torch.log_softmax(logits, dim=1).numpy()
    return found
