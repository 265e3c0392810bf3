"""A sequence as the engines keep it: the kept prefix and the tree of nodes fed since. Pure, no tensors."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from cosine_node.engine.base import PREFIX, Row
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling


@dataclass(frozen=True, slots=True)
class FedNode:
    """One fed token: its parent's name, its pool slot, and its absolute index in the sequence."""

    parent: int
    token: int
    slot: int
    index: int


class SequenceTree:
    """Tokens and slots of the kept prefix, and the live nodes by name, parents before children."""

    __slots__ = ("nodes", "prompt_tokens", "sampling", "slots", "tokens")

    def __init__(self, *, sampling: Sampling, prompt_tokens: int) -> None:
        self.sampling = sampling
        self.prompt_tokens = prompt_tokens
        self.tokens = array("q")
        self.slots = array("q")
        self.nodes: dict[int, FedNode] = {}

    @property
    def live_tokens(self) -> int:
        return len(self.tokens) + len(self.nodes)

    def begin(self, tokens: Iterable[int], slots: Iterable[int]) -> None:
        """Begin the prefix of an empty sequence with tokens that others fed, and their slots."""
        self.tokens.extend(tokens)
        self.slots.extend(slots)

    def indices(self, row: Row) -> list[int]:
        """The absolute index each token of a row will have. Raises `LocalProtocolError` for a wrong row."""
        if not len(row.tokens) == len(row.nodes) == len(row.parents) > 0:
            raise LocalProtocolError("A row needs as many nodes and parents as tokens, and at least one.")
        if not 0 <= row.scored_from <= len(row.tokens):
            raise LocalProtocolError(f"scored_from is {row.scored_from} in a row of {len(row.tokens)} tokens.")
        if row.wants_nll and not is_chain(row):
            raise LocalProtocolError("The likelihood of a row is defined for a chain only.")
        fresh = {PREFIX: len(self.tokens) - 1}
        for node, parent in zip(row.nodes, row.parents, strict=True):
            if node < 0 or node in fresh or node in self.nodes:
                raise LocalProtocolError(f"FedNode name {node} is negative or already in use.")
            if parent not in fresh:
                fresh[parent] = self._index(parent)
            fresh[node] = fresh[parent] + 1
        return [fresh[node] for node in row.nodes]

    def _index(self, name: int) -> int:
        node = self.nodes.get(name)
        if node is None:
            raise LocalProtocolError(f"Parent {name} is not alive in this sequence.")
        return node.index

    def add(self, row: Row, *, slots: Sequence[int], indices: Sequence[int]) -> None:
        """Put the tokens of a checked row into the tree."""
        for name, *fields in zip(row.nodes, row.parents, row.tokens, slots, indices, strict=True):
            self.nodes[name] = FedNode(*fields)

    def path(self, name: int) -> list[FedNode]:
        """The nodes from the one below the prefix down to `name`; empty for `PREFIX`."""
        path = []
        while name != PREFIX:
            node = self.nodes[name]
            path.append(node)
            name = node.parent
        path.reverse()
        return path

    def keep(self, path: Sequence[int]) -> list[int]:
        """Append a chain of nodes to the prefix; the slots of the nodes this drops.

        Raises `LocalProtocolError`, and changes nothing, unless `path` is a chain of live nodes from PREFIX.
        """
        if not path:
            return []
        self._check_path(path)
        for name in path:
            node = self.nodes.pop(name)
            self.tokens.append(node.token)
            self.slots.append(node.slot)
        last = path[-1]
        alive: dict[int, FedNode] = {}
        freed = []
        for name, node in self.nodes.items():
            if node.parent == last:
                alive[name] = FedNode(PREFIX, node.token, node.slot, node.index)
            elif node.parent in alive:
                alive[name] = node
            else:
                freed.append(node.slot)
        self.nodes = alive
        return freed

    def _check_path(self, path: Sequence[int]) -> None:
        parent = PREFIX
        for name in path:
            node = self.nodes.get(name)
            if node is None or node.parent != parent:
                raise LocalProtocolError(f"FedNode {name} does not follow {parent} in this sequence.")
            parent = name

    def prune(self, names: Iterable[int]) -> list[int]:
        """Drop nodes and what descends from them; the slots this frees. Unknown names are ignored."""
        dropped = set(names) & self.nodes.keys()
        if not dropped:
            return []
        for name, node in self.nodes.items():
            if node.parent in dropped:
                dropped.add(name)
        return [self.nodes.pop(name).slot for name in dropped]


def is_chain(row: Row) -> bool:
    """Whether each token of a row follows the one before it."""
    return row.parents[1:] == row.nodes[:-1]
