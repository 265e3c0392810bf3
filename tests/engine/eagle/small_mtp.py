"""Checkpoints of tiny random models with an MTP layer, under the names of published ones, and their drafts.

The reference is direct: the formula of DeepSeek-V3 (arXiv 2412.19437, section 2.2) around the last layer of a
decoder of transformers, one text at a time.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import transformers as tf
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.engine.tiny_models import COMMON, LATENT, RECURRENT, build

Weights = dict[str, Tensor]
WEIGHTS: Final = "model.safetensors"
WIDTH: Final[int] = COMMON["hidden_size"]
LAYERS: Final = 2
"""Seed of the models."""
MODELS: Final[dict[str, Callable[[], Any]]] = {
    "glm4_moe": lambda: tf.Glm4MoeConfig(
        **COMMON,
        head_dim=16,
        moe_intermediate_size=32,
        num_experts_per_tok=2,
        n_routed_experts=4,
        first_k_dense_replace=1,
        use_qk_norm=True,
        attention_bias=True,
    ),
    "deepseek_v3": LATENT["DeepseekV3"],
    "qwen3_5": RECURRENT["qwen3_5"],
}
"""Experts and attention by heads, latent attention, and layers with a recurrent state before one with attention."""


def write_checkpoint(name: str, folder: Path) -> Any:
    """Write a model to a folder; return a decoder with an additional layer, which has the MTP layer's weights."""
    config = MODELS[name]()
    config.num_hidden_layers = LAYERS + 1
    if getattr(config, "layer_types", None):
        config.layer_types = [*config.layer_types, "full_attention"]
    model = build(config, seed=2)
    model.save_pretrained(folder)
    generator = torch.Generator().manual_seed(3)
    drawn = {
        "eh_proj": torch.randn(WIDTH, 2 * WIDTH, generator=generator) * 0.1,
        **{each: torch.randn(WIDTH, generator=generator) * 0.2 for each in ("enorm", "hnorm", "shared_head.norm")},
    }
    weights = load_file(folder / WEIGHTS)
    more = f"model.layers.{LAYERS}."
    if name == "qwen3_5":
        names = ("fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm")
        weights = {each.replace(more, "mtp.layers.0."): weight for each, weight in weights.items()}
        weights |= {f"mtp.{own}.weight": weight for own, weight in zip(names, drawn.values(), strict=True)}
    else:
        weights |= {f"{more}{own}.weight": 1.0 * (own != "eh_proj") + weight for own, weight in drawn.items()}
        weights |= {f"{more}embed_tokens.weight": weights["model.embed_tokens.weight"].clone()}
        weights |= {f"{more}shared_head.head.weight": weights["lm_head.weight"].clone()}
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    stored = json.loads((folder / "config.json").read_text("utf-8")) | {"num_hidden_layers": LAYERS}
    if "layer_types" in stored:
        stored["layer_types"] = stored["layer_types"][:LAYERS]
    (folder / "config.json").write_text(json.dumps(stored), "utf-8")
    return model.get_decoder()


class Reference:
    """The drafts of a checkpoint's MTP layer, computed from the beginning of each text."""

    def __init__(self, name: str, folder: Path) -> None:
        decoder = write_checkpoint(name, folder)
        self.config = tf.AutoConfig.from_pretrained(folder)
        self._weights: Weights = load_file(folder / WEIGHTS)
        self._target = tf.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
        self._is_qwen = name == "qwen3_5"
        names = ["mtp.pre_fc_norm_embedding", "mtp.pre_fc_norm_hidden", "mtp.fc", "mtp.norm"]
        if not self._is_qwen:
            names = [f"model.layers.{LAYERS}.{each}" for each in ("enorm", "hnorm", "eh_proj", "shared_head.norm")]
        self._names = names
        self._decoder = decoder

    def drafts(self, text: list[int], tokens: int) -> list[Tensor]:
        """Return the logits [vocab] for the draft `depth` tokens after a text and the target's next one.

        The target's next token is the last of the text, which it has not read.
        """
        read = torch.tensor([text[:-1]])
        features = self._target(input_ids=read, output_hidden_states=True).hidden_states[-1][0]
        following = text[1:]
        found: list[Tensor] = []
        for _ in range(tokens):
            output = self.outputs(following, features)[-1]
            found.append(self._weights["lm_head.weight"] @ output)
            following = [*following, int(found[-1].argmax())]
            features = torch.cat((features, output[None]))
        return found

    def outputs(self, tokens: list[int], features: Tensor) -> Tensor:
        """Return the output of the layer's last norm, [tokens, width]."""
        embedding_norm, hidden_norm, projection, last_norm = self._names
        embedded = self._weights["model.embed_tokens.weight"][tokens]
        both = torch.cat((self._norm(embedded, embedding_norm), self._norm(features, hidden_norm)), -1)
        return self._norm(_own_layer(self._decoder, both @ self._of(projection).T), last_norm)

    def _of(self, name: str) -> Tensor:
        return self._weights[f"{name}.weight"]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = self._of(name) + (1.0 if self._is_qwen else 0.0)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps) * scale


def _own_layer(decoder: Any, x: Tensor) -> Tensor:
    """Run the last layer of a decoder of transformers over a text, with its own attention."""
    positions = torch.arange(len(x))[None]
    later = torch.full((1, 1, len(x), len(x)), -torch.inf).triu(1)
    angles = decoder.rotary_emb(x[None], positions)
    made: Tensor = decoder.layers[LAYERS](x[None], attention_mask=later, position_embeddings=angles)
    return made[0]
