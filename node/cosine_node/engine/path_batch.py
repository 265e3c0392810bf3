"""A row of a pass as batches of equally begun paths, for models that know sequences only, and no trees. Pure.

A token that several paths share is computed in each of them, and written to the pool once.
"""

from dataclasses import dataclass
from itertools import pairwise, takewhile

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.tree import FedNode, SequenceTree


@dataclass(frozen=True, slots=True)
class PathToken:
    """A token of a path and its slot; `number` is its place in the row, None if an earlier pass fed it."""

    token: int
    slot: int
    number: int | None


@dataclass(frozen=True, slots=True)
class PathBatch:
    """Paths that follow the same tokens, whose slots `past` are in their order."""

    past: tuple[int, ...]
    paths: tuple[tuple[PathToken, ...], ...]

    @property
    def length(self) -> int:
        return max(len(path) for path in self.paths)

    def padded(self) -> list[list[int]]:
        """The tokens of all paths, equally long: what follows the end of a path cannot change it."""
        return [[step.token for step in path] + [0] * (self.length - len(path)) for path in self.paths]

    def places(self) -> dict[int, tuple[int, int]]:
        """The path, and the place in it, where each token of the row is first."""
        found: dict[int, tuple[int, int]] = {}
        for i, path in enumerate(self.paths):
            for j, step in enumerate(path):
                if step.number is not None:
                    found.setdefault(step.number, (i, j))
        return found

    def slots(self) -> list[int]:
        """The slots of the row's tokens, in the order of `places`."""
        return [self.paths[i][j].slot for i, j in self.places().values()]


class RowPaths:
    """A row in its tree: the `stem`, which all its paths share below the kept prefix, and `branches` below it."""

    def __init__(self, tree: SequenceTree, row: Row) -> None:
        numbers = {name: number for number, name in enumerate(row.nodes)}
        parents = set(row.parents)
        paths = [_path(tree, name, numbers) for name in row.nodes if name not in parents]
        shared = list(takewhile(lambda steps: len(set(steps)) == 1, zip(*paths, strict=False)))
        self._tree = tree
        self.stem = tuple(steps[0] for steps in shared)
        self.branches = tuple(path[len(shared) :] for path in paths) if len(paths) > 1 else ()

    @property
    def known_slots(self) -> list[int]:
        """The slots of the prefix and of what earlier passes fed of the stem."""
        return [*self._tree.slots, *(step.slot for step in self.stem if step.number is None)]

    @property
    def stem_end(self) -> int:
        """The tokens from the beginning of the sequence to the end of the stem."""
        return len(self._tree.tokens) + len(self.stem)

    def whole(self) -> PathBatch:
        """All paths in one batch, below what earlier passes fed of the stem."""
        fed = [step for step in self.stem if step.number is None]
        rest = self.stem[len(fed) :]
        paths = tuple(rest + branch for branch in self.branches) or (rest,)
        return PathBatch(tuple(self.known_slots), paths)

    def split(self, known: int, *, page_tokens: int, most_tokens: int) -> list[PathBatch]:
        """The stem in pieces from the token after `known` on, one path each, and the branches in one batch.

        Pieces have at most `most_tokens` tokens. A long one also ends with the last whole page, where others may
        begin alike.
        """
        tree, end = self._tree, self.stem_end
        again = range(known, len(tree.tokens))
        line = (*(PathToken(tree.tokens[i], tree.slots[i], None) for i in again), *self.stem)[known - end :]
        slots = (*tree.slots, *(step.slot for step in self.stem))
        cuts = {*range(known, end, most_tokens), end}
        if end - known > page_tokens:
            cuts.add(end // page_tokens * page_tokens)
        pieces = [
            PathBatch(slots[:start], (line[start - known : stop - known],))
            for start, stop in pairwise(sorted(cuts))
        ]
        return [*pieces, PathBatch(slots, self.branches)] if self.branches else pieces


def _path(tree: SequenceTree, name: int, numbers: dict[int, int]) -> tuple[PathToken, ...]:
    """The tokens from below the prefix down to a node."""
    steps: list[PathToken] = []
    while name != PREFIX:
        node: FedNode = tree.nodes[name]
        steps.append(PathToken(node.token, node.slot, numbers.get(name)))
        name = node.parent
    return tuple(reversed(steps))
