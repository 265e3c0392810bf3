"""The models that engines are compared on, the embedded target and random Llamas of known sizes, and their load."""

import copy
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import torch
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.utils.logging import disable_progress_bar

from cosine_node import zoo
from cosine_node.bench.engine_transformers import TransformersModel
from cosine_node.bench.experiment import ExperimentOptions
from cosine_node.bench.texts import Tokens, embedded_prompts, random_prompts
from cosine_node.engine.loading import resolve_device, resolve_dtype
from cosine_node.engine.support import is_sixteen_bit
from cosine_node.engine.torch_engine import TorchEngine
from cosine_protocol.errors import UsageError

EMBEDDED: Final = "zoo:target"
"""The name of the embedded target, as it stands in the JSON file."""
ATTENTION: Final = "sdpa"
"""The fastest attention that transformers has without further packages, and its default."""
NEAR_TIE: Final = 1e-3
"""Scores so close that another order of float32 sums may swap them."""
SIXTEEN_BIT_NEAR_TIE: Final = 0.25
"""The same in 16 bits: a few roundings of a bfloat16 score between 4 and 16."""
_LARGE: Final = {
    "vocab_size": 128_256,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
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
        "llama-1b": {
            **_LARGE,
            "hidden_size": 2048,
            "intermediate_size": 8192,
            "num_hidden_layers": 16,
            "tie_word_embeddings": True,
        },
        "llama-8b": {**_LARGE, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32},
    }
)
"""Fields of `LlamaConfig`; the two large ones have the sizes of Llama 3.2 1B and Llama 3.1 8B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions(ExperimentOptions):
    """The models, their load and the repeats. Those of `cuda_models` are measured only on a CUDA device.

    The load: `requests` at once, of `cuda_models` `cuda_requests`, with prompts and outputs of about
    `prompt_tokens` and `tokens`; drafts of `draft_tokens` after contexts of up to `longest_context_tokens`.
    """

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
    def request_tokens(self) -> int:
        """The most tokens of a request."""
        return 2 * self.prompt_tokens + self.tokens

    @property
    def pool_tokens(self) -> int:
        """Room for everything, pages begun included."""
        longest = max(self.request_tokens, self.longest_context_tokens + self.draft_tokens + 1)
        return self.requests * (longest + 64) + 1024


class DoesNotFit(UsageError):
    """A device has no room for a model and what it is to be fed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredModel:
    """One model twice, its weights once: in this engine and as transformers runs it; and where prompts come from.

    `read_bytes` are the weights that every pass reads: all but an input embedding that is not the output's too.
    """

    name: str
    seed: int
    engine: TorchEngine
    rival: TransformersModel
    read_bytes: int
    dtype: str
    near_tie: float
    """The distance of the two best scores within which rounding may decide."""

    def prompts(self, lengths: Sequence[int]) -> list[Tokens]:
        """A prompt of each length."""
        if self.name == EMBEDDED:
            return embedded_prompts(lengths)
        return random_prompts(lengths, vocab_tokens=self.engine.vocab_tokens, seed=self.seed)


def measured_model(name: str, options: EngineOptions) -> MeasuredModel:
    """The model of that name. Raises `UsageError`, for one without room its kind `DoesNotFit`."""
    if name != EMBEDDED and name not in SHAPES:
        raise UsageError(f"There is no model {name!r} to measure; choose one of {', '.join((EMBEDDED, *SHAPES))}.")
    try:
        model = (_stored if name == EMBEDDED else _random)(name, options)
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        engine = TorchEngine(copy.deepcopy(model, shared), pool_tokens=options.pool_tokens)
    except torch.OutOfMemoryError as error:
        raise DoesNotFit(f"The memory of {resolve_device(options.device)} has no room for it.") from error
    embedding, output = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    read = [parameter for parameter in model.parameters() if parameter is not embedding or embedding is output]
    return MeasuredModel(
        name=name,
        seed=options.seed,
        engine=engine,
        rival=TransformersModel(model),
        read_bytes=sum(parameter.nbytes for parameter in read),
        dtype=str(model.dtype).removeprefix("torch."),
        near_tie=SIXTEEN_BIT_NEAR_TIE if is_sixteen_bit(model.dtype) else NEAR_TIE,
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
