"""A drafter before its training: some layers of its target, a new small model, or an earlier drafter's weights."""

import copy
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.errors import UsageError

HEAD_WIDTH: Final = 64
"""Minimum width of most attention kernels."""
INITIAL_DEVIATION: Final = 0.02
"""Llama's own standard deviation of initial weights."""
LAYER_NAME: Final = re.compile(r"^(.*\b(?:layers|h)\.)(\d+)(\..*)$")
"""Parameters of a layer, as transformers names them in nearly all models."""
TEXT_MODEL: Final = "language_model"
"""The name of the language model within a vision model."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Size of a model; heads and feed-forward width follow from the width."""

    layers: int
    width: int
    vocabulary_size: int
    context_tokens: int

    @property
    def heads(self) -> int:
        """The number of attention heads, of 64 channels each, at least one."""
        return max(1, self.width // HEAD_WIDTH)

    @property
    def feed_forward_width(self) -> int:
        """Eight thirds of the width, in whole multiples of 32."""
        return max(32, round(self.width * 8 / 3 / 32) * 32)


def new_model(shape: Shape, seed: int) -> LlamaForCausalLM:
    """Return an untrained model in float32, without special tokens."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=shape.vocabulary_size,
            hidden_size=shape.width,
            intermediate_size=shape.feed_forward_width,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.heads,
            max_position_embeddings=shape.context_tokens,
            rms_norm_eps=1e-5,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=None,
        )
    )
    # Every layer adds two branches to the residual stream: smaller outputs keep its variance level.
    for name, parameter in model.named_parameters():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            torch.nn.init.normal_(parameter, 0.0, INITIAL_DEVIATION / math.sqrt(2 * shape.layers))
    return model


def drafter_of(target: Any, *, layers: Sequence[int], vocabulary: DraftVocabulary) -> Any:
    """Return a model of the target's kind, in float32, with these of its layers and the vocabulary's tokens.

    Negative layers count from the last. The reserved id begins as the mean of all tokens. Raises `UsageError`.
    """
    # The drafter of a vision model is a language model.
    config = copy.deepcopy(target.config.get_text_config())
    count = config.num_hidden_layers
    if not layers or any(not -count <= layer < count for layer in layers):
        raise UsageError(f"--layers must name some of the target's {count} layers, 0 to {count - 1}.")
    chosen = [layer % count for layer in layers]
    config.num_hidden_layers = len(chosen)
    config.vocab_size = vocabulary.reserved_id + 1
    config.bos_token_id = config.eos_token_id = config.pad_token_id = None
    if kinds := getattr(config, "layer_types", None):
        config.layer_types = [kinds[layer] for layer in chosen]
    # Set where the target was read from a GGUF file.
    vars(config).pop("gguf_weights", None)
    drafter: Any = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="sdpa", trust_remote_code=False
    )
    known = torch.tensor(vocabulary.target_ids)
    weights = {name.replace(f".{TEXT_MODEL}.", ".", 1): weight for name, weight in target.state_dict().items()}
    by_token = tables_by_token(drafter)
    state = {}
    for name, own in drafter.state_dict().items():
        place = LAYER_NAME.match(name)
        source = weights.get(f"{place[1]}{chosen[int(place[2])]}{place[3]}" if place else name)
        if source is None:
            raise UsageError(f"Drafters cannot be made of layers of a '{config.model_type}' model; give --width.")
        source = source.float().cpu()
        if name in by_token:
            source = torch.cat([source[known], source.mean(0, keepdim=True)])
        if source.shape != own.shape:
            raise UsageError(f"Drafters cannot be made of layers of a '{config.model_type}' model; give --width.")
        state[name] = source
    drafter.load_state_dict(state)
    return drafter


@torch.no_grad()
def adopt(drafter: Any, earlier: Any, vocabulary: DraftVocabulary, known_earlier: DraftVocabulary) -> None:
    """Copy the weights of an `earlier` drafter of the same shape, and of the tokens that both know.

    Raises `UsageError` for one of another shape.
    """
    own = vocabulary.own_tokens(known_earlier.target_ids)
    shared = [(new, old) for old, new in enumerate(own) if new != vocabulary.reserved_id]
    shared.append((vocabulary.reserved_id, known_earlier.reserved_id))
    new_rows, old_rows = (torch.tensor(rows) for rows in zip(*shared, strict=True))
    weights, by_token = earlier.state_dict(), tables_by_token(drafter)
    for name, weight in drafter.state_dict().items():
        learned = weights.get(name)
        if learned is None or learned.shape[name in by_token :] != weight.shape[name in by_token :]:
            raise UsageError(
                "The drafter to go on from has another shape; give the --layers or --width it began with."
            )
        if name in by_token:
            weight[new_rows] = learned[old_rows]
        else:
            weight.copy_(learned)


def tables_by_token(model: Any) -> frozenset[str]:
    """Return the names of the parameters that have a row for each token."""
    tables = [*model.get_input_embeddings().parameters(), *model.get_output_embeddings().parameters()]
    named = model.named_parameters(remove_duplicate=False)
    return frozenset(name for name, weight in named if any(weight is table for table in tables))
