"""The sizes of a model that its configuration tells: its tokens, and the longest text."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cosine_node.engine import context_length
from cosine_p2p.request.model_config import read_model_config, text_part
from cosine_protocol.errors import UsageError


@dataclass(frozen=True, slots=True)
class ModelSizes:
    """`vocab_tokens` are the rows of a model's embedding, of which a tokenizer may know fewer, or more."""

    vocab_tokens: int
    context_tokens: int

    @classmethod
    def read(cls, folder: Path) -> "ModelSizes":
        """Those of the language model in a folder, as transformers reads them where it knows the model.

        Elsewhere they are as the file has them, without the defaults of a kind. Raises `UsageError`.
        """
        # Before transformers reads it, which has no bounds.
        config = text_part(read_model_config(folder))
        has_transformers = all(find_spec(name) is not None for name in ("torch", "transformers"))
        if has_transformers and (known := _of_known_kind(folder)) is not None:
            return known
        vocab_tokens = config.get("vocab_size")
        if not isinstance(vocab_tokens, int) or vocab_tokens < 1:
            raise UsageError(f"{folder} is no target to draft for: no config.json names its vocabulary.")
        return cls(vocab_tokens, context_length.context_tokens(config))


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
