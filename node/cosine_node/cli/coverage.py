"""The layers of targets in parts, and how many stages hold each: a picture of bars in text."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from cosine_node.stage.coverage import bars, gaps_sentence, holders, unheld
from cosine_protocol.layer_range import LayerRange
from cosine_protocol.records import NodeRecord

SHOWN_LAYERS: Final = 64
"""A choice: a line of bars fits a terminal of 80 columns; deeper models have several layers a character."""
SHOWN_KINDS: Final = 4
"""A choice: whoever announces stages in many data types does not push the nodes off the screen."""

Kind = tuple[str, str, int]
"""A target's digest in hex, a data type, and a number of layers."""


def kinds_of(records: Iterable[NodeRecord]) -> list[tuple[Kind, list[LayerRange]]]:
    """The layers that stages hold, of each kind of model; those with most stages first."""
    kinds: defaultdict[Kind, list[LayerRange]] = defaultdict(list)
    for record in records:
        if record.stage is not None:
            kinds[record.target_digest.hex(), record.numerics, record.stage.layers].append(record.stage.held)
    return sorted(kinds.items(), key=lambda kind: (-len(kind[1]), kind[0]))


def coverage_lines(records: Iterable[NodeRecord]) -> Iterator[str]:
    """Lines for each kind of model of which stages are announced, with what is to be done about gaps.

    A bar is as high as a layer has stages; a cross marks a layer that nobody holds.
    """
    kinds = kinds_of(records)
    for (digest, numerics, layers), held in kinds[:SHOWN_KINDS]:
        counts = holders(held, layers=layers)
        name = f"layers of {digest[:8]} in {numerics}" if len(kinds) > 1 else f"layers in {numerics}"
        yield f"{name}: 0 {bars(shortened(counts))} {layers}, each held by {_span(counts)}"
        gaps = unheld(held, layers=layers)
        if gaps:
            yield f"{gaps_sentence(gaps)} `cosine-node join --role stage` takes them."


def shortened(counts: Sequence[int]) -> list[int]:
    """At most `SHOWN_LAYERS` numbers: of layers that share a character the one with fewest stages counts."""
    step = -(-len(counts) // SHOWN_LAYERS)
    return [min(counts[first : first + step]) for first in range(0, len(counts), step)]


def _span(counts: Sequence[int]) -> str:
    least, most = min(counts), max(counts)
    if least == most:
        return f"{most} stage{'' if most == 1 else 's'}"
    return f"{least} to {most} stages"


def coverage_as_objects(records: Iterable[NodeRecord]) -> list[dict[str, object]]:
    """The same for machines: the number of stages of each layer."""
    return [
        {"target_digest": digest, "numerics": numerics, "holders": holders(held, layers=layers)}
        for (digest, numerics, layers), held in kinds_of(records)
    ]
