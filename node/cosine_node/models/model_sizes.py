"""The sizes of a model that its configuration tells: its tokens, and the longest text."""

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
    """`vocab_tokens` are the rows of a model's embedding, of which a tokenizer may know fewer, or more."""

    vocab_tokens: int
    context_tokens: int

    @classmethod
    def read(cls, folder: Path) -> "ModelSizes":
        """Those of the language model in a folder, as transformers reads them where it knows the model.

        What the file tells whole is read without transformers, which would change nothing. Elsewhere sizes are as
        the file has them, without the defaults of a kind. Raises `UsageError`.
        """
        # Before transformers reads it, which has no bounds.
        whole = read_model_config(folder)
        config = text_part(whole)
        if not is_written_out(whole) and all(find_spec(name) is not None for name in ("torch", "transformers")):
            known = _of_known_kind(folder)
            if known is not None:
                return known
        vocab_tokens = config.get("vocab_size")
        if not isinstance(vocab_tokens, int) or vocab_tokens < 1:
            raise UsageError(f"{folder} is no target to draft for: no config.json names its vocabulary.")
        return cls(vocab_tokens, context_length.context_tokens(config))


def is_written_out(config: Mapping[str, Any]) -> bool:
    """True if a configuration tells all that sizes come from, so that no kind's defaults change them.

    Such ones transformers 5 writes of most models. Transformers and PyTorch take five seconds of a processor and
    300 MB to import, which nobody needs who reads these.
    """
    has_lengths = all(isinstance(config.get(name), int) for name in ("vocab_size", "max_position_embeddings"))
    has_rope = isinstance(config.get("rope_parameters"), dict)
    return has_lengths and has_rope and config.keys().isdisjoint(TEXT_PARTS)


def _of_known_kind(folder: Path) -> ModelSizes | None:
    """The sizes of a model that transformers knows; None for another, or one whose part for text is not told."""
    from cosine_node.engine.torch.loading import read_config
    from cosine_node.engine.torch.support import context_tokens

    try:
        config = read_config(str(folder))
        vocab_tokens = config.get_text_config().vocab_size
    except (UsageError, AttributeError, ValueError):
        return None
    return ModelSizes(vocab_tokens, context_tokens(config)) if isinstance(vocab_tokens, int) else None
