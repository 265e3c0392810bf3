"""The models that engines are compared on, the embedded target and random Llamas of known sizes, and their load."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Any, Final

from cosine_node import zoo
from cosine_node.bench.engine_rivals import NEAR_TIE, SIXTEEN_BIT_NEAR_TIE
from cosine_node.bench.engine_transformers import Pair, random_pair, stored_pair
from cosine_node.bench.texts import Tokens, embedded_prompts, random_prompts
from cosine_protocol.errors import UsageError

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
class EngineLoad:
    """The load: tokens of prompts and outputs, requests at once, repeats that count."""

    prompt_tokens: int
    tokens: int
    requests: int
    draft_tokens: int
    longest_context_tokens: int
    repeats: int

    @property
    def request_tokens(self) -> int:
        """The most tokens of a request."""
        return 2 * self.prompt_tokens + self.tokens

    @property
    def pool_tokens(self) -> int:
        """Room for everything, pages begun included."""
        longest = max(self.request_tokens, self.longest_context_tokens + self.draft_tokens + 1)
        return self.requests * (longest + 64) + 1024


@dataclass(frozen=True, slots=True)
class MeasuredModel:
    """A model to measure on, and where its prompts come from."""

    name: str
    pair: Pair
    seed: int

    def prompts(self, lengths: Sequence[int]) -> list[Tokens]:
        """A prompt of each length."""
        if self.name == EMBEDDED:
            return embedded_prompts(lengths)
        return random_prompts(lengths, vocab_tokens=self.pair.vocab_tokens, seed=self.seed)

    @property
    def near_tie(self) -> float:
        """The distance of the two best scores within which rounding may decide."""
        return SIXTEEN_BIT_NEAR_TIE if self.pair.is_sixteen_bit else NEAR_TIE


def measured_model(name: str, *, seed: int, device: str, dtype: str, pool_tokens: int) -> MeasuredModel:
    """The model of that name. Raises `UsageError`."""
    if name != EMBEDDED and name not in SHAPES:
        raise UsageError(f"There is no model {name!r} to measure; choose one of {', '.join((EMBEDDED, *SHAPES))}.")
    made = (
        partial(stored_pair, zoo.folder("target"))
        if name == EMBEDDED
        else partial(random_pair, SHAPES[name], seed=seed)
    )
    return MeasuredModel(name, made(device=device, dtype=dtype, pool_tokens=pool_tokens), seed)
