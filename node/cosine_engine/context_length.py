"""The maximum length of a text, from a model's configuration."""

from collections.abc import Mapping
from typing import Any, Final

NAMES: Final = (
    "max_position_embeddings",
    "n_positions",
    "max_seq_len",
    "max_sequence_length",
    "seq_length",
    "n_ctx",
    "context_length",
    "model_max_length",
)
"""The names of the context length in configurations. transformers reads most of them by the first name."""
FACTS: Final = (*NAMES, "rope_parameters")
"""All names that are read."""
STRETCHED_ROPES: Final = frozenset({"dynamic", "longrope"})
"""Rotary embeddings whose frequencies depend on the longest sequence in the batch."""
UNBOUNDED_TOKENS: Final = 1 << 20
"""The context of a model without a context length in its configuration. The pool bounds it sooner."""


def context_tokens(facts: Mapping[str, Any]) -> int:
    """Return the longest sequence whose tokens do not depend on the rest of the pass, from a configuration."""
    longest = next((facts[name] for name in NAMES if _is_length(facts.get(name))), UNBOUNDED_TOKENS)
    stated = facts.get("rope_parameters")
    parameters = stated if isinstance(stated, dict) else {}
    # Models with several kinds of layers nest the parameters of each rotary embedding under its kind.
    for rope in (parameters, *(rope for rope in parameters.values() if isinstance(rope, dict))):
        unstretched: Any = rope.get("original_max_position_embeddings")
        if str(rope.get("rope_type")) in STRETCHED_ROPES and _is_length(unstretched):
            longest = min(longest, unstretched)
    return longest


def _is_length(value: object) -> bool:
    return isinstance(value, int) and value > 0
