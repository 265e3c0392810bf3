"""A sequence in target tokens, as a drafter of another tokenizer keeps it: no pages, but plans. Pure."""

from collections.abc import Iterable, Sequence

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.text_alignment import Plan
from cosine_protocol.errors import LocalProtocolError


class TargetText:
    """The kept prefix, the live nodes by name, parents before children, and what is planned after each.

    A node without a plan has not been asked about; the plan of a mute one is empty.
    """

    __slots__ = ("_nodes", "_plans", "_prefix")

    def __init__(self) -> None:
        self._prefix: list[int] = []
        self._nodes: dict[int, tuple[int, int]] = {}
        self._plans: dict[int, Plan] = {}

    @property
    def prefix(self) -> tuple[int, ...]:
        return tuple(self._prefix)

    @property
    def is_empty(self) -> bool:
        return not self._prefix and not self._nodes

    @property
    def prefix_tokens(self) -> int:
        return len(self._prefix)

    def check(self, row: Row, *, vocab_tokens: int, context_tokens: int) -> None:
        """Raise `LocalProtocolError` for a row that cannot be fed."""
        if not len(row.tokens) == len(row.nodes) == len(row.parents) > 0:
            raise LocalProtocolError("A row needs as many nodes and parents as tokens, and at least one.")
        if not 0 <= row.scored_from <= len(row.tokens):
            raise LocalProtocolError(f"scored_from is {row.scored_from} in a row of {len(row.tokens)} tokens.")
        if row.wants_nll and row.parents[1:] != row.nodes[:-1]:
            raise LocalProtocolError("The likelihood of a row is defined for a chain only.")
        if not (min(row.tokens) >= 0 and max(row.tokens) < vocab_tokens):
            raise LocalProtocolError(f"A token id is outside the vocabulary of {vocab_tokens}.")
        depths: dict[int, int] = {}
        for node, parent in zip(row.nodes, row.parents, strict=True):
            if node < 0 or node in depths or node in self._nodes:
                raise LocalProtocolError(f"Node name {node} is negative or already in use.")
            depths[node] = 1 + (depths[parent] if parent in depths else self._depth(parent))
        if self.prefix_tokens + max(depths.values()) > context_tokens:
            raise LocalProtocolError(f"The sequence would be longer than the context of {context_tokens} tokens.")

    def add(self, row: Row) -> None:
        """Put the tokens of a checked row into the tree. A token that was planned goes on with the plan."""
        for name, parent, token in zip(row.nodes, row.parents, row.tokens, strict=True):
            self._nodes[name] = (parent, token)
            plan = self._plans.get(parent, ())
            if len(plan) > 1 and plan[0][0] == token:
                self._plans[name] = plan[1:]

    def plan(self, name: int) -> Plan | None:
        """What is planned after a node; None if nobody has asked."""
        return self._plans.get(name)

    def set_plan(self, name: int, plan: Plan) -> None:
        self._plans[name] = plan

    def tokens_to(self, name: int) -> list[int]:
        """Prefix and path down to a node."""
        return [*self._prefix, *reversed([self._nodes[step][1] for step in self._upwards(name)])]

    def keep(self, path: Sequence[int]) -> None:
        """Append a chain of nodes to the prefix and drop what does not follow it.

        Raises `LocalProtocolError`, and changes nothing, unless `path` is a chain of live nodes from PREFIX.
        """
        for name, parent in zip(path, (PREFIX, *path), strict=False):
            if name not in self._nodes or self._nodes[name][0] != parent:
                raise LocalProtocolError(f"Node {name} does not follow {parent} in this sequence.")
        if not path:
            return
        self._prefix.extend(self._nodes[name][1] for name in path)
        last = path[-1]
        alive: dict[int, tuple[int, int]] = {}
        for name, (parent, token) in self._nodes.items():
            if parent == last or parent in alive:
                alive[name] = (PREFIX if parent == last else parent, token)
        plans = {name: plan for name, plan in self._plans.items() if name in alive}
        if last in self._plans:
            plans[PREFIX] = self._plans[last]
        self._nodes, self._plans = alive, plans

    def prune(self, names: Iterable[int]) -> None:
        """Drop nodes and what descends from them. Unknown names are ignored."""
        dropped = set(names) & self._nodes.keys()
        for name, (parent, _) in self._nodes.items():
            if parent in dropped:
                dropped.add(name)
        for name in dropped:
            del self._nodes[name]
            self._plans.pop(name, None)

    def _upwards(self, name: int) -> list[int]:
        steps = []
        while name != PREFIX:
            steps.append(name)
            name = self._nodes[name][0]
        return steps

    def _depth(self, name: int) -> int:
        if name != PREFIX and name not in self._nodes:
            raise LocalProtocolError(f"Parent {name} is not alive in this sequence.")
        return len(self._upwards(name))
