"""A sequence as a kept prefix and a tree of named nodes below it. Pure, no tensors."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cosine_engine.base import PREFIX, Row
from cosine_engine.constraints.grammars import Guide
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling


@dataclass(slots=True)
class FedNode:
    """A token below the prefix: its parent's name, its absolute index in the sequence, and its slot in the pool."""

    parent: int
    token: int
    index: int
    slot: int


class SequenceTree:
    """A sequence in a KV pool: the tokens of the kept prefix, and the live nodes by name, parents before children.

    `slots` are those of the prefix. A `guide` restricts the next tokens.
    """

    def __init__(self, *, sampling: Sampling, prompt_tokens: int, guide: Guide | None = None) -> None:
        self.sampling = sampling
        self.prompt_tokens = prompt_tokens
        self.guide = guide
        self.tokens = array("q")
        self.slots = array("q")
        self.nodes: dict[int, FedNode] = {}

    @property
    def live_tokens(self) -> int:
        """The number of tokens in the prefix and all nodes."""
        return len(self.tokens) + len(self.nodes)

    def check(self, row: Row, *, vocab_tokens: int, context_tokens: int) -> None:
        """Raise `LocalProtocolError` for a row that breaks the rules of `Row` or does not fit."""
        if not len(row.tokens) == len(row.nodes) == len(row.parents) > 0:
            raise LocalProtocolError("A row needs as many nodes and parents as tokens, and at least one.")
        if not 0 <= row.scored_from <= len(row.tokens):
            raise LocalProtocolError(f"scored_from is {row.scored_from} in a row of {len(row.tokens)} tokens.")
        if row.wants_nll and not row.is_chain:
            raise LocalProtocolError("The likelihood of a row is defined for a chain only.")
        if not (min(row.tokens) >= 0 and max(row.tokens) < vocab_tokens):
            raise LocalProtocolError(f"A token id is outside the vocabulary of {vocab_tokens}.")
        indices: dict[int, int] = {}
        for node, parent in zip(row.nodes, row.parents, strict=True):
            if node < 0 or node in indices or node in self.nodes:
                raise LocalProtocolError(f"Node name {node} is negative or already in use.")
            if parent not in indices and parent not in self.nodes and parent != PREFIX:
                raise LocalProtocolError(f"Parent {parent} is not alive in this sequence.")
            indices[node] = indices[parent] + 1 if parent in indices else self.index_after(parent)
        if max(indices.values()) >= context_tokens:
            raise LocalProtocolError(f"The sequence would be longer than the context of {context_tokens} tokens.")

    def index_after(self, parent: int) -> int:
        """Return the absolute index of a token that follows a live node, or the prefix."""
        return len(self.tokens) if parent == PREFIX else self.nodes[parent].index + 1

    def path(self, name: int) -> list[FedNode]:
        """Return the nodes from the one below the prefix down to `name`; empty for `PREFIX`."""
        path = []
        while name != PREFIX:
            node = self.nodes[name]
            path.append(node)
            name = node.parent
        path.reverse()
        return path

    def tokens_to(self, name: int) -> list[int]:
        """Return the tokens of the prefix and of the path down to a node."""
        return [*self.tokens, *(node.token for node in self.path(name))]

    def begin(self, tokens: Iterable[int], slots: Iterable[int]) -> None:
        """Give an empty sequence a prefix that other sequences fed."""
        self.tokens.extend(tokens)
        self.slots.extend(slots)

    def add(self, row: Row, slots: Sequence[int]) -> None:
        """Put the tokens of a checked row into the tree."""
        for name, parent, token, slot in zip(row.nodes, row.parents, row.tokens, slots, strict=True):
            self.nodes[name] = FedNode(parent, token, self.index_after(parent), slot)

    def keep(self, path: Sequence[int]) -> list[FedNode]:
        """Append a chain of nodes to the prefix; return the dropped nodes, which do not descend from its end.

        Raises `LocalProtocolError`, and changes nothing, unless `path` is a chain of live nodes from PREFIX.
        """
        for name, parent in zip(path, (PREFIX, *path), strict=False):
            if name not in self.nodes or self.nodes[name].parent != parent:
                raise LocalProtocolError(f"Node {name} does not follow {parent} in this sequence.")
        if not path:
            return []
        for name in path:
            node = self.nodes.pop(name)
            self.tokens.append(node.token)
            self.slots.append(node.slot)
        alive: dict[int, FedNode] = {}
        dropped = []
        for name, node in self.nodes.items():
            if node.parent == path[-1]:
                node.parent = PREFIX
                alive[name] = node
            elif node.parent in alive:
                alive[name] = node
            else:
                dropped.append(node)
        self.nodes = alive
        return dropped

    def prune(self, names: Iterable[int]) -> list[FedNode]:
        """Drop nodes and their descendants, and return all dropped ones. Unknown names are ignored."""
        dropped = set(names) & self.nodes.keys()
        if not dropped:
            return []
        for name, node in self.nodes.items():
            if node.parent in dropped:
                dropped.add(name)
        return [self.nodes.pop(name) for name in dropped]


Feeds = Sequence[tuple[SequenceTree, Row]]
"""The rows of a pass, each with the tree that already contains it."""
