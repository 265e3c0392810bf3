"""Reads and writes GGUF files, and unfolds them into model folders."""

from cosine_engine.gguf.file import GgufFile

__all__ = ["GgufFile"]
