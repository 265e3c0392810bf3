"""The models that engines are compared on, the embedded target and Llamas of known sizes, and their load."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from cosine_lab.experiments.experiment import ExperimentOptions

EMBEDDED: Final = "zoo:target"
"""The name of the embedded target, as it stands in the JSON file."""
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
