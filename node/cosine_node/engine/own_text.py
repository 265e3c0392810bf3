"""A sequence in the tokens of a model that is asked to go on with texts: what it was fed, and its answers. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from cosine_node.engine.base import PREFIX, Choice, Row
from cosine_node.engine.text_alignment import PredictedToken
from cosine_node.engine.tree import TokenNode, TokenTree

MAX_CONTINUATION_TOKENS: Final = 64
"""Bounds the work on one plan, which every node without a plan asks for in each inner pass."""
HELD_TOKENS: Final = 8
"""A choice: tokens at the end of a text that are not kept yet, since text that follows may change them."""


@dataclass(slots=True)
class OwnNode(TokenNode):
    """One own token. `prediction` is the model's best token after it, None if there is none or nobody has asked."""

    prediction: PredictedToken | None = None
    was_asked: bool = False


class OwnText(TokenTree[OwnNode]):
    """A kept prefix and a tree of tokens below it, fed or about to be, with the model's best token after each.

    Texts are lists of token ids from the very first on. Names of nodes count up and are never used twice.
    """

    __slots__ = ("_asked", "_children", "_dropped", "_next", "_pending", "sequence")

    def __init__(self, sequence: int) -> None:
        super().__init__()
        self.sequence = sequence
        self._children: dict[tuple[int, int], int] = {}
        # Nodes that are not fed yet, those of them whose prediction is wanted, and tops of branches to prune.
        self._pending: list[int] = []
        self._asked: set[int] = set()
        self._dropped: list[int] = []
        self._next = 0

    @property
    def node_tokens(self) -> int:
        """Tokens fed and not kept."""
        return len(self.nodes) - len(self._pending)

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was fed yet."""
        return not self.tokens and not self.node_tokens

    def leads_to(self, ids: Sequence[int]) -> bool:
        """Return whether a text can be asked about: it goes on from the kept prefix."""
        return len(ids) > len(self.tokens) and list(ids[: len(self.tokens)]) == self.tokens.tolist()

    def continuation(self, ids: Sequence[int]) -> list[PredictedToken]:
        """The tokens that the model is known to go on with after a text, at most `MAX_CONTINUATION_TOKENS`."""
        name, known = self._walk(ids)
        predicted: list[PredictedToken] = []
        following: int | None = name if known == len(ids) else None
        while following is not None and len(predicted) < MAX_CONTINUATION_TOKENS:
            prediction = self.nodes[following].prediction
            if prediction is None:
                break
            predicted.append(prediction)
            following = self._children.get((following, prediction.token))
        return predicted

    def ask(self, ids: Sequence[int]) -> bool:
        """Have the model predict one token more after a text; False if it has nothing to predict there."""
        name, known = self._walk(ids)
        for token in ids[known:]:
            name = self._push(name, token)
        while (prediction := self.nodes[name].prediction) is not None:
            child = self._children.get((name, prediction.token))
            name = self._push(name, prediction.token) if child is None else child
        if self.nodes[name].was_asked:
            return False
        if name not in self._pending:
            # It was fed on the way to another text, without being asked: it must be fed anew.
            node = self.nodes[name]
            self.prune([name])
            self._dropped.append(name)
            name = self._push(node.parent, node.token)
        self._asked.add(name)
        return True

    def row(self, *, wants_nll: bool) -> Row | None:
        """The row that must be fed to know what was asked. The likelihood is wanted only of a chain."""
        if not self._pending:
            return None
        nodes = tuple(self._pending)
        row = Row(
            self.sequence,
            tuple(self.nodes[name].token for name in nodes),
            nodes,
            tuple(self.nodes[name].parent for name in nodes),
            scored_from=next(index for index, name in enumerate(nodes) if name in self._asked),
            candidates=1,
        )
        return replace(row, wants_nll=wants_nll and len(nodes) > 1 and row.is_chain)

    def absorb(self, row: Row, choices: Sequence[Choice]) -> None:
        """Note the predictions of a row that was fed."""
        for name, choice in zip(row.nodes[row.scored_from :], choices, strict=True):
            node = self.nodes[name]
            node.was_asked = True
            node.prediction = PredictedToken(*choice.candidates[0]) if choice.candidates else None
        self._pending.clear()
        self._asked.clear()

    def withdraw(self) -> None:
        """Forget what was asked and not fed."""
        self.prune(self._pending)

    def take_dropped(self) -> tuple[int, ...]:
        """Names dropped since the last call, for the engine to prune."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def settle(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Keep what is fed of a certain text but its end; the chain of nodes this moves into the prefix."""
        path: list[int] = []
        name = PREFIX
        for token in ids[len(self.tokens) : -HELD_TOKENS]:
            child = self._children.get((name, token))
            if child is None:
                break
            path.append(name := child)
        self.keep(path)
        return tuple(path)

    def keep(self, path: Sequence[int]) -> list[OwnNode]:
        dropped = super().keep(path)
        self._children = {(node.parent, node.token): name for name, node in self.nodes.items()}
        return dropped

    def prune(self, names: Iterable[int]) -> list[OwnNode]:
        dropped = super().prune(names)
        for node in dropped:
            del self._children[node.parent, node.token]
        self._pending = [name for name in self._pending if name in self.nodes]
        self._asked &= self.nodes.keys()
        return dropped

    def _walk(self, ids: Sequence[int]) -> tuple[int, int]:
        """The last node of the tree on the way to a text, and how many ids lie before its end."""
        name = PREFIX
        for known in range(len(self.tokens), len(ids)):
            child = self._children.get((name, ids[known]))
            if child is None:
                return name, known
            name = child
        return name, len(ids)

    def _push(self, parent: int, token: int) -> int:
        name = self._next
        self._next += 1
        self.nodes[name] = OwnNode(parent, token, self.index_after(parent))
        self._children[parent, token] = name
        self._pending.append(name)
        return name
