"""A draft head in the manner of EAGLE-3: one decoder layer that reads the activations of the target's layers.

From arXiv 2503.01840. The input of the head at a token is the target's embedding of the token, and the *feature* of
the token before it. If the target has processed that token, its feature is computed from the activations between
three of the target's layers; if it is a guess, its feature is the output of the head's layer. A head is therefore
trained with its own guesses fed back, and drafts to any depth.

EAGLE 3.1 adds two norms against activations that grow along a draft (arXiv 2605.09992): one for each captured
layer, and the last norm before an output is fed back.

Names of weights and of configuration are those of published heads, which load unchanged.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from cosine_engine.forward.attention import AttentionKernel, attend
from cosine_engine.forward.pass_plan import DecoderPlan
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.errors import UsageError

ARCHITECTURE: Final = "LlamaForCausalLMEagle3"
"""The fixed values in configurations of published heads of Llama-like targets."""
WEIGHTS: Final = "model.safetensors"
CONFIG: Final = "config.json"
OTHER_NORMS: Final = ("norm_before_fc", "norm_before_residual")
"""Options of other publishers' heads that change what the weights mean."""
MOST_PADDING: Final = 1024
"""Maximum padding of embeddings, whose rows differ between models with the same tokens."""

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of queries, keys and values, [..., tokens, heads, width] each, to [..., tokens, heads * width]."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadShape:
    """The sizes of a head. `feature_layers` are the target's layers whose inputs make a feature.

    The number of layers names the output of the last. `vocab_tokens` are the target's. With `fc_norm` the
    activations of each layer are normed, with `norm_output` the output that is fed back.
    """

    width: int
    target_width: int
    heads: int
    key_heads: int
    head_width: int
    feed_forward_width: int
    feature_layers: tuple[int, ...]
    draft_tokens: int
    vocab_tokens: int
    rope_theta: float
    norm_eps: float
    fc_norm: bool = False
    norm_output: bool = False

    @classmethod
    def read(cls, config: dict[str, Any], *, target_layers: int) -> "HeadShape":
        """Return the shape in a published configuration. Raises `UsageError`."""
        if unknown := [name for name in OTHER_NORMS if config.get(name)]:
            raise UsageError(
                f"A draft head with {unknown[0]} is not supported; of norms, fc_norm and norm_output are."
            )
        try:
            width, heads = int(config["hidden_size"]), int(config["num_attention_heads"])
            # The defaults of the authors' code.
            usual = (2, target_layers // 2, target_layers - 3)
            rope = config.get("rope_parameters") or {}
            return cls(
                width=width,
                target_width=int(config.get("target_hidden_size") or width),
                heads=heads,
                key_heads=int(config.get("num_key_value_heads") or heads),
                head_width=int(config.get("head_dim") or width // heads),
                feed_forward_width=int(config["intermediate_size"]),
                feature_layers=tuple(map(int, config.get("eagle_aux_hidden_state_layer_ids") or usual)),
                draft_tokens=int(config.get("draft_vocab_size") or config["vocab_size"]),
                vocab_tokens=int(config["vocab_size"]),
                rope_theta=float(config.get("rope_theta") or rope.get("rope_theta") or 10_000.0),
                norm_eps=float(config.get("rms_norm_eps", 1e-6)),
                fc_norm=bool(config.get("fc_norm")),
                norm_output=bool(config.get("norm_output")),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"This is no configuration of an EAGLE-3 head: {error}.") from None

    def check(self, *, target_layers: int, width: int, tokens: int) -> None:
        """Raise `UsageError` for a target of other sizes than those of the head.

        `tokens` are those of the target's tokenizer; its embedding may have more rows.
        """
        if self.target_width != width:
            raise UsageError(
                f"This draft head is for a target whose hidden size is {self.target_width}, not {width}."
            )
        if not tokens <= self.vocab_tokens < tokens + MOST_PADDING:
            raise UsageError(
                f"This draft head is for a target whose vocabulary is {self.vocab_tokens}, not {tokens}."
            )
        if self.width != self.target_width:
            raise UsageError("A draft head narrower than its target cannot read the target's embedding.")
        if any(not 0 <= layer <= target_layers for layer in self.feature_layers):
            raise UsageError(f"This draft head reads layers that a target of {target_layers} layers lacks.")

    def config(self) -> dict[str, Any]:
        """Return the configuration in its published form."""
        return {
            "architectures": [ARCHITECTURE],
            "model_type": "llama",
            "hidden_size": self.width,
            "target_hidden_size": self.target_width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.key_heads,
            "head_dim": self.head_width,
            "intermediate_size": self.feed_forward_width,
            "num_hidden_layers": 1,
            "eagle_aux_hidden_state_layer_ids": list(self.feature_layers),
            "draft_vocab_size": self.draft_tokens,
            "vocab_size": self.vocab_tokens,
            "rope_theta": self.rope_theta,
            "rms_norm_eps": self.norm_eps,
            "fc_norm": self.fc_norm,
            "norm_output": self.norm_output,
            "hidden_act": "silu",
        }


class _Norm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        # In training weights are float32 and activations 16 bits.
        return F.rms_norm(x.to(self.weight.dtype), self.weight.shape, self.weight, self._eps)


class _Attention(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        queries, keys = shape.heads * shape.head_width, shape.key_heads * shape.head_width
        self.q_proj = nn.Linear(2 * shape.width, queries, bias=False)
        self.k_proj = nn.Linear(2 * shape.width, keys, bias=False)
        self.v_proj = nn.Linear(2 * shape.width, keys, bias=False)
        self.o_proj = nn.Linear(queries, shape.width, bias=False)
        self._width = shape.head_width

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        query, key, value = (
            projection(x).unflatten(-1, (-1, self._width)) for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        output: Tensor = self.o_proj(attend(_rotated(query, cos, sin), _rotated(key, cos, sin), value))
        return output


class _HeadFeedForward(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.width, shape.feed_forward_width, bias=False)
        self.up_proj = nn.Linear(shape.width, shape.feed_forward_width, bias=False)
        self.down_proj = nn.Linear(shape.feed_forward_width, shape.width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class _HeadLayer(nn.Module):
    def __init__(self, shape: HeadShape) -> None:
        super().__init__()
        self.self_attn = _Attention(shape)
        self.mlp = _HeadFeedForward(shape)
        self.hidden_norm = _Norm(shape.width, shape.norm_eps)
        self.input_layernorm = _Norm(shape.width, shape.norm_eps)
        self.post_attention_layernorm = _Norm(shape.width, shape.norm_eps)

    def forward(self, embedded: Tensor, feature: Tensor, cos: Tensor, sin: Tensor, attend: Attend) -> Tensor:
        x = torch.cat((self.input_layernorm(embedded), self.hidden_norm(feature)), -1)
        feature = feature + self.self_attn(x, cos, sin, attend)
        output: Tensor = feature + self.mlp(self.post_attention_layernorm(feature))
        return output


class EagleHead(nn.Module):
    """The head. `fuse` computes features, `forward` is its layer, `logits` are over the tokens it may draft."""

    def __init__(self, shape: HeadShape, vocabulary: DraftVocabulary) -> None:
        super().__init__()
        self.shape = shape
        self.vocabulary = vocabulary
        captured = len(shape.feature_layers)
        norms = [_Norm(shape.target_width, shape.norm_eps) for _ in range(captured if shape.fc_norm else 0)]
        self.fc_norm = nn.ModuleList(norms)
        self.fc = nn.Linear(captured * shape.target_width, shape.width, bias=False)
        self.midlayer = _HeadLayer(shape)
        self.norm = _Norm(shape.width, shape.norm_eps)
        self.lm_head = nn.Linear(shape.width, shape.draft_tokens, bias=False)
        halves = torch.arange(0, shape.head_width, 2, dtype=torch.float32) / shape.head_width
        self._frequencies = shape.rope_theta**-halves

    @property
    def dtype(self) -> torch.dtype:
        return self.fc.weight.dtype

    @property
    def width(self) -> int:
        return self.shape.width

    def fuse(self, activations: Tensor) -> Tensor:
        """Return the features [..., width] of the target's activations [..., layers * target width]."""
        if self.shape.fc_norm:
            layers = activations.chunk(len(self.fc_norm), -1)
            activations = torch.cat([norm(layer) for norm, layer in zip(self.fc_norm, layers, strict=True)], -1)
        fused: Tensor = self.fc(activations)
        return fused

    def fed_back(self, output: Tensor) -> Tensor:
        """Return the feature [..., width] of guesses with this output of the layer."""
        feature: Tensor = self.norm(output) if self.shape.norm_output else output
        return feature

    def angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Return the cosines and sines [..., 1, head width] of positions [...]."""
        turned = positions[..., None].float() * self._frequencies.to(positions.device)
        both = torch.cat((turned, turned), -1)[..., None, :]
        return both.cos().to(dtype), both.sin().to(dtype)

    def forward(self, embedded: Tensor, feature: Tensor, angles: tuple[Tensor, Tensor], attend: Attend) -> Tensor:
        """Return the feature [..., tokens, width] of each token as a guess."""
        return self.fed_back(self.midlayer(embedded, feature, *angles, attend))

    def read(self, plan: DecoderPlan, embedded: Tensor, feature: Tensor) -> Tensor:
        """Return the feature [tokens, width] of each token as a guess, in a pass over the head's pool."""

        def attend_to_text(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
            query, key, value = (x.transpose(0, 1)[None] for x in (query, key, value))
            kernel = AttentionKernel(self.shape.head_width**-0.5)
            return attend(plan, 0, query=query, key=key, value=value, window=None, kernel=kernel)

        output: Tensor = self(embedded, feature, self.angles(plan.position_ids[0], embedded.dtype), attend_to_text)
        return output

    def logits(self, output: Tensor) -> Tensor:
        """Return the logits [..., draft tokens] after the tokens with this feature."""
        logits: Tensor = self.lm_head(output if self.shape.norm_output else self.norm(output))
        return logits

    def save(self, folder: Path) -> None:
        """Write the folder of a head in the published form, in bfloat16."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {
            name: weight.detach().to(torch.bfloat16).contiguous() for name, weight in self.state_dict().items()
        }
        known = torch.tensor(self.vocabulary.target_ids)
        is_known = torch.zeros(self.shape.vocab_tokens, dtype=torch.bool)
        is_known[known] = True
        # The distance of a drafted token's id to the target's, and the target's tokens that may be drafted.
        weights |= {"d2t": known - torch.arange(len(known)), "t2d": is_known}
        save_file(weights, folder / WEIGHTS)
        (folder / CONFIG).write_text(json.dumps(self.shape.config(), indent=1) + "\n", "utf-8")

    @classmethod
    def load(cls, folder: Path, *, target_layers: int) -> "EagleHead":
        """Load the head in a folder, for a target of `target_layers` layers. Raises `UsageError`."""
        try:
            config = json.loads((folder / CONFIG).read_text("utf-8"))
            weights = load_file(folder / WEIGHTS)
        except (OSError, ValueError, SafetensorError) as error:
            raise UsageError(f"There is no EAGLE-3 head in {folder}: {error}.") from None
        shape = HeadShape.read(config, target_layers=target_layers)
        offsets = weights.pop("d2t", torch.zeros(shape.draft_tokens, dtype=torch.int64))
        weights.pop("t2d", None)
        # Some heads repeat the target's embedding, which is read from the target.
        weights.pop("embed_tokens.weight", None)
        vocabulary = DraftVocabulary(tuple((offsets.long() + torch.arange(len(offsets))).tolist()))
        head = cls(shape, vocabulary)
        try:
            head.load_state_dict(weights)
        except RuntimeError as error:
            reason = str(error).splitlines()[-1].strip()
            raise UsageError(
                f"The head in {folder} has other weights than its configuration says: {reason}"
            ) from None
        return head.eval()


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Apply the rotary embedding (arXiv 2104.09864) to [..., tokens, heads, width]."""
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin
