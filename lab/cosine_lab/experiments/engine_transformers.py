"""Transformers' own decoding of a model, to measure this engine against: greedy, without end tokens.

A rival shares its weights with the engine it is compared with, so both read the same memory in the same dtype.
"""

import copy
import logging
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
import transformers
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    LlamaConfig,
    StaticCache,
)
from transformers.utils.logging import disable_progress_bar

from cosine_lab.experiments.experiment import ExperimentOptions
from cosine_lab.experiments.texts import Tokens, embedded_prompts, random_prompts
from cosine_node import zoo
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.engine.torch.loading import resolve_device, resolve_dtype
from cosine_node.engine.torch.support import cache_parameter
from cosine_protocol.errors import CosineError, UsageError

ATTENTION: Final = "sdpa"
"""The fastest attention that transformers has without further packages, and its default."""
NEAR_TIE: Final = 1e-3
"""Scores so close that another order of float32 sums may swap them."""
SIXTEEN_BIT_NEAR_TIE: Final = 0.25
"""The same in 16 bits: a few roundings of a bfloat16 score between 4 and 16."""
PAGE_TOKENS: Final = 256
"""The default page of transformers' continuous batching, given so that blocks can be counted in it."""
POLL_S: Final = 1.0
"""How soon it is noticed that continuous batching has stopped without a result."""
STOP_S: Final = 10.0
"""Bounds the wait for the batching thread to end; it ends after its present pass."""
BATCHING_LOGGER: Final = "ContinuousBatchingLogger"
"""The logger of transformers' continuous batching, whose lines would end up in a report."""
FAILURES: Final = (TypeError, ValueError, AttributeError, LookupError, ImportError, RuntimeError)
"""Raised by continuous batching where it cannot run."""

EMBEDDED: Final = "zoo:target"
"""The name of the embedded target, as it stands in the JSON file."""
SHAPES: Final[Mapping[str, Mapping[str, Any]]] = MappingProxyType(
    {
        "llama-tiny": {
            "vocab_size": 256,
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
        },
        "llama-100m": {
            "vocab_size": 32_000,
            "hidden_size": 768,
            "intermediate_size": 2048,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "num_key_value_heads": 12,
            "max_position_embeddings": 2048,
            "tie_word_embeddings": True,
        },
    }
)
"""Fields of `LlamaConfig`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(ExperimentOptions):
    """The models, their load and the repeats.

    The load: `requests` at once, with prompts and outputs of about `prompt_tokens` and `tokens`; drafts of
    `draft_tokens` after contexts of up to `longest_context_tokens`.
    """

    device: str = "auto"
    dtype: str = "auto"
    threads: int = 1
    repeats: int = 5
    tokens: int = 128
    prompt_tokens: int = 64
    requests: int = 16
    draft_tokens: int = 4
    longest_context_tokens: int = 512
    models: tuple[str, ...] = (EMBEDDED, "llama-100m")

    @classmethod
    def quick(cls) -> "EngineOptions":
        return cls(
            repeats=2,
            tokens=6,
            prompt_tokens=8,
            requests=3,
            longest_context_tokens=32,
            models=("llama-tiny",),
        )

    @property
    def request_tokens(self) -> int:
        """The most tokens of a request."""
        return 2 * self.prompt_tokens + self.tokens

    @property
    def pool_tokens(self) -> int:
        """Room for everything, pages begun included."""
        longest = max(self.request_tokens, self.longest_context_tokens + self.draft_tokens + 1)
        return self.requests * (longest + 64) + 1024


Texts = list[tuple[int, ...]]


class RivalFailed(CosineError):
    """Transformers could not do it on this device."""


class TransformersModel:
    """A model in transformers' own hands; not thread-safe."""

    def __init__(self, model: Any) -> None:
        self._model = model.eval()
        self._model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)

    def generate(self, prompt: Sequence[int], *, tokens: int) -> tuple[int, ...]:
        """`tokens` greedy tokens by `generate` with its default cache."""
        ids = torch.tensor([list(prompt)], dtype=torch.int64, device=self._model.device)
        output = self._model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=tokens)
        return tuple(output[0, len(prompt) :].tolist())

    @contextmanager
    def continuous_batching(
        self, *, requests: int, request_tokens: int, batch_tokens: int
    ) -> Iterator[Callable[[Sequence[Sequence[int]], Sequence[int]], Texts]]:
        """Serves prompts, each with its own number of tokens; raises `RivalFailed` where that cannot be.

        `requests` of up to `request_tokens` tokens are served at once; a pass takes at most `batch_tokens`.
        """
        greedy = GenerationConfig(do_sample=False, pad_token_id=0, eos_token_id=-1, max_new_tokens=request_tokens)
        with ExitStack() as stack:
            stack.enter_context(_quiet(BATCHING_LOGGER))
            try:
                # Not imported by name: an older transformers has none of that name, or of these fields.
                config = transformers.ContinuousBatchingConfig(
                    page_size=PAGE_TOKENS,
                    # A page beyond what is needed keeps the scheduler from holding requests back.
                    num_blocks=requests * (request_tokens // PAGE_TOKENS + 2),
                    max_batch_tokens=batch_tokens,
                    allow_block_sharing=False,
                )
                manager = stack.enter_context(
                    self._model.continuous_batching_context_manager(
                        generation_config=greedy, continuous_batching_config=config, timeout=STOP_S
                    )
                )
            except FAILURES as failure:
                raise RivalFailed(_sentence(failure)) from failure
            yield lambda prompts, tokens: _served(manager, prompts, tokens, at_once=requests)

    def padded(
        self, contexts: Sequence[Sequence[int]], *, fed_tokens: int, has_static_cache: bool
    ) -> "PaddedBatch":
        """Sequences padded to the longest, ready to be fed `fed_tokens` tokens each, again and again."""
        return PaddedBatch(self._model, contexts, fed_tokens=fed_tokens, has_static_cache=has_static_cache)


class PaddedBatch:
    """Sequences of unequal length as one rectangle, padded on the left, as `generate` wants a batch."""

    def __init__(
        self, model: Any, contexts: Sequence[Sequence[int]], *, fed_tokens: int, has_static_cache: bool
    ) -> None:
        self._model = model
        width = max(len(context) for context in contexts)
        padded = [[0] * (width - len(context)) + list(context) for context in contexts]
        self._mask = torch.ones(len(contexts), width + fed_tokens, dtype=torch.int64, device=model.device)
        for mask, context in zip(self._mask, contexts, strict=True):
            mask[: width - len(context)] = 0
        places = (self._mask.cumsum(-1) - 1).clamp_min(0)
        self._places = places[:, width:]
        self._cache_name = cache_parameter(type(model)) or ""
        self._cache: Any = DynamicCache(config=model.config)
        if has_static_cache:
            self._cache = StaticCache(config=model.config, max_cache_len=width + fed_tokens)
        with torch.inference_mode():
            self._logits(padded, self._mask[:, :width], places[:, :width], logits_to_keep=1)

    def verify(self, fed: Sequence[Sequence[int]]) -> list[list[int]]:
        """The greedy token after each fed one; afterwards the batch is as before."""
        with torch.inference_mode():
            chosen: list[list[int]] = self._logits(fed, self._mask, self._places).argmax(-1).tolist()
            if isinstance(self._cache, StaticCache):
                for layer in self._cache.layers:
                    layer.cumulative_length.sub_(len(fed[0]))
            else:
                self._cache.crop(-len(fed[0]))
        return chosen

    def _logits(self, rows: Sequence[Sequence[int]], mask: Tensor, places: Tensor, **extra: Any) -> Tensor:
        ids = torch.tensor([list(row) for row in rows], dtype=torch.int64, device=self._model.device)
        output: Tensor = self._model(
            input_ids=ids, attention_mask=mask, position_ids=places, **{self._cache_name: self._cache}, **extra
        ).logits
        return output


def _served(manager: Any, prompts: Sequence[Sequence[int]], tokens: Sequence[int], *, at_once: int) -> Texts:
    waiting = deque(zip(prompts, tokens, strict=True))
    names: list[str] = []
    texts: dict[str, tuple[int, ...]] = {}
    while len(texts) < len(prompts):
        while waiting and len(names) - len(texts) < at_once:
            prompt, count = waiting.popleft()
            try:
                names.append(manager.add_request(list(prompt), max_new_tokens=count))
            except FAILURES as failure:
                raise RivalFailed(_sentence(failure)) from failure
        found = manager.get_result(timeout=POLL_S)
        if found is None and not manager.is_running():
            raise RivalFailed("Continuous batching stopped before all requests were served.")
        if found is not None and found.error is not None:
            raise RivalFailed(_sentence(found.error))
        if found is not None and found.is_finished():
            texts[found.request_id] = tuple(found.generated_tokens)
    return [texts[name] for name in names]


def _sentence(failure: object) -> str:
    return next(iter(str(failure).splitlines()), "") or type(failure).__name__


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Without a logger's lines: what it would say comes back as errors of requests."""
    logger = logging.getLogger(name)
    before, logger.level = logger.level, logging.CRITICAL
    try:
        yield
    finally:
        logger.level = before


def device_name(device: str) -> str:
    """The name of a device in a report: its kind, or the model of an accelerator."""
    where = resolve_device(device)
    return torch.cuda.get_device_name(where) if where.type == "cuda" else where.type


def versions() -> dict[str, str]:
    """The libraries whose speed is measured."""
    return {"torch": torch.__version__, "transformers": transformers.__version__}


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """One model twice, its weights once, in this engine and as transformers runs it; and its prompts."""

    name: str
    seed: int
    engine: TorchEngine
    rival: TransformersModel
    dtype: str
    near_tie: float
    """The distance of the two best scores within which rounding may decide."""

    def prompts(self, lengths: Sequence[int]) -> list[Tokens]:
        """A prompt of each length."""
        if self.name == EMBEDDED:
            return embedded_prompts(lengths)
        return random_prompts(lengths, vocab_tokens=self.engine.vocab_tokens, seed=self.seed)


def measured_model(name: str, options: EngineOptions) -> MeasuredModel:
    """The model of that name. Raises `UsageError`."""
    if name != EMBEDDED and name not in SHAPES:
        raise UsageError(f"There is no model {name!r} to measure; choose one of {', '.join((EMBEDDED, *SHAPES))}.")
    model = (_stored if name == EMBEDDED else _random)(name, options)
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    engine = TorchEngine(copy.deepcopy(model, shared), pool_tokens=options.pool_tokens)
    return MeasuredModel(
        name=name,
        seed=options.seed,
        engine=engine,
        rival=TransformersModel(model),
        dtype=str(model.dtype).removeprefix("torch."),
        near_tie=SIXTEEN_BIT_NEAR_TIE if model.dtype.itemsize < 4 else NEAR_TIE,
    )


def _stored(name: str, options: EngineOptions) -> Any:
    """The embedded target in transformers' hands."""
    folder, device = zoo.folder(name.removeprefix("zoo:")), resolve_device(options.device)
    config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
    if not sys.stderr.isatty():
        disable_progress_bar()
    return AutoModelForCausalLM.from_pretrained(
        folder,
        dtype=resolve_dtype(options.dtype, device=device, config=config),
        attn_implementation=ATTENTION,
        trust_remote_code=False,
    ).to(device)


def _random(name: str, options: EngineOptions) -> Any:
    """A Llama with random weights, the same for the same seed and device."""
    device = resolve_device(options.device)
    stored = torch.float32 if device.type == "cpu" else torch.bfloat16
    config = LlamaConfig(**SHAPES[name], dtype=stored, bos_token_id=None, eos_token_id=None)
    dtype = resolve_dtype(options.dtype, device=device, config=config)
    with torch.random.fork_rng([device] if device.type == "cuda" else []), device:
        torch.manual_seed(options.seed)
        return AutoModelForCausalLM.from_config(
            config, dtype=dtype, attn_implementation=ATTENTION, trust_remote_code=False
        )
