"""A sequence of a model that is asked what it would say: what it was fed, and its best token after it. Pure."""

from collections.abc import Sequence
from typing import Final

from cosine_node.engine.base import PREFIX, Choice, Row
from cosine_node.engine.text_alignment import PredictedToken

MAX_SAID_TOKENS: Final = 64
"""How much of what the model has said already is looked at."""
HELD_TOKENS: Final = 8
"""Tokens at the end of a text that are not kept yet, since text that follows may change them."""


class OwnText:
    """A kept prefix and a tree of tokens below it, fed or about to be, with what the model says after each.

    Texts are lists of token ids from the very first on. Names of nodes count up and are never used twice.
    """

    __slots__ = ("_dropped", "_names", "_next", "_nodes", "_pending", "_said", "_wanted", "kept", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.kept: list[int] = []
        self._nodes: dict[int, tuple[int, int]] = {}
        self._names: dict[tuple[int, int], int] = {}
        self._said: dict[int, PredictedToken | None] = {}
        self._pending: list[int] = []
        self._wanted: set[int] = set()
        self._dropped: list[int] = []
        self._next = 0

    @property
    def node_tokens(self) -> int:
        """Tokens fed and not kept."""
        return len(self._nodes) - len(self._pending)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was fed yet."""
        return not self.kept and not self.node_tokens

    def leads_to(self, ids: Sequence[int]) -> bool:
        """Whether a text can be asked about: it goes on from the kept prefix."""
        return len(ids) > len(self.kept) and list(ids[: len(self.kept)]) == self.kept

    def continuation(self, ids: Sequence[int]) -> list[PredictedToken]:
        """What the model is known to say after a text, at most `MAX_SAID_TOKENS`."""
        name, found = self._walk(ids)
        heard: list[PredictedToken] = []
        following: int | None = name if found == len(ids) else None
        while following is not None and len(heard) < MAX_SAID_TOKENS:
            said = self._said.get(following)
            if said is None:
                break
            heard.append(said)
            following = self._names.get((following, said.token))
        return heard

    def ask(self, ids: Sequence[int]) -> bool:
        """Have the model say one token more after a text; False if it has nothing to say there."""
        name, found = self._walk(ids)
        for token in ids[found:]:
            name = self._push(name, token)
        while (said := self._said.get(name)) is not None:
            known = self._names.get((name, said.token))
            name = self._push(name, said.token) if known is None else known
        if name in self._said:
            return False
        if name not in self._pending:
            # It was fed on the way to another text, without being asked: it must be fed anew.
            parent, token = self._nodes[name]
            self._drop(name)
            name = self._push(parent, token)
        self._wanted.add(name)
        return True

    def row(self, *, wants_nll: bool) -> Row | None:
        """What must be fed to know what was asked. The likelihood is wanted only of a chain."""
        if not self._pending:
            return None
        nodes = tuple(self._pending)
        parents = tuple(self._nodes[name][0] for name in nodes)
        return Row(
            self.sequence,
            tuple(self._nodes[name][1] for name in nodes),
            nodes,
            parents,
            scored_from=next(index for index, name in enumerate(nodes) if name in self._wanted),
            candidates=1,
            wants_nll=wants_nll and len(nodes) > 1 and parents[1:] == nodes[:-1],
        )

    def absorb(self, row: Row, choices: Sequence[Choice]) -> None:
        """The row was fed: note what the model says."""
        for name, choice in zip(row.nodes[row.scored_from :], choices, strict=True):
            best = choice.candidates[:1]
            self._said[name] = PredictedToken(*best[0]) if best else None
        self._pending.clear()
        self._wanted.clear()

    def withdraw(self) -> None:
        """Forget what was asked and not fed."""
        for name in reversed(self._pending):
            self._forget(name)
        self._pending.clear()
        self._wanted.clear()

    def take_dropped(self) -> tuple[int, ...]:
        """Names dropped since the last call, for the engine to prune."""
        dropped, self._dropped = tuple(self._dropped), []
        return dropped

    def settle(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Keep what is fed of a certain text but its end; the chain of nodes this moves into the prefix."""
        path: list[int] = []
        name = PREFIX
        for token in ids[len(self.kept) : -HELD_TOKENS]:
            known = self._names.get((name, token))
            if known is None:
                break
            path.append(name := known)
        if path:
            self._keep(path)
        return tuple(path)

    def _keep(self, path: Sequence[int]) -> None:
        self.kept.extend(self._nodes[name][1] for name in path)
        last = path[-1]
        alive: dict[int, tuple[int, int]] = {}
        for name, (parent, token) in self._nodes.items():
            if parent == last or parent in alive:
                alive[name] = (PREFIX if parent == last else parent, token)
        self._nodes = alive
        self._names = {place: name for name, place in alive.items()}
        self._said = {name: said for name, said in self._said.items() if name in alive}

    def _walk(self, ids: Sequence[int]) -> tuple[int, int]:
        """The last node of the tree on the way to a text, and how many ids lie before its end."""
        name = PREFIX
        for found in range(len(self.kept), len(ids)):
            known = self._names.get((name, ids[found]))
            if known is None:
                return name, found
            name = known
        return name, len(ids)

    def _push(self, parent: int, token: int) -> int:
        name = self._next
        self._next += 1
        self._nodes[name] = (parent, token)
        self._names[(parent, token)] = name
        self._pending.append(name)
        return name

    def _drop(self, top: int) -> None:
        """Forget a node and what descends from it."""
        dropped = {top}
        for name, (parent, _) in self._nodes.items():
            if parent in dropped:
                dropped.add(name)
        for name in dropped:
            self._forget(name)
        self._dropped.append(top)
        self._pending = [name for name in self._pending if name not in dropped]

    def _forget(self, name: int) -> None:
        del self._names[self._nodes.pop(name)]
        self._said.pop(name, None)
        self._wanted.discard(name)
