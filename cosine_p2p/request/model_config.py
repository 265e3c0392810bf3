"""A model's config.json, read as transformers does, without transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cosine_p2p.storage.bounded_file import read_json
from cosine_protocol.errors import UsageError

FILE_NAME: Final = "config.json"  # As `save_pretrained` writes it.
TEXT_PARTS: Final = ("text_config", "thinker_config", "llm_config", "language_config", "decoder", "generator")
"""The keys of the language model's configuration in multimodal models."""


def read_model_config(folder: Path) -> Mapping[str, Any]:
    """Return the object in a folder's config.json, empty without the file. Raises `UsageError`."""
    return read_config_object(folder / FILE_NAME)


def read_config_object(file: Path) -> Mapping[str, Any]:
    """Return the object in a JSON file, empty without the file. Raises `UsageError`."""
    if not file.is_file():
        return {}
    try:
        content = read_json(file)
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{file} cannot be read ({error}); fetch the model again.") from None
    if not isinstance(content, dict):
        raise UsageError(f"{file} cannot be read (it holds no object); fetch the model again.")
    return content


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the configuration of the language model: the inner object, merged over the outer ones."""
    found, parts = dict(config), [config]
    for part in parts:
        inner = next((part[name] for name in TEXT_PARTS if isinstance(part.get(name), dict)), None)
        if inner is not None:
            found |= inner
            parts.append(inner)
    return found
