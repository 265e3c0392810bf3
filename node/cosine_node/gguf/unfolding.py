"""A GGUF file as a model's folder: what the rest of the node reads there, made of the file's metadata."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_dir

from cosine_node.engine import vocabulary as draft_vocabulary
from cosine_node.gguf.file import GgufFile
from cosine_node.gguf.tokenizer import tokenizer_files
from cosine_node.gguf.transformers_model import transformers_config
from cosine_p2p.request import generation_config
from cosine_p2p.text.target import GGUF_LINK

SAMPLING: Final[Mapping[str, str]] = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""llama.cpp's names below `general.sampling` for what a generation config recommends, and transformers' names."""


def unfold(file: Path, *, cache_folder: Path | None = None) -> Path:
    """The folder of a GGUF file's model: config, generation config, tokenizer, chat template, a link to the file.

    The folder is kept in the cache under the file's digest. Raises `UsageError` for a file that cannot be served.
    """
    model = GgufFile.open(file)
    folder = (cache_folder or Path(user_cache_dir("cosine-p2p")) / "gguf") / model.digest.hex()
    files = {
        **tokenizer_files(model),
        "config.json": _json(transformers_config(model)),
        generation_config.FILE_NAME: _json(_generation_config(model)),
    }
    if model.draft_vocabulary is not None:
        files[draft_vocabulary.FILE_NAME] = _json(model.draft_vocabulary)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        # Another node may be reading the folder: a file is always there, and whole.
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            draft = folder / f".{name}.{secrets.token_hex(8)}"
            draft.write_bytes(content)
            os.replace(draft, folder / name)
    draft = folder / f".{GGUF_LINK}.{secrets.token_hex(8)}"
    draft.symlink_to(file.resolve())
    os.replace(draft, folder / GGUF_LINK)
    return folder


def _generation_config(model: GgufFile) -> dict[str, Any]:
    advised = {
        name: model.metadata[f"general.sampling.{key}"]
        for key, name in SAMPLING.items()
        if f"general.sampling.{key}" in model.metadata
    }
    ends = {"eos_token_id": list(model.eos)} if model.eos else {}
    return {**ends, **advised, **({"do_sample": True} if advised else {})}


def _json(content: Any) -> bytes:
    return json.dumps(content, indent=2).encode()
