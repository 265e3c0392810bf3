"""A sequence in target tokens, as a drafter of another tokenizer keeps it: no pages, but plans. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.text_alignment import Plan
from cosine_node.engine.tree import TokenNode, TokenTree


@dataclass(slots=True)
class PlannedNode(TokenNode):
    """A target token and the plan after it: None if nobody has asked, empty if nothing can follow."""

    plan: Plan | None


class TargetText(TokenTree[PlannedNode]):
    """The kept prefix and the live nodes, and what is planned after each."""

    __slots__ = ("_prefix_plan",)

    def __init__(self) -> None:
        super().__init__()
        self._prefix_plan: Plan | None = None

    def add(self, row: Row) -> None:
        """Put the tokens of a checked row into the tree. A token that was planned goes on with the plan."""
        for name, parent, token in zip(row.nodes, row.parents, row.tokens, strict=True):
            plan = self.plan(parent) or ()
            rest = plan[1:] if len(plan) > 1 and plan[0][0] == token else None
            self.nodes[name] = PlannedNode(parent, token, self.index_after(parent), rest)

    def plan(self, name: int) -> Plan | None:
        """The plan after a node, or after the prefix; None if nobody has asked."""
        return self._prefix_plan if name == PREFIX else self.nodes[name].plan

    def set_plan(self, name: int, plan: Plan) -> None:
        self.nodes[name].plan = plan

    def _extend_prefix(self, kept: Sequence[PlannedNode]) -> None:
        super()._extend_prefix(kept)
        self._prefix_plan = kept[-1].plan
