"""Checkpoints of tiny random models with an MTP layer, under the names of published ones, and what they draft.

The references are straight-line: the formula of DeepSeek-V3 (arXiv 2412.19437, section 2.2) and the layers it
contains, from the weights in the file, a text at a time.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
import transformers as tf
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.node.engine.tiny_models import COMMON, RECURRENT, build

Weights = dict[str, Tensor]
WEIGHTS: Final = "model.safetensors"
WIDTH: Final[int] = COMMON["hidden_size"]
LAYERS: Final = 2
"""Of the models themselves."""
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
    "deepseek_v3": lambda: tf.DeepseekV3Config(
        **{**COMMON, "num_key_value_heads": 4},
        moe_intermediate_size=32,
        num_experts_per_tok=2,
        n_routed_experts=4,
        n_group=1,
        topk_group=1,
        first_k_dense_replace=1,
        q_lora_rank=32,
        kv_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=16,
        v_head_dim=16,
    ),
    "qwen3_5": RECURRENT["qwen3_5"],
}
"""Experts and attention by heads, latent attention, and layers with a recurrent state before one with attention."""


def write_checkpoint(name: str, folder: Path) -> Any:
    """Write a model to a folder; returned is a decoder with one layer more, whose weights the MTP layer has."""
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
    """What the MTP layer of a checkpoint drafts, computed anew for each text."""

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
        plain = {"glm4_moe": self._glm_layer, "qwen3_5": self._qwen_layer}
        self._layer = plain.get(name) or (lambda x: _own_layer(decoder, x))

    def drafts(self, text: list[int], tokens: int) -> list[Tensor]:
        """The logits [vocab] that so many tokens after a text and the target's next one are drafted by.

        The target's next one is the last of the text: it has not read that.
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
        """What leaves the layer's last norm, [tokens, width]."""
        embedding_norm, hidden_norm, projection, last_norm = self._names
        embedded = self._weights["model.embed_tokens.weight"][tokens]
        both = torch.cat((self._norm(embedded, embedding_norm), self._norm(features, hidden_norm)), -1)
        return self._norm(self._layer(both @ self._of(projection).T), last_norm)

    def _of(self, name: str) -> Tensor:
        return self._weights[f"{name}.weight"]

    def _norm(self, x: Tensor, name: str) -> Tensor:
        scale = self._of(name) + (1.0 if self._is_qwen else 0.0)
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.rms_norm_eps) * scale

    def _glm_layer(self, x: Tensor) -> Tensor:
        at = f"model.layers.{LAYERS}."

        def linear(x: Tensor, name: str) -> Tensor:
            return F.linear(x, self._of(at + name), self._weights.get(f"{at}{name}.bias"))

        def gated(x: Tensor, name: str) -> Tensor:
            return linear(
                F.silu(linear(x, f"{name}.gate_proj")) * linear(x, f"{name}.up_proj"), f"{name}.down_proj"
            )

        inside = self._norm(x, f"{at}input_layernorm")
        query, key, value = (by_head(linear(inside, f"self_attn.{each}_proj")) for each in "qkv")
        query, key = (
            rotated(self._norm(each, f"{at}self_attn.{name}"), self.config)
            for each, name in ((query, "q_norm"), (key, "k_norm"))
        )
        x = x + linear(attended(query, key, value), "self_attn.o_proj")
        inside = self._norm(x, f"{at}post_attention_layernorm")
        scores = torch.sigmoid(linear(inside, "mlp.gate"))
        biased = scores + self._weights[f"{at}mlp.gate.e_score_correction_bias"]
        rows = []
        for row, chosen, score in zip(inside, biased.topk(2).indices.tolist(), scores, strict=True):
            shares = score[chosen] / score[chosen].sum()
            experts = [gated(row, f"mlp.experts.{expert}") for expert in chosen]
            rows.append(sum(share * made for share, made in zip(shares, experts, strict=True)))
        share = float(self.config.routed_scaling_factor)
        return x + torch.stack(rows) * share + gated(inside, "mlp.shared_experts")

    def _qwen_layer(self, x: Tensor) -> Tensor:
        at = "mtp.layers.0."

        def linear(x: Tensor, name: str) -> Tensor:
            return x @ self._of(at + name).T

        inside = self._norm(x, f"{at}input_layernorm")
        query, gate = by_head(linear(inside, "self_attn.q_proj"), 32).chunk(2, -1)
        key, value = (by_head(linear(inside, f"self_attn.{each}_proj")) for each in "kv")
        query, key = (
            rotated(self._norm(each, f"{at}self_attn.{name}"), self.config)
            for each, name in ((query, "q_norm"), (key, "k_norm"))
        )
        gates = torch.sigmoid(gate.transpose(0, 1).flatten(1))
        x = x + linear(attended(query, key, value) * gates, "self_attn.o_proj")
        inside = self._norm(x, f"{at}post_attention_layernorm")
        return x + linear(F.silu(linear(inside, "mlp.gate_proj")) * linear(inside, "mlp.up_proj"), "mlp.down_proj")


def by_head(x: Tensor, width: int = 16) -> Tensor:
    """[tokens, heads * width] as [heads, tokens, width]."""
    return x.view(len(x), -1, width).transpose(0, 1)


def rotated(x: Tensor, config: Any) -> Tensor:
    """Rotary embedding of the first part of each head, [heads, tokens, width]."""
    turned = int(config.rope_parameters["partial_rotary_factor"] * x.shape[-1])
    theta = float(config.rope_parameters["rope_theta"])
    frequencies = theta ** -(torch.arange(0, turned, 2) / turned)
    angles = torch.arange(x.shape[1])[:, None] * torch.cat((frequencies, frequencies))
    part, rest = x[..., :turned], x[..., turned:]
    first, second = part.chunk(2, -1)
    return torch.cat((part * angles.cos() + torch.cat((-second, first), -1) * angles.sin(), rest), -1)


def attended(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Causal attention of grouped heads, [tokens, heads * width]."""
    key, value = (x.repeat_interleave(len(query) // len(x), 0) for x in (key, value))
    scores = query @ key.mT * query.shape[-1] ** -0.5
    later = torch.ones(scores.shape[1:], dtype=torch.bool).triu(1)
    chances = scores.masked_fill(later, -torch.inf).softmax(-1)
    outputs: Tensor = chances @ value
    return outputs.transpose(0, 1).flatten(1)


def _own_layer(decoder: Any, x: Tensor) -> Tensor:
    """The last layer of a decoder of transformers over a text, with its own attention."""
    positions = torch.arange(len(x))[None]
    later = torch.full((1, 1, len(x), len(x)), -torch.inf).triu(1)
    angles = decoder.rotary_emb(x[None], positions)
    made: Tensor = decoder.layers[LAYERS](x[None], attention_mask=later, position_embeddings=angles)
    return made[0]
