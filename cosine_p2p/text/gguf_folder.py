"""A GGUF file as a model's folder, with files from its metadata."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_dir

from cosine_p2p.gguf.header import read_header
from cosine_p2p.gguf.vocabulary import Vocabulary, named_ends
from cosine_p2p.request import generation_config
from cosine_p2p.text.held_weights import GGUF_LINK, HeldWeights

SAMPLING: Final[Mapping[str, str]] = {
    "temp": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "penalty_repeat": "repetition_penalty",
}
"""llama.cpp's names below `general.sampling`, with transformers' names."""


def unfold(file: Path, more: Mapping[str, bytes], *, cache_folder: Path | None = None) -> Path:
    """Return the cached folder of a GGUF file: generation config, a link, and `more` files. Raises `UsageError`."""
    files = {generation_config.FILE_NAME: stated_generation(read_header(file).metadata, str(file)), **more}
    digest = HeldWeights.read(file).content_digest
    folder = (cache_folder or Path(user_cache_dir("cosine-p2p")) / "gguf") / digest.hex()
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder, files)
    draft = folder / f".{GGUF_LINK}.{secrets.token_hex(8)}"
    # Links are not resolved: the parts of a model are found by the name of the first.
    draft.symlink_to(file.absolute())
    os.replace(draft, folder / GGUF_LINK)
    return folder


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write files to a folder, each atomically. Raises `OSError`."""
    for name, content in files.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            draft = folder / f".{name}.{secrets.token_hex(8)}"
            draft.write_bytes(content)
            os.replace(draft, folder / name)


def stated_generation(metadata: Mapping[str, Any], source: str) -> bytes:
    """Return the generation config in metadata; `source` is their name in errors. Raises `UsageError`."""
    vocabulary = Vocabulary.read(source, metadata)
    ends = named_ends(metadata) if vocabulary is None else vocabulary.ends
    advised = {
        name: metadata[f"general.sampling.{key}"]
        for key, name in SAMPLING.items()
        if f"general.sampling.{key}" in metadata
    }
    stops = {"eos_token_id": list(ends)} if ends else {}
    return json.dumps({**stops, **advised, **({"do_sample": True} if advised else {})}, indent=2).encode()
