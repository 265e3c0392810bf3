"""A GGUF file as a model's folder: what others read there, made of the file's metadata."""

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
"""llama.cpp's names below `general.sampling`, and transformers' names."""


def unfold(file: Path, more: Mapping[str, bytes], *, cache_folder: Path | None = None) -> Path:
    """The cached folder of a GGUF file's model: generation config, a link, more files. Raises `UsageError`."""
    files = {generation_config.FILE_NAME: stated_generation(read_header(file).metadata, str(file)), **more}
    digest = HeldWeights.read(file).content_digest
    folder = (cache_folder or Path(user_cache_dir("cosine-p2p")) / "gguf") / digest.hex()
    folder.mkdir(parents=True, exist_ok=True)
    write_files(folder, files)
    draft = folder / f".{GGUF_LINK}.{secrets.token_hex(8)}"
    # Not to where links lead: the parts of a model are found by the name of the first.
    draft.symlink_to(file.absolute())
    os.replace(draft, folder / GGUF_LINK)
    return folder


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Put files into a folder that others may be reading: each appears whole. Raises `OSError`."""
    for name, content in files.items():
        if not (folder / name).is_file() or (folder / name).read_bytes() != content:
            draft = folder / f".{name}.{secrets.token_hex(8)}"
            draft.write_bytes(content)
            os.replace(draft, folder / name)


def stated_generation(metadata: Mapping[str, Any], source: str) -> bytes:
    """The generation config that metadata state; `source` names them. Raises `UsageError`."""
    vocabulary = Vocabulary.read(source, metadata)
    ends = named_ends(metadata) if vocabulary is None else vocabulary.ends
    return json.dumps(_generation_config(metadata, ends), indent=2).encode()


def _generation_config(metadata: Mapping[str, Any], ends: tuple[int, ...]) -> dict[str, Any]:
    advised = {
        name: metadata[f"general.sampling.{key}"]
        for key, name in SAMPLING.items()
        if f"general.sampling.{key}" in metadata
    }
    stops = {"eos_token_id": list(ends)} if ends else {}
    return {**stops, **advised, **({"do_sample": True} if advised else {})}
