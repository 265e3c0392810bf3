"""The orders that a learner gives to its child, and what the child answers: one line of JSON each."""

import json
from dataclasses import asdict, dataclass, field
from typing import Any

from cosine_node.learning.decision import Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOrder:
    """Learn from the streams in a learner's `folder`, and write the version of this number.

    `base` is the folder of the weights to go on from, `shipped` that of the model as the volunteer named it, of the
    GGUF kind `kind` if it is one. `target` is the folder of the target's tokenizer.
    """

    folder: str
    number: int
    base: str
    shipped: str
    kind: str | None
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOutcome:
    """What came of a round: right first choices on held-out streams before and after it.

    `nll_before` and `nll` are the mean negative log-likelihood of the project's prompts by domain, to the weights
    as shipped and to the new ones.
    """

    before: Acceptance
    after: Acceptance
    trained_tokens: int
    steps: int
    seconds: float
    nll_before: dict[str, float] = field(default_factory=dict)
    nll: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonOrder:
    """Compare two folders of weights along the streams in a learner's `folder` of numbers above `after`."""

    folder: str
    earlier: str
    live: str
    target: str
    after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """First choices of both that were right, along the same streams."""

    earlier: Acceptance
    live: Acceptance


Order = RoundOrder | ComparisonOrder
Answer = RoundOutcome | Comparison
_KINDS = (RoundOrder, RoundOutcome, ComparisonOrder, Comparison)


def to_line(value: Order | Answer) -> bytes:
    """A line for the other process."""
    return json.dumps({type(value).__name__: asdict(value)}).encode() + b"\n"


def from_line(line: bytes) -> Order | Answer:
    """What the other process wrote. Raises `ValueError` for anything else."""
    try:
        ((name, fields),) = json.loads(line).items()
        kind: Any = {kind.__name__: kind for kind in _KINDS}[name]
        for key, value in fields.items():
            if isinstance(value, dict) and value.keys() == {"right", "tokens"}:
                fields[key] = Acceptance(**value)
        made: Order | Answer = kind(**fields)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"no order and no answer: {line[:200]!r} ({error})") from None
    return made
