"""A drafter before its training: some layers of its target, or a new small model."""

import copy
import re
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from cosine_node.engine.draft_vocabulary import DraftVocabulary
from cosine_protocol.errors import UsageError

LAYER_NAME: Final = re.compile(r"^(.*\b(?:layers|h)\.)(\d+)(\..*)$")
"""Parameters of a layer, as transformers names them in nearly all models."""


def drafter_of(target: Any, *, layers: Sequence[int], vocabulary: DraftVocabulary) -> Any:
    """A model of the target's kind, in float32, that has these of its layers and the tokens of the vocabulary.

    Negative layers count from the last. The reserved id begins as the mean of all tokens. Raises `UsageError`.
    """
    count = target.config.num_hidden_layers
    if not layers or any(not -count <= layer < count for layer in layers):
        raise UsageError(f"--layers must name some of the target's {count} layers, 0 to {count - 1}.")
    chosen = [layer % count for layer in layers]
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = len(chosen)
    config.vocab_size = vocabulary.reserved_id + 1
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    if kinds := getattr(config, "layer_types", None):
        config.layer_types = [kinds[layer] for layer in chosen]
    # A mark of the file that the target was read from.
    vars(config).pop("gguf_weights", None)
    drafter: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    known = torch.tensor(vocabulary.target_ids)
    weights = target.state_dict()
    state = {}
    for name, own in drafter.state_dict().items():
        place = LAYER_NAME.match(name)
        source = weights.get(f"{place[1]}{chosen[int(place[2])]}{place[3]}" if place else name)
        if source is None:
            raise UsageError(f"Drafters cannot be made of layers of a '{config.model_type}' model; give --width.")
        source = source.float().cpu()
        state[name] = source if source.shape == own.shape else _rows(source, known, own)
    drafter.load_state_dict(state)
    return drafter


def _rows(source: Tensor, known: Tensor, own: Tensor) -> Tensor:
    """The rows of known tokens, and for the reserved id the mean of all."""
    rows = torch.cat([source[known], source.mean(0, keepdim=True)])
    if rows.shape != own.shape:
        raise UsageError("Drafters cannot be made of this target's layers; give --width.")
    return rows
