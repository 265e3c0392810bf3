"""The number of stages that hold each layer, and the layers for a new stage. Pure."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import groupby

from cosine_protocol.records import NodeRecord
from cosine_protocol.stage import LayerRange

Kind = tuple[str, str, int]
"""A target's digest in hex, a data type, and a number of layers."""


def holders(held: Iterable[LayerRange], *, layers: int) -> list[int]:
    """The number of stages that hold each layer; ranges of models with another number of layers are ignored."""
    counts = [0] * layers
    for one in held:
        if one.layers == layers:
            for layer in range(one.first, one.end):
                counts[layer] += 1
    return counts


def unheld(held: Iterable[LayerRange], *, layers: int) -> list[LayerRange]:
    """The layers that no stage holds, as maximal ranges in order."""
    runs = groupby(enumerate(holders(held, layers=layers)), key=lambda layer: bool(layer[1]))
    gaps = [[index for index, _ in run] for is_held, run in runs if not is_held]
    return [LayerRange(first=gap[0], end=gap[-1] + 1, layers=layers) for gap in gaps]


def lacked_most(
    held: Collection[LayerRange], *, layers: int, fits: Callable[[LayerRange], bool]
) -> LayerRange | None:
    """The layers that a new stage should hold: from the first that fewest stages hold, as many as fit.

    They end where the number of holders changes, or before if `fits` demands it, then preferably where another
    stage begins or ends, since stages of a chain follow each other exactly. None if not even the first layer fits.
    `fits` must be true for every prefix of a range for which it is true.
    """
    counts = holders(held, layers=layers)
    first = counts.index(min(counts))
    run_end = next((layer for layer in range(first, layers) if counts[layer] != counts[first]), layers)
    ends = [end for end in range(first + 1, run_end + 1) if fits(LayerRange(first=first, end=end, layers=layers))]
    if not ends:
        return None
    end = ends[-1]
    if end < run_end:
        meetings = {layer for one in held if one.layers == layers for layer in (one.first, one.end)}
        end = max((meeting for meeting in meetings if first < meeting <= end), default=end)
    return LayerRange(first=first, end=end, layers=layers)


def bars(counts: Sequence[int]) -> str:
    """One bar character a layer, by the number of holders; a cross for none."""
    return "".join("×▁▂▃▄▅▆▇█"[min(count, 8)] for count in counts)


def gaps_sentence(gaps: Sequence[LayerRange]) -> str:
    """The sentence that names the layers that no stage holds. Needs at least one gap."""
    names = [str(gap) for gap in gaps]
    joined = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"Layers {joined} of {gaps[0].layers} are held by no stage."


def kinds_of(records: Iterable[NodeRecord]) -> list[tuple[Kind, list[LayerRange]]]:
    """The held layers of each kind of model; the kind with most stages first."""
    kinds: defaultdict[Kind, list[LayerRange]] = defaultdict(list)
    for record in records:
        if record.stage is not None:
            kinds[record.target_digest.hex(), record.numerics, record.stage.layers].append(record.stage.held)
    return sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[0]))


def coverage_as_objects(records: Iterable[NodeRecord]) -> list[dict[str, object]]:
    """The number of holders of each layer, of each kind of model, as JSON objects."""
    return [
        {"target_digest": digest, "numerics": numerics, "holders": holders(held, layers=layers)}
        for (digest, numerics, layers), held in kinds_of(records)
    ]
