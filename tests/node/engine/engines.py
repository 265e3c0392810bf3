"""Engines of every kind around one and the same model."""

from collections.abc import Mapping
from itertools import count
from typing import Any, Final, Protocol

from cosine_node.engine.base import Engine
from cosine_node.engine.llama.engine import LlamaEngine
from cosine_node.engine.llama.library import llama_library
from cosine_node.engine.llama.model import LlamaContext, LlamaModel
from cosine_node.engine.torch.engine import TorchEngine
from cosine_node.gguf.file import GgufFile
from tests.node.engine.gguf_models import gguf_of

_NUMBERS = count()


class EngineOf(Protocol):
    """Makes an engine with a pool of so many tokens around a model of transformers."""

    def __call__(self, model: Any, *, pool_tokens: int) -> Engine: ...


def llama_engine(
    model: Any, *, pool_tokens: int, weights: str = "F32", lanes: int = 64, pass_tokens: int = 63
) -> LlamaEngine:
    """An engine of llama.cpp around a model of transformers, which is written as a file first."""
    file = GgufFile.open(gguf_of(model, f"model-{next(_NUMBERS)}", weights=weights))
    loaded = LlamaModel(llama_library(), file)
    return LlamaEngine(
        LlamaContext(loaded, tokens=pool_tokens, lanes=lanes, pass_tokens=pass_tokens, threads=1),
        pool_tokens=pool_tokens,
        vocab_tokens=loaded.vocab_tokens,
        context_tokens=file.context_tokens,
        numerics=f"gguf:{weights}+llama.cpp",
    )


KINDS: Final[Mapping[str, EngineOf]] = {"torch": TorchEngine, "llama.cpp": llama_engine}
"""The engines that have a model, by the library that runs it."""
