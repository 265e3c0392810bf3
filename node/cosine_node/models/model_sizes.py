"""Vocabulary size and context length of a model, from its configuration."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from cosine_node.engine import context_length
from cosine_p2p.request.model_config import TEXT_PARTS, read_model_config, text_part
from cosine_protocol.errors import UsageError


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """Sizes of a model. `vocab_tokens` is the number of rows of its embedding, not of its tokenizer's tokens."""

    vocab_tokens: int
    context_tokens: int

    @classmethod
    def read(cls, folder: Path) -> "ModelSizes":
        """The sizes of the language model in a folder. Raises `UsageError`.

        For an incomplete configuration they include the defaults of transformers, if that knows the model.
        """
        # Bounded, unlike the reading by transformers.
        whole = read_model_config(folder)
        config = text_part(whole)
        if not is_written_out(whole) and all(find_spec(name) is not None for name in ("torch", "transformers")):
            known = _of_known_kind(folder)
            if known is not None:
                return known
        vocab_tokens = config.get("vocab_size")
        if not isinstance(vocab_tokens, int) or vocab_tokens < 1:
            raise UsageError(f"{folder} is not a target to draft for: its config.json has no vocab_size.")
        return cls(vocab_tokens, context_length.context_tokens(config))


def is_written_out(config: Mapping[str, Any]) -> bool:
    """True if no defaults of transformers change the sizes, as for most configurations that transformers 5 writes.

    This saves the import of transformers and PyTorch: five seconds and 300 MB.
    """
    has_lengths = all(isinstance(config.get(name), int) for name in ("vocab_size", "max_position_embeddings"))
    has_rope = isinstance(config.get("rope_parameters"), dict)
    return has_lengths and has_rope and config.keys().isdisjoint(TEXT_PARTS)


def _of_known_kind(folder: Path) -> ModelSizes | None:
    """The sizes of a model that transformers knows. None for others."""
    from cosine_node.engine.forward.support import context_tokens
    from cosine_node.engine.torch.loading import read_config

    try:
        config = read_config(str(folder))
        vocab_tokens = config.get_text_config().vocab_size
    except (UsageError, AttributeError, ValueError):
        return None
    return ModelSizes(vocab_tokens, context_tokens(config)) if isinstance(vocab_tokens, int) else None
