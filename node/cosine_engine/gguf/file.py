"""A GGUF file: sizes and weights of its model."""

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cosine_engine.vocabulary import DraftVocabulary
from cosine_p2p.gguf.header import SUFFIX, GgufTensor, read_header, read_part, stored_bytes
from cosine_p2p.storage.bounded_file import read_json
from cosine_p2p.text.held_weights import GGUF_LINK, MANIFEST, METADATA, HeldWeights, read_manifest
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import MAX_FILE_BYTES

DRAFT_VOCABULARY: Final = "cosine.draft_vocabulary"
"""The key of a reduced vocabulary: the target's id of each token."""
TOWERS: Final = ("a.", "adapter.", "mm.", "model.image_newline", "resampler.", "s.", "v.")
"""Prefixes of tensors for images and sounds (llama.cpp's clip-impl.h)."""
PLAIN: Final[Mapping[str, str]] = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}


@dataclass(frozen=True, slots=True)
class GgufFile:
    """A GGUF file with its header; weights are read lazily."""

    path: Path
    metadata: Mapping[str, Any] = field(repr=False)
    tensors: Mapping[str, GgufTensor] = field(repr=False)
    parts: tuple[Path, ...]
    """All its files, the first one first; none where a folder holds a part of it."""
    has_towers: bool = False
    """True if it has tensors for images or sounds, which are not in `tensors`."""

    @classmethod
    def open(cls, path: Path) -> "GgufFile":
        """Read a model by its file, or by the first of its parts.

        Raises `UsageError` for one that is damaged, incomplete, or no language model.
        """
        header = read_header(path)
        return cls._checked(path, header.metadata, {tensor.name: tensor for tensor in header.tensors}, header.parts)

    @classmethod
    def _checked(
        cls, path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, GgufTensor], parts: tuple[Path, ...]
    ) -> "GgufFile":
        texts = {name: tensor for name, tensor in tensors.items() if not name.startswith(TOWERS)}
        found = cls(path, metadata, texts, parts, has_towers=len(texts) < len(tensors))
        if not isinstance(metadata.get("general.architecture"), str) or "token_embd.weight" not in found.tensors:
            raise UsageError(f"{path} is a GGUF file, but holds no language model.")
        # Validate everything now.
        _ = found.kv_bytes_per_token(1), found.context_tokens, found.draft_vocabulary
        for key in ("attention.layer_norm_rms_epsilon", "attention.layer_norm_epsilon"):
            # Refuses NaN too.
            if not found.decimal(key, 0.0) >= 0:
                raise UsageError(f"{path} has a negative {found.architecture}.{key}; fetch it again.")
        return found

    @classmethod
    def of_part(cls, folder: Path) -> "GgufFile":
        """The file of which a folder holds a part, with all tensors of the manifest. Raises `UsageError`."""
        manifest, _ = read_manifest(folder / MANIFEST)
        try:
            metadata = read_json(folder / METADATA, most_bytes=MAX_FILE_BYTES)
            if not isinstance(metadata, dict) or not all(map(_is_value, metadata.values())):
                raise ValueError("its metadata are not those of a GGUF file")
            tensors = {}
            for row in manifest.tensors:
                if stored_bytes(row.name, row.dtype, row.shape) != row.size_bytes:
                    raise ValueError(f"tensor {row.name} is of another length")
                # Its file would be this one.
                tensors[row.name] = GgufTensor(row.name, row.dtype, row.shape, folder, 0, row.size_bytes)
        except (OSError, ValueError, RecursionError) as error:
            raise UsageError(f"{folder} holds no part of a model ({error}); remove it.") from None
        for file in folder.glob(f"*{SUFFIX}"):
            tensors |= {tensor.name: tensor for tensor in read_part(file).tensors}
        return cls._checked(folder, metadata, tensors, ())

    @classmethod
    def in_folder(cls, folder: Path) -> "GgufFile | None":
        """The file that a folder was unfolded from, or holds a part of. None for others. Raises `UsageError`."""
        if (folder / METADATA).is_file() and (folder / MANIFEST).is_file():
            return cls.of_part(folder)
        link = folder / GGUF_LINK
        if not link.is_file() or any(folder.glob("*.safetensors")):
            return None
        # Errors name the user's file.
        return cls.open(folder / link.readlink() if link.is_symlink() else link)

    @property
    def parameters(self) -> int:
        return sum(math.prod(tensor.shape) for tensor in self.tensors.values())

    @property
    def architecture(self) -> str:
        """llama.cpp's name of the architecture, for example `llama`."""
        return str(self.metadata["general.architecture"])

    @property
    def name(self) -> str:
        return str(self.metadata.get("general.name") or self.path.stem)

    @property
    def vocab_tokens(self) -> int:
        return self.tensors["token_embd.weight"].shape[-1]

    @property
    def context_tokens(self) -> int:
        return self.size("context_length")

    @property
    def weights(self) -> str:
        """ggml's name of the type of most weights, for example `Q4_1`."""
        sizes: Counter[str] = Counter()
        for tensor in self.tensors.values():
            sizes[tensor.kind] += tensor.size_bytes
        return sizes.most_common(1)[0][0]

    @property
    def is_wide(self) -> bool:
        """True if most of its weights have 32 bits or more."""
        return self.weights in ("F32", "F64")

    @property
    def draft_vocabulary(self) -> tuple[int, ...] | None:
        """The target's id of each token of a drafter with a reduced vocabulary, else None.

        The model has at least one more token, for all others (`cosine_engine.vocabulary`).
        """
        tokens = self.metadata.get(DRAFT_VOCABULARY)
        if tokens is None:
            return None
        if not isinstance(tokens, list) or len(tokens) >= self.vocab_tokens:
            raise UsageError(
                f"{self.path} has a draft vocabulary that is not for a model of {self.vocab_tokens} tokens."
            )
        return DraftVocabulary(tuple(tokens)).target_ids

    @property
    def digest(self) -> bytes:
        """The content digest; reads the whole file (`cosine_p2p.text.held_weights`)."""
        return HeldWeights.read(self.path).content_digest

    @property
    def has_recurrent_state(self) -> bool:
        """True if some layers have a recurrent state instead of keys and values."""
        sizes = ("ssm.inner_size", "shortconv.l_cache", "wkv.head_size")
        return any(f"{self.architecture}.{size}" in self.metadata for size in sizes)

    def kv_bytes_per_token(self, bytes_per_value: float) -> int:
        """Size of the KV cache per token, rounded up."""
        if self.has_recurrent_state and self.metadata.get(f"{self.architecture}.attention.head_count") == 0:
            return 0
        heads = self.size("attention.head_count")
        head_size = self.size("embedding_length") // heads
        key_size = self.size("attention.key_length", default=head_size)
        value_size = self.size("attention.value_length", default=head_size)
        layers = self.size("block_count")
        kv_heads = self.metadata.get(f"{self.architecture}.attention.head_count_kv")
        # In some models the number of heads differs between layers.
        if isinstance(kv_heads, list) and all(isinstance(count, int) for count in kv_heads):
            all_heads = sum(kv_heads)
        else:
            all_heads = layers * self.size("attention.head_count_kv", default=heads)
        return math.ceil(all_heads * (key_size + value_size) * bytes_per_value)

    def stored_rows(self, name: str) -> npt.NDArray[np.uint8]:
        """The stored bytes of a tensor, [..., bytes of a row]. Raises `UsageError` if it is missing."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise UsageError(
                f"{self.path} has no tensor {name}, which a model of the kind {self.architecture} has."
            )
        if tensor.file == self.path and not self.parts:
            raise UsageError(f"{self.path} holds a part of a model without {name}.")
        raw = np.memmap(tensor.file, mode="r", offset=tensor.start, shape=(tensor.size_bytes,), dtype=np.uint8)
        return raw.reshape(*tensor.shape[:0:-1], -1)

    def weight(self, name: str) -> npt.NDArray[np.float32]:
        """A dequantised tensor, with the contiguous dimension last. Raises `UsageError` if it cannot be read."""
        rows, tensor = self.stored_rows(name), self.tensors[name]
        if tensor.kind in PLAIN:
            return np.array(rows.view(PLAIN[tensor.kind]), dtype=np.float32)
        from gguf import GGMLQuantizationType, dequantize

        try:
            return np.asarray(dequantize(rows, GGMLQuantizationType[tensor.kind]), dtype=np.float32)
        except (KeyError, NotImplementedError):
            raise UsageError(f"{self.path} holds weights in {tensor.kind}, which cannot be read here.") from None

    def size(self, key: str, *, default: int | None = None) -> int:
        """A number in the architecture's metadata, such as `block_count`. Raises `UsageError` if it is missing."""
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        # A list has one number for each layer; the largest one is a bound.
        largest = max(value, default=None) if isinstance(value, list) else value
        if not isinstance(largest, int) or largest < 1:
            raise UsageError(f"{self.path} does not say its {self.architecture}.{key}; fetch it again.")
        return largest

    def decimal(self, key: str, default: float) -> float:
        """A float32 number in the metadata as its shortest decimal: 1e-05, not 9.999999747378752e-06.

        Raises `UsageError` if it is not a number.
        """
        value = self.metadata.get(f"{self.architecture}.{key}", default)
        if not isinstance(value, int | float):
            raise UsageError(f"{self.path} has a {self.architecture}.{key} that is not a number; fetch it again.")
        return float(str(np.float32(value)))


def _is_value(value: object) -> bool:
    """True for valid metadata: text, a 64-bit number, or a list of values of one type."""
    if isinstance(value, list):
        kinds = set(map(type, value))
        return len(kinds) <= 1 and list not in kinds and all(map(_is_value, value))
    if isinstance(value, int):
        return -(1 << 63) <= value < 1 << 64
    return isinstance(value, str | float)
