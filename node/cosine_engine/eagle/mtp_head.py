"""A model's multi-token-prediction (MTP) layer as a draft head.

From DeepSeek-V3 (arXiv 2412.19437, section 2.2): the normalised embedding of a token and feature of the token
before are projected to one width and pass a decoder layer like the model's, a last norm and the model's output
layer. A feature is the input of an output layer: the output of the model's last norm for a token that the target
has processed, and that of the MTP layer for a guess. In the order of published weights, unlike the paper's formula,
the embedding comes first.

Transformers drops these weights of the target's checkpoint, so they are read from its files. Of several such
layers, each for a further token, the first drafts all tokens.
"""

import copy
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from cosine_engine.forward.attention import pack_attention
from cosine_engine.forward.partial_model import copy_out_of_files
from cosine_engine.forward.pass_plan import DecoderPlan
from cosine_engine.forward.support import ATTENTION_KINDS, UnsupportedModel, model_class_of
from cosine_engine.vocabulary import DraftVocabulary
from cosine_protocol.errors import UsageError

WEIGHT_TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True)
class MtpNames:
    """The names of the first MTP layer in a kind of checkpoint; `layer` is the prefix of the decoder layer's names.

    `{layers}` is the number of the model's layers.
    """

    layer: str
    projection: str
    embedding_norm: str
    hidden_norm: str
    last_norm: str

    def of(self, layers: int) -> "MtpNames":
        return MtpNames(*(name.format(layers=layers) for name in astuple(self)))


DEEPSEEK: Final = MtpNames(
    layer="layers.{layers}.",
    projection="layers.{layers}.eh_proj.weight",
    embedding_norm="layers.{layers}.enorm.weight",
    hidden_norm="layers.{layers}.hnorm.weight",
    last_norm="layers.{layers}.shared_head.norm.weight",
)
"""The layout of DeepSeek-V3 and GLM-4.5: an additional layer, with a copy of the embedding and the output layer."""
QWEN: Final = MtpNames(
    layer="mtp.layers.0.",
    projection="mtp.fc.weight",
    embedding_norm="mtp.pre_fc_norm_embedding.weight",
    hidden_norm="mtp.pre_fc_norm_hidden.weight",
    last_norm="mtp.norm.weight",
)
"""The layout of Qwen3-Next and Qwen3.5."""


class MtpLayer(nn.Module):
    """The weights of an MTP layer. `block` is a decoder of the model's class with a single layer."""

    def __init__(self, block: Any, width: int) -> None:
        super().__init__()
        self.block = block
        self.embedding_norm = copy.deepcopy(block.norm)
        self.hidden_norm = copy.deepcopy(block.norm)
        self.projection = nn.Linear(2 * width, width, bias=False, dtype=block.norm.weight.dtype)

    def forward(self, embedded: Tensor, feature: Tensor, plan: DecoderPlan) -> Tensor:
        """Return the output of the last norm, [tokens, width]."""
        both = torch.cat((self.embedding_norm(embedded), self.hidden_norm(feature)), -1)
        made = self.block(
            inputs_embeds=self.projection(both)[None],
            position_ids=plan.position_ids,
            use_cache=False,
            plan=plan,
        )
        output: Tensor = made.last_hidden_state[0]
        return output

    @classmethod
    def load(cls, folder: Path, config: Any, *, dtype: torch.dtype) -> "MtpLayer":
        """Load the MTP layer in the folder of a model with this configuration. Raises `UsageError`."""
        text = config.get_text_config()
        names, weights = _read(folder, text.num_hidden_layers)
        foreign = sorted({str(weight.dtype) for weight in weights.values() if weight.dtype not in WEIGHT_TYPES})
        if foreign:
            raise UsageError(f"The MTP layer in {folder} is stored in {foreign[0]}, which a draft head cannot be.")
        single = _single_layer(text, has_experts=any(".experts." in name for name in weights))
        model_class = model_class_of(single)
        parts = {name: weights.pop(name) for name in astuple(names)[1:] if name in weights}
        if len(parts) < len(astuple(names)) - 1:
            raise UsageError(f"The MTP layer in {folder} lacks a norm.")
        own = {f"model.layers.0.{name.removeprefix(names.layer)}": weight for name, weight in weights.items()}
        own["model.norm.weight"] = parts[names.last_norm]
        # Those of the target are used.
        own["model.embed_tokens.weight"] = own["lm_head.weight"] = torch.zeros(1, text.hidden_size)
        beside = {
            "projection.weight": parts[names.projection],
            "embedding_norm.weight": parts[names.embedding_norm],
            "hidden_norm.weight": parts[names.hidden_norm],
        }
        loading = {"dtype": dtype, "attn_implementation": "eager", "output_loading_info": True}
        misfit = UsageError(f"The MTP layer in {folder} is no layer of a model of type '{text.model_type}'.")
        try:
            model, told = model_class.from_pretrained(None, config=single, state_dict=own, **loading)
            layer = cls(model.get_decoder(), text.hidden_size)
            layer.load_state_dict(beside, strict=False)
        except (ValueError, RuntimeError):
            # The sizes differ.
            raise misfit from None
        if told["missing_keys"]:
            raise misfit
        pack_attention(model)
        copy_out_of_files(model)
        return layer.eval()


class MtpHead:
    """Implements `cosine_engine.eagle.head_engine.DraftHead` around a target's MTP layer."""

    vocabulary: DraftVocabulary | None = None

    def __init__(self, layer: MtpLayer, target: Any) -> None:
        """Use the last norm and the output layer of `target`, a transformers model."""
        self._layer = layer
        self._norm = target.get_decoder().norm
        self._output = target.get_output_embeddings()
        self.width: int = layer.projection.out_features

    def fuse(self, activations: Tensor) -> Tensor:
        feature: Tensor = self._norm(activations)
        return feature

    def read(self, plan: DecoderPlan, embedded: Tensor, feature: Tensor) -> Tensor:
        output: Tensor = self._layer(embedded, feature, plan)
        return output

    def logits(self, output: Tensor) -> Tensor:
        logits: Tensor = self._output(output)
        return logits


def _read(folder: Path, layers: int) -> tuple[MtpNames, dict[str, Tensor]]:
    """Return the weights of an MTP layer in a folder, without the prefixes of their names. Raises `UsageError`."""
    files = dict(_names(folder))
    for kind in (DEEPSEEK, QWEN):
        names = kind.of(layers)
        # Vision models have a prefix before the names of their language model.
        found = next((name for name in files if f".{name}".endswith(f".{names.projection}")), None)
        if found is None:
            continue
        before = found.removesuffix(names.projection)
        wanted = {}
        for name in files:
            inner = name.removeprefix(before)
            is_copy = inner.removeprefix(names.layer).startswith(("embed_tokens.", "shared_head.head."))
            is_part = inner.startswith(names.layer) or inner in astuple(names)
            if name.startswith(before) and is_part and not is_copy:
                wanted[name] = inner
        weights = dict[str, Tensor]()
        for file in sorted({files[name] for name in wanted}):
            with safe_open(file, framework="pt") as opened:
                weights |= {wanted[name]: opened.get_tensor(name) for name in wanted if files[name] == file}
        return names, weights
    raise UsageError(
        f"There is no MTP layer in {folder} with the names of DeepSeek's or Qwen's: use another --draft-model."
    )


def _names(folder: Path) -> Iterator[tuple[str, Path]]:
    """Return the weights in a folder, each with its file. Raises `UsageError`."""
    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, framework="pt") as opened:
                found = list[str](opened.keys())
        except (OSError, SafetensorError) as error:
            raise UsageError(f"{file} cannot be read: {error}.") from None
        yield from ((name, file) for name in found)


def _single_layer(text: Any, *, has_experts: bool) -> Any:
    """Return the configuration of a decoder that is an MTP layer, with a vocabulary of one token.

    Raises `UnsupportedModel` for a layer without attention, or with attention that keeps a state.
    """
    single = copy.deepcopy(text)
    single.num_hidden_layers = 1
    single.vocab_size, single.pad_token_id = 1, None
    # The lists of configurations with an entry per layer.
    if getattr(text, "layer_types", None):
        single.layer_types = list(getattr(text, "mtp_layer_types", None) or ["full_attention"])[:1]
    if getattr(text, "mlp_layer_types", None):
        single.mlp_layer_types = ["sparse" if has_experts else "dense"]
    if hasattr(text, "first_k_dense_replace"):
        single.first_k_dense_replace = 0 if has_experts else 1
    # The weights are unquantised numbers.
    if hasattr(single, "quantization_config"):
        del single.quantization_config
    kind = (getattr(single, "layer_types", None) or ["attention"])[0]
    if kind not in ATTENTION_KINDS:
        raise UnsupportedModel(text.model_type, f"its MTP layer is of the kind {kind}")
    return single
