"""A GGUF file as a model of transformers: configuration and weights."""

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cosine_engine.gguf.architectures import (
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
from cosine_engine.gguf.file import GgufFile
from cosine_protocol.errors import UsageError

ROPE_FACTORS: Final = "rope_freqs.weight"
"""The divisor of each rotary frequency, in Llama 3.1 and later."""
ELSEWHERE: Final = frozenset({ROPE_FACTORS, *(LONG_ROPE.format(length) for length in ("short", "long"))})
"""Tensors that are part of the configuration in transformers."""
STRETCHED: Final = frozenset({"none", "linear", "yarn", "longrope"})
"""The scalings of a rotary embedding in both libraries."""
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
"""Settings that transformers ignores in these architectures, with their neutral values."""
MERGED: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("experts.gate_up_proj", ("ffn_gate_exps.weight", "ffn_up_exps.weight")),
    ("experts.gate_up_proj_bias", ("ffn_gate_exps.bias", "ffn_up_exps.bias")),
    ("experts.down_proj", ("ffn_down_exps.weight",)),
    ("experts.down_proj_bias", ("ffn_down_exps.bias",)),
    ("mlp.gate.e_score_correction_bias", ("exp_probs_b.bias",)),
    ("self_attn.kv_b_proj.weight", ("attn_k_b.weight", "attn_v_b.weight")),
)
"""Tensors of a layer's weights whose names the package `gguf` does not know."""


def folder_config(model: GgufFile) -> dict[str, Any]:
    """The content of config.json. Only the sizes if PyTorch cannot run the file."""
    try:
        return transformers_config(model)
    except UsageError:
        if model.metadata.get(f"{model.architecture}.attention.head_count") == 0:
            raise  # llama.cpp's engine requires attention too.
        return {"model_type": model.architecture, **sizes(model)}


def transformers_config(model: GgufFile) -> dict[str, Any]:
    """The configuration for transformers. Raises `UsageError` if it lacks the architecture or a feature."""
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
        # None too, because the defaults differ between configuration classes.
        **special,
    }


def _known_architecture(model: GgufFile) -> Architecture:
    architecture, stretching = architecture_of(model), rope_scaling(model)
    if architecture is None:
        raise _refusal(model, f"models of the kind {model.architecture!r} are not supported")
    if stretching not in STRETCHED:
        raise _refusal(model, f"its rotary embedding is stretched in the way {stretching!r}")
    for key, plain in UNHEEDED.items():
        value = model.metadata.get(f"{model.architecture}.{key}", plain[0])
        if value not in plain and key not in architecture.heeds:
            raise _refusal(model, f"it has {key} {value!r}, which transformers does not support")
    if turned_size(model) != head_size(model) and TURNED not in architecture.heeds:
        part = f"{turned_size(model)} of {head_size(model)} numbers of a head"
        raise _refusal(model, f"its rotary embedding turns {part}, and that of transformers all")
    return architecture


def _refusal(model: GgufFile, reason: str) -> UsageError:
    # llama.cpp cannot share a recurrent state between branches of a tree.
    llama = "" if model.has_recurrent_state else ", or --engine llama"
    return UsageError(
        f"{model.path} cannot be run from GGUF in PyTorch: {reason}; use the model's own folder{llama}."
    )


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix, or one for each expert, that consists of whole rows of tensors of one type."""

    kind: str
    experts: int | None
    rows: int
    columns: int
    tensors: tuple[str, ...]
    layout: RowLayout | None

    def read(self, model: GgufFile) -> npt.NDArray[np.uint8]:
        """The stored bytes [rows, bytes of a row], of experts [experts, ...], in the order of transformers."""
        found = [model.stored_rows(tensor) for tensor in self.tensors]
        return np.asarray(found[0] if self.layout is None else self.layout.lay(found, model))


def stored_matrices(model: GgufFile, names: Iterable[str]) -> dict[str, StoredMatrix]:
    """The weights of these names that can be used as stored. Raises `UsageError`."""
    architecture = _known_architecture(model)
    found = {}
    for name, tensors in _sources(model, names).items():
        stored = [model.tensors[tensor] for tensor in tensors]
        layout = architecture.layouts.get(_place(tensors))
        if not isinstance(layout, RowLayout | None) or (layout is None and len(tensors) > 1):
            continue
        kind, shape = stored[0].kind, stored[0].shape
        # The contiguous dimension is the first, and that of experts the last.
        if 2 <= len(shape) <= 3 and all(
            (one.kind, one.shape[0], one.shape[2:]) == (kind, shape[0], shape[2:]) for one in stored
        ):
            experts = shape[2] if len(shape) == 3 else None
            rows = sum(one.shape[1] for one in stored)
            found[name] = StoredMatrix(kind, experts, rows, shape[0], tensors, layout)
    return found


def stored_names(model: GgufFile, names: Iterable[str]) -> frozenset[str]:
    """The tensors of these weights, and those that are not weights."""
    sources = _sources(model, names).values()
    return frozenset(tensor for tensors in sources for tensor in tensors) | (ELSEWHERE & model.tensors.keys())


def _place(tensors: Sequence[str]) -> str:
    """The name of a weight's first tensor within its layer."""
    return tensors[0].split(".", 2)[-1] if tensors[0].startswith("blk.") else tensors[0]


def transformers_weights(
    model: GgufFile, names: Iterable[str], *, wanted: Container[str] | None = None
) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
    """Yield the dequantised weights by name, only the `wanted` ones if given. Raises as `known_sources`."""
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
    """The tensors of each weight. Raises `UsageError` if a tensor of the file belongs to none."""
    sources = _sources(model, names)
    used = {tensor for tensors in sources.values() for tensor in tensors}
    for tensor in model.tensors:
        if tensor not in used and tensor not in ELSEWHERE:
            raise UsageError(
                f"{model.path} has a tensor {tensor}, which is not known in a {model.architecture} model."
            )
    return sources


def _sources(model: GgufFile, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The tensors of each weight, for weights whose tensors are all in the file."""
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
        # For some models the converter drops the prefix of the language model.
        stored = known.get_name(stem) or known.get_name(stem.partition(".")[2])
        # A name without .weight in transformers may have it in the file.
        alone = [(f"{stored}.{kind}",)] if kind else [(f"{stored}",), (f"{stored}.weight",)]
        for tensors in (*merged, *alone):
            if all(tensor in model.tensors for tensor in tensors):
                found[name] = tensors
                break
    return found


def rope_factors(model: GgufFile) -> npt.NDArray[np.float32] | None:
    """The divisors of the rotary frequencies, shape (head size / 2,). None without them."""
    return model.weight(ROPE_FACTORS) if ROPE_FACTORS in model.tensors else None
