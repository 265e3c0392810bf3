"""The files that a learned version is served from: its safetensors, or a GGUF file of the original type."""

import shutil
from pathlib import Path
from typing import Final

from cosine_engine import vocabulary as draft_vocabulary
from cosine_engine.base import Engine
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.writing import ARCHITECTURE, FILE_TYPES, write_gguf
from cosine_engine.retokenized import RetokenizedEngine
from cosine_p2p.request import generation_config
from cosine_p2p.text.held_weights import GGUF_LINK
from cosine_p2p.text.tokenizer_files import names_in
from cosine_protocol.errors import UsageError

GGUF_FOLDER: Final = "gguf"
"""The folder of the GGUF file in a version: a folder with safetensors is loaded from these."""
CONFIG: Final = "config.json"


def check_can_learn(model: str, folder: Path | None, engine: Engine) -> Path:
    """Return the folder of a drafter's weights. Raises `UsageError` for a drafter that cannot learn."""
    if folder is None:
        raise UsageError(f"{model} has no weights that could learn; leave --learn out.")
    if isinstance(engine, RetokenizedEngine):
        raise UsageError(f"{model} has another tokenizer than its target, and cannot learn its tokens; no --learn.")
    file = GgufFile.in_folder(folder)
    if file is not None and (file.architecture != ARCHITECTURE or file.weights not in FILE_TYPES):
        raise UsageError(
            f"{model} is a GGUF file of {file.architecture} in {file.weights}, which cannot be written anew here; "
            f"use --learn with its safetensors, or with {ARCHITECTURE} in {', '.join(FILE_TYPES)}."
        )
    return folder


def gguf_kind(folder: Path) -> str | None:
    """Return the weight type of the GGUF file in a folder, if it has one."""
    file = GgufFile.in_folder(folder)
    return None if file is None else file.weights


def add_what_serves(version: Path, shipped: Path, *, kind: str | None) -> None:
    """Add the other files of the shipped model to a version with config and safetensors.

    With a `kind` of GGUF weights, a file of that type is added. Raises `UsageError`.
    """
    for name in (*names_in(shipped), draft_vocabulary.FILE_NAME, generation_config.FILE_NAME):
        if (shipped / name).is_file() and not (version / name).exists():
            (version / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(shipped / name, version / name)
    if kind is not None:
        folder = version / GGUF_FOLDER
        folder.mkdir()
        write_gguf(version, folder / GGUF_LINK, weights=kind, name=version.name)
        for name in (CONFIG, draft_vocabulary.FILE_NAME):
            if (version / name).is_file():
                shutil.copyfile(version / name, folder / name)


def serving_folder(version: Path) -> Path:
    """Return the folder that an engine loads a version from."""
    folder = version / GGUF_FOLDER
    return folder if folder.is_dir() else version
