"""Tokenizers without a tokenizer.json: nodes convert and cache them (docs/python.md)."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from platformdirs import user_cache_dir

from cosine_p2p.storage.bounded_file import read_bounded
from cosine_protocol.errors import UsageError

TOKENIZER: Final = "tokenizer.json"  # The file that clients read; a folder with it needs no conversion.
MODEL_CONFIG: Final = "config.json"  # The model's type may determine its tokenizer.
OTHER_NAMES: Final = ("sentencepiece.model", "spm.model", "tekken.json", "tiktoken.model")
"""Vocabulary files that are never served."""
TIKTOKEN: Final = ".tiktoken"  # The file name extension of tiktoken.
_FIRST: Final = ("tekken.json", "tokenizer.model", "sentencepiece.bpe.model", "spiece.model", *OTHER_NAMES)
_LAST: Final = ("vocab.json", "vocab.txt")


@dataclass(frozen=True, slots=True)
class TokenizerSources:
    """The source files of a tokenizer, by name; `vocabulary` is the one with its tokens."""

    vocabulary: str
    files: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def of(cls, files: Mapping[str, bytes], *, folder: Path) -> "TokenizerSources | None":
        """Return the sources; None without a vocabulary. Raises `UsageError`."""
        names = (*_FIRST, *sorted(name for name in files if name.endswith(TIKTOKEN)), *_LAST)
        vocabulary = next((name for name in names if files.get(name)), None)
        if vocabulary is None:
            return None
        config = folder / MODEL_CONFIG
        try:
            content = read_bounded(config) if config.is_file() else b""
        except (OSError, ValueError) as error:
            raise UsageError(f"{config} cannot be read ({error}); fetch the model again.") from None
        return cls(vocabulary, {**files, MODEL_CONFIG: content})

    def folder_of(self, library_version: str) -> Path:
        return _cache() / f"{self._digest}-{library_version}"

    def converted(self) -> Path | None:
        """Return the folder of a converted tokenizer: by the installed transformers, else by any version."""
        installed = installed_version()
        if installed is not None:
            found = [self.folder_of(installed)]
        else:
            found = sorted(_cache().glob(f"{self._digest}-*"), reverse=True)
        return next((folder for folder in found if (folder / TOKENIZER).is_file()), None)

    @property
    def _digest(self) -> str:
        total = hashlib.sha256()
        for name, content in sorted(self.files.items()):
            total.update(f"{name} {len(content)}\n".encode())
            total.update(content)
        return total.hexdigest()


def other_names(folder: Path) -> list[str]:
    """Return the further names that vocabulary files may have in a folder."""
    return [*OTHER_NAMES, *sorted(file.name for file in folder.glob(f"*{TIKTOKEN}"))]


def installed_version() -> str | None:
    """Return the installed version of transformers, if any."""
    try:
        return version("transformers")
    except PackageNotFoundError:
        return None


def _cache() -> Path:
    return Path(user_cache_dir("cosine-p2p")) / "converted-tokenizers"
