"""Which feeds a stage need not compute: those that operations behind them in its inbox drop. Pure.

PipeInfer (arXiv 2407.11798, section IV.D) cancels runs early that are not wanted any more.
"""

from collections.abc import Iterable, Mapping, Sequence

from cosine_node.engine.base import PREFIX, Row
from cosine_protocol.stage_messages import KeepPath, PruneNodes, ReleaseSequence


def will_be_dropped(row: Row, parents: Mapping[int, int], later: Sequence[object]) -> bool:
    """True if later operations drop all nodes of a row before any of them becomes part of the prefix.

    `parents` are those of the nodes that the row's sequence has before it, parents before children.
    """
    if not any(getattr(operation, "sequence", None) == row.sequence for operation in later):
        return False
    alive = {**parents, **dict(zip(row.nodes, row.parents, strict=True))}
    for operation in later:
        match operation:
            case ReleaseSequence(sequence) if sequence == row.sequence:
                return True
            case PruneNodes(sequence, nodes) if sequence == row.sequence:
                for name in _with_descendants(alive, nodes):
                    del alive[name]
            case KeepPath(sequence, path) if sequence == row.sequence and path:
                if not alive.keys().isdisjoint(path) and not set(row.nodes).isdisjoint(path):
                    return False
                end = path[-1]
                below = _with_descendants(alive, [end]) - {end}
                alive = {name: PREFIX if alive[name] == end else alive[name] for name in alive if name in below}
        if alive.keys().isdisjoint(row.nodes):
            return True
    return False


def _with_descendants(alive: Mapping[int, int], names: Iterable[int]) -> set[int]:
    found = set(names) & alive.keys()
    for name, parent in alive.items():
        if parent in found:
            found.add(name)
    return found
