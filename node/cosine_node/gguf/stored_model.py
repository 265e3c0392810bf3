"""A model of transformers as its folder stores it, read without torch: configuration, weights, tokenizer."""

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cosine_protocol.errors import UsageError

NUMPY: Final[Mapping[str, str]] = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""The dtypes of safetensors whose weights can be written, as numpy reads them; it has no bfloat16."""

DAMAGE: Final = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    OverflowError,
    RecursionError,
    struct.error,
)
"""All that a damaged file of weights can make json, struct and numpy raise."""


@dataclass(frozen=True, slots=True)
class StoredModel:
    """The parts of a model's folder. `tokenizer` is None where it has no tokenizer.json."""

    folder: Path
    config: Mapping[str, Any]
    tokenizer: Mapping[str, Any] | None

    @classmethod
    def read(cls, folder: Path) -> "StoredModel":
        """Raises `UsageError` for a folder that holds no model."""
        config = read_object(folder / "config.json")
        if config is None:
            raise UsageError(f"{folder} is no model folder: it has no config.json.")
        return cls(folder, config, read_object(folder / "tokenizer.json"))

    def chat_template(self) -> str | None:
        file = self.folder / "chat_template.jinja"
        if file.is_file():
            return file.read_text("utf-8")
        template = (read_object(self.folder / "tokenizer_config.json") or {}).get("chat_template")
        return template if isinstance(template, str) else None

    def weights(self) -> dict[str, npt.NDArray[np.float32]]:
        """All tensors of its safetensors files by name, in float32. Raises `UsageError`."""
        files = sorted(self.folder.glob("*.safetensors"))
        if not files:
            raise UsageError(f"{self.folder} is no model folder: it has no *.safetensors files.")
        tensors: dict[str, npt.NDArray[np.float32]] = {}
        for file in files:
            try:
                tensors |= _read_tensors(file)
            except DAMAGE as error:
                raise UsageError(f"{file} is not a readable safetensors file ({error}); fetch it again.") from None
        return tensors


def read_object(file: Path) -> dict[str, Any] | None:
    """The JSON object in a file, None if there is no file. Raises `UsageError` for anything else in it."""
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read ({error}); fetch the model again.") from None
    if not isinstance(content, dict):
        raise UsageError(f"{file} holds no JSON object; fetch the model again.")
    return content


def _read_tensors(file: Path) -> dict[str, npt.NDArray[np.float32]]:
    """safetensors: 8 bytes little-endian header length, a JSON header, then the tensors' bytes."""
    data = np.memmap(file, mode="r", dtype=np.uint8)
    (header_bytes,) = struct.unpack("<Q", data[:8].tobytes())
    header = json.loads(data[8 : 8 + header_bytes].tobytes())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = data[8 + header_bytes + begin : 8 + header_bytes + end].view(NUMPY[entry["dtype"]])
        # The bits of a bfloat16 are the upper half of a float32's.
        values = (raw.astype(np.uint32) << 16).view(np.float32) if entry["dtype"] == "BF16" else raw
        tensors[name] = np.asarray(values.reshape(entry["shape"]), dtype=np.float32)
    return tensors
