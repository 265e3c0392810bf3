"""Unfolds a GGUF file: writes the folder that the rest of the node reads, from the file's metadata."""

import json
import logging
from pathlib import Path

from cosine_engine import vocabulary as draft_vocabulary
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.tokenizer import stated_files, tokenizer_files
from cosine_engine.gguf.transformers_model import folder_config
from cosine_p2p.request import generation_config
from cosine_p2p.text import gguf_folder
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)


def unfold(file: Path, *, cache_folder: Path | None = None, is_served: bool = False) -> Path:
    """The folder of `cosine_p2p.text.gguf_folder` with the tokenizer, the config, and a drafter's vocabulary.

    `is_served` tests the tokenizer first. Raises `UsageError` for a file that cannot be served.
    """
    model = GgufFile.open(file)
    if model.has_towers and is_served:
        LOG.warning("%s is served as a language model: its parts for images and sounds are left out", file)
    files = _stated(model) | (tokenizer_files(model) if is_served else stated_files(model))
    return gguf_folder.unfold(file, files, cache_folder=cache_folder)


def unfold_part(folder: Path) -> None:
    """Write the same files into a folder with a part of a GGUF file. Raises `UsageError`."""
    model = GgufFile.of_part(folder)
    stated = {generation_config.FILE_NAME: gguf_folder.stated_generation(model.metadata, str(folder))}
    try:
        gguf_folder.write_files(folder, _stated(model) | stated_files(model) | stated)
    except OSError as error:
        raise UsageError(f"{folder} cannot be written ({error.strerror}).") from None


def _stated(model: GgufFile) -> dict[str, bytes]:
    contents: dict[str, object] = {"config.json": folder_config(model)}
    if model.draft_vocabulary is not None:
        contents[draft_vocabulary.FILE_NAME] = model.draft_vocabulary
    return {name: json.dumps(content, indent=2).encode() for name, content in contents.items()}
