"""A GGUF file as a model of transformers: its configuration, and its weights under the names they have there."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cosine_node.gguf.architectures import (
    LONG_ROPE,
    TURNED,
    Architecture,
    RowLayout,
    architecture_of,
    head_size,
    rope_scaling,
    sizes,
    turned_size,
)
from cosine_node.gguf.file import GgufFile
from cosine_protocol.errors import UsageError

ROPE_FACTORS: Final = "rope_freqs.weight"
"""What each rotary frequency is divided by, as Llama 3.1 and later have it."""
ELSEWHERE: Final = frozenset({ROPE_FACTORS, *(LONG_ROPE.format(length) for length in ("short", "long"))})
"""The tensors that are no weights of transformers: its rotary embedding is made of them."""
STRETCHED: Final = frozenset({"none", "linear", "yarn", "longrope"})
"""The ways to stretch a rotary embedding that both libraries have."""
UNHEEDED: Final[Mapping[str, tuple[float, ...]]] = {
    "attention.causal": (True,),
    "attention.clamp_kqv": (0,),
    "attention.temperature_length": (0,),
    "attention.temperature_scale": (0,),
    "expert_group_count": (0, 1),
    "expert_weights_scale": (0, 1),
    "rope.scaling.yarn_attn_factor": (1,),
    "rope.scaling.yarn_ext_factor": (1,),
    "rope.scaling.yarn_log_multiplier": (0,),
}
"""What llama.cpp computes with and transformers, in these architectures, does not; and where that is nothing."""
MERGED: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("experts.gate_up_proj", ("ffn_gate_exps.weight", "ffn_up_exps.weight")),
    ("experts.gate_up_proj_bias", ("ffn_gate_exps.bias", "ffn_up_exps.bias")),
    ("experts.down_proj", ("ffn_down_exps.weight",)),
    ("experts.down_proj_bias", ("ffn_down_exps.bias",)),
    ("mlp.gate.e_score_correction_bias", ("exp_probs_b.bias",)),
    ("self_attn.kv_b_proj.weight", ("attn_k_b.weight", "attn_v_b.weight")),
)
"""The tensors of a layer's weights whose names the package `gguf` does not know, as it was written for others."""


def folder_config(model: GgufFile) -> dict[str, Any]:
    """The config.json that a model's folder would have; its sizes alone where PyTorch cannot run the file."""
    try:
        return transformers_config(model)
    except UsageError:
        if model.metadata.get(f"{model.architecture}.attention.head_count") == 0:
            raise  # llama.cpp's engine runs none without attention either.
        return {"model_type": model.architecture, **sizes(model)}


def transformers_config(model: GgufFile) -> dict[str, Any]:
    """The configuration of a model in transformers.

    Raises `UsageError` for an architecture, or a feature of one, that transformers has not, or is not told whole.
    """
    architecture = _known_architecture(model)
    special = {
        f"{name}_token_id": model.metadata.get(f"tokenizer.ggml.{key}_token_id")
        for name, key in {"bos": "bos", "eos": "eos", "pad": "padding"}.items()
    }
    return {
        "architectures": [architecture.class_name],
        "model_type": architecture.model_type,
        **architecture.settings(model),
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "dtype": {"F16": "float16", "F32": "float32"}.get(model.weights, "bfloat16"),
        # What is left out has another number in every kind of configuration.
        **special,
    }


def _known_architecture(model: GgufFile) -> Architecture:
    architecture, stretching = architecture_of(model), rope_scaling(model)
    if architecture is None:
        raise _refusal(model, f"models of the kind {model.architecture!r} are none of those that PyTorch is given")
    if stretching not in STRETCHED:
        raise _refusal(model, f"its rotary embedding is stretched in the way {stretching!r}")
    for key, plain in UNHEEDED.items():
        value = model.metadata.get(f"{model.architecture}.{key}", plain[0])
        if value not in plain and key not in architecture.heeds:
            raise _refusal(model, f"it has {key} {value!r}, which transformers does without")
    if turned_size(model) != head_size(model) and TURNED not in architecture.heeds:
        sentence = f"{turned_size(model)} of {head_size(model)} numbers of a head"
        raise _refusal(model, f"its rotary embedding turns {sentence}, and that of transformers all")
    return architecture


def _refusal(model: GgufFile, reason: str) -> UsageError:
    # The branches of a token tree share no recurrent state, so that llama.cpp is not used for them.
    llama = "" if model.has_recurrent_state else ", or --engine llama"
    return UsageError(
        f"{model.path} cannot be run from GGUF in PyTorch: {reason}; use the model's own folder{llama}."
    )


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix of transformers, or of each expert, that is whole rows of tensors in a file, all of one kind."""

    kind: str
    experts: int | None
    rows: int
    columns: int
    tensors: tuple[str, ...]
    layout: RowLayout | None

    def read(self, model: GgufFile) -> npt.NDArray[np.uint8]:
        """Its bytes [rows, bytes of a row], of experts [experts, ...], in the order of transformers."""
        found = [model.stored_rows(tensor) for tensor in self.tensors]
        return np.asarray(found[0] if self.layout is None else self.layout.lay(found, model))


def stored_matrices(model: GgufFile, names: Iterable[str]) -> dict[str, StoredMatrix]:
    """The weights of these names that can be had as the file stores them. Raises `UsageError`."""
    architecture = _known_architecture(model)
    found = {}
    for name, tensors in _sources(model, names).items():
        stored = [model.tensors[tensor] for tensor in tensors]
        layout = architecture.layouts.get(_place(tensors))
        if not isinstance(layout, RowLayout | None) or (layout is None and len(tensors) > 1):
            continue
        kind, shape = stored[0].kind, stored[0].shape
        # The contiguous dimension comes first, and that of experts last.
        if 2 <= len(shape) <= 3 and all(
            (one.kind, one.shape[0], one.shape[2:]) == (kind, shape[0], shape[2:]) for one in stored
        ):
            experts = shape[2] if len(shape) == 3 else None
            rows = sum(one.shape[1] for one in stored)
            found[name] = StoredMatrix(kind, experts, rows, shape[0], tensors, layout)
    return found


def stored_names(model: GgufFile, names: Iterable[str]) -> frozenset[str]:
    """The tensors of a file that weights of these names are made of, and those that are no weights."""
    sources = _sources(model, names).values()
    return frozenset(tensor for tensors in sources for tensor in tensors) | (ELSEWHERE & model.tensors.keys())


def _place(tensors: Sequence[str]) -> str:
    """The name inside a layer of the first tensor that a weight is made of."""
    return tensors[0].split(".", 2)[-1] if tensors[0].startswith("blk.") else tensors[0]


def transformers_weights(
    model: GgufFile, names: Iterable[str], *, wanted: Container[str] | None = None
) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """The weights of a model of transformers by its names, dequantised, one after the other; those the file has.

    If some are `wanted` no others are read. Raises `UsageError` as `known_sources`, before any is read.
    """
    architecture = _known_architecture(model)
    sources = known_sources(model, names)
    for name, tensors in sources.items():
        if wanted is not None and name not in wanted:
            continue
        place = _place(tensors)
        values = [model.weight(tensor) for tensor in tensors]
        layout = architecture.layouts.get(place)
        found = values[0] if layout is None else layout(values, model)
        is_offset = architecture.norms_are_offsets and place.endswith("norm.weight")
        yield name, found - np.float32(1) if is_offset else found


def known_sources(model: GgufFile, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The tensors that each weight of these names is made of.

    Raises `UsageError` for a file with tensors that none of them is made of.
    """
    sources = _sources(model, names)
    used = {tensor for tensors in sources.values() for tensor in tensors}
    for tensor in model.tensors:
        if tensor not in used and tensor not in ELSEWHERE:
            raise UsageError(
                f"{model.path} has a tensor {tensor}, which is not known in a {model.architecture} model."
            )
    return sources


def _sources(model: GgufFile, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The tensors that each weight is made of, by the weight's name; of those that the file has all of."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map

    architecture = next(arch for arch, name in MODEL_ARCH_NAMES.items() if name == model.architecture)
    known = get_tensor_name_map(architecture, model.size("block_count"))
    found: dict[str, tuple[str, ...]] = {}
    for name in names:
        parts = name.split(".")
        layer = next((part for part in parts if part.isdecimal()), None)
        merged = [
            tuple(f"blk.{layer}.{tensor}" for tensor in tensors)
            for end, tensors in MERGED
            if name.endswith(f".{end}")
        ]
        stem, kind = (name, "") if parts[-1] not in ("weight", "bias") else name.rsplit(".", 1)
        # The converter knows some models without the part that makes texts.
        stored = known.get_name(stem) or known.get_name(stem.partition(".")[2])
        # What has no kind in transformers may have one here.
        alone = [(f"{stored}.{kind}",)] if kind else [(f"{stored}",), (f"{stored}.weight",)]
        for tensors in (*merged, *alone):
            if all(tensor in model.tensors for tensor in tensors):
                found[name] = tensors
                break
    return found


def rope_factors(model: GgufFile) -> npt.NDArray[np.float32] | None:
    """What the model's rotary frequencies are divided by, shape (head size / 2,); None if by nothing."""
    return model.weight(ROPE_FACTORS) if ROPE_FACTORS in model.tensors else None
