"""A block of tree nodes as it travels: parents, tokens and confidences in three parallel fields."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

from cosine_protocol.errors import MalformedMessage
from cosine_protocol.fields import Bytes, Items, Whole
from cosine_protocol.limits import MAX_TOKEN_ID, MAX_TREE_NODES

BASE = -1  # The parent of a node that directly extends the block's base.

MAX_BLOCK_NODES = min(MAX_TREE_NODES, 255)  # On the wire a node's parent is one byte, of which 0 is the base.


@dataclass(frozen=True, slots=True)
class Node:
    """One drafted token. `parent` is `BASE` or the index of an earlier node of the same block."""

    parent: int
    token: int
    confidence: float


@dataclass(frozen=True, slots=True)
class NodeBlock:
    """At most 255 nodes, parents before children.

    On the wire a parent is one byte (0 = base, i + 1 = node i) and a confidence one byte (255 = certain). Raises
    `MalformedMessage` where the fields disagree or a parent does not come first.
    """

    parents: Annotated[bytes, Bytes(MAX_BLOCK_NODES)]
    tokens: Annotated[tuple[int, ...], Items(Whole(MAX_TOKEN_ID), MAX_BLOCK_NODES)]
    confidences: Annotated[bytes, Bytes(MAX_BLOCK_NODES)]

    def __post_init__(self) -> None:
        if not len(self.parents) == len(self.tokens) == len(self.confidences):
            raise MalformedMessage("a node block's parents, tokens and confidences differ in number")
        if any(parent > index for index, parent in enumerate(self.parents)):
            raise MalformedMessage("a node of a block comes before its parent")

    def __len__(self) -> int:
        return len(self.tokens)

    def __iter__(self) -> Iterator[Node]:
        for parent, token, confidence in zip(self.parents, self.tokens, self.confidences, strict=True):
            yield Node(parent - 1, token, confidence / 255)

    @classmethod
    def of(cls, nodes: list[Node] | tuple[Node, ...]) -> "NodeBlock":
        """Pack nodes; confidences are rounded to 1/255."""
        return cls(
            bytes(node.parent + 1 for node in nodes),
            tuple(node.token for node in nodes),
            bytes(round(255 * min(max(node.confidence, 0.0), 1.0)) for node in nodes),
        )
