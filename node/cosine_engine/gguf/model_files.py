"""The files of a model on this machine."""

from dataclasses import dataclass
from pathlib import Path

from cosine_engine.gguf.file import GgufFile


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The folder of a model: its configuration, its tokenizer and its weights.

    The weights are safetensors, or those of the `gguf` file that the folder was unfolded from or holds a part of.
    """

    folder: Path
    gguf: GgufFile | None = None

    @classmethod
    def in_folder(cls, folder: Path) -> "ModelFiles":
        """Read what is in a folder. Raises `UsageError` for a damaged GGUF file."""
        return cls(folder, GgufFile.in_folder(folder))

    @property
    def weights_bytes(self) -> int:
        """The size of the files of weights."""
        files = self.folder.glob("*.safetensors") if self.gguf is None else self.gguf.parts
        return sum(file.stat().st_size for file in files)
