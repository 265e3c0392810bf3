"""Loading a part of a model: only its tensors are read, of the files that have some of them."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from transformers.utils.hub import cached_file

from cosine_node.engine.loading import first_line, hide_progress_in_logs, read_config
from cosine_node.engine.partial_model import AbsentOutput, StandInEmbedding, decoder_layers, part_class
from cosine_node.engine.support import model_class_of, quantisation_of, refuse_by_config
from cosine_node.gguf.file import GgufFile
from cosine_protocol.errors import UsageError
from cosine_protocol.layer_range import LayerRange

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
"""The names that transformers has for the weights in one file, and for the list of those in several."""


def load_part(source: str, layers: LayerRange, *, dtype: torch.dtype) -> Any:
    """Some layers of the model in a folder, or by a Hugging Face id, as a model of transformers.

    The first layer brings the embedding, the last one the output layer. Raises `UsageError`, and its kind
    `UnsupportedModel` for a model that has no such parts.
    """
    config = read_config(source)
    refuse_by_config(config)
    stored = quantisation_of(config)
    if GgufFile.in_folder(Path(source)) is not None:
        stored = "GGUF"
    if stored is not None:
        raise UsageError(f"'{source}' is stored in {stored} and cannot be loaded in parts; choose its own weights.")
    cls = part_class(model_class_of(config), layers)
    hide_progress_in_logs()
    with torch.device("meta"):
        plan = cls(config)
    try:
        with _tensors(source, _is_wanted(plan, layers)) as tensors:
            model, loaded = cls.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=dtype,
                attn_implementation="eager",
                output_loading_info=True,
            )
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"The weights of '{source}' cannot be read: {first_line(error)}") from error
    if lacking := set(loaded["missing_keys"]) - set(model.all_tied_weights_keys):
        raise UsageError(f"'{source}' lacks {min(lacking)}, for layers {layers} of its model.")
    return model


def _is_wanted(part: Any, layers: LayerRange) -> Callable[[str], bool]:
    """Tells by its name in a file whether a part may need a tensor; the model itself drops what it has not.

    Files name layers as modules are called, but not always below the same modules.
    """
    held = decoder_layers(part)
    name = next(name for name, module in part.named_modules() if module is held).rpartition(".")[2]
    number = re.compile(rf"(?:^|\.){re.escape(name)}\.([0-9]+)\.")
    absent = tuple(
        f"{name.rpartition('.')[2]}.{weight}"
        for name, module in part.named_modules()
        if isinstance(module, StandInEmbedding | AbsentOutput)
        for weight in ("weight", "bias")
    )

    def is_wanted(key: str) -> bool:
        found = number.search(key)
        return not key.endswith(absent) if found is None else int(found[1]) in layers

    return is_wanted


@contextmanager
def _tensors(source: str, is_wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """The tensors of these names, each to be read when it is needed; files with none are not opened."""
    whole = _file(source, WEIGHTS)
    if whole is None:
        index = _file(source, INDEX)
        if index is None:
            raise UsageError(f"'{source}' has no file {WEIGHTS}, nor {INDEX}.")
        file_of: dict[str, str] = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
        names = sorted({file for key, file in file_of.items() if is_wanted(key)})
    with ExitStack() as opened:
        tensors: dict[str, Any] = {}
        for path in [whole] if whole is not None else [_shard(source, name) for name in names]:
            # Mapped into memory, a file would take address space for all of its tensors.
            file = opened.enter_context(safe_open(path, framework="pt", backend="pread"))
            tensors.update({key: file.get_slice(key) for key in file.keys() if is_wanted(key)})  # noqa: SIM118  # it cannot be iterated
        yield tensors


def _shard(source: str, name: str) -> str:
    found = _file(source, name)
    if found is None:
        raise UsageError(f"'{source}' has no file {name}.")
    return found


def _file(source: str, name: str) -> str | None:
    """The path of a file in a folder, or of a model by its id, fetched if need be; None if there is none."""
    found: str | None = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    return found
