"""Models as GGUF files: reading them, writing them, and what the rest of the node needs of them in a folder."""

from cosine_node.gguf.file import GgufFile

__all__ = ["GgufFile"]
