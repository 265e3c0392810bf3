"""What a learner remembers between runs besides its streams and versions: how far it is and what came of it."""

from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Final

from cosine_node.learning.decision import Acceptance
from cosine_p2p.state_file import StateFile

NAME: Final = "state.json"
MAX_BYTES: Final = 1 << 16
"""Far above a dozen numbers."""


@dataclass(slots=True)
class LearningState:
    """`begun` is the number of the last version that was begun, `seen` that of the last stream learned from.

    `before` and `after` are held-out acceptance in the last round that went live, empty after going back. `earlier`
    is the version that served before the live one, with the domains that it added, `switched_at` the newest stream
    at the switch, `live_before` what all requests accepted of it. The live version is compared with the earlier one
    where they accept less than `expected`: that, or what they accepted when it was last found to be no worse.
    """

    rounds: int = 0
    rollbacks: int = 0
    begun: int = 0
    seen: int = 0
    earlier: int = 0
    earlier_expertise: tuple[str, ...] = ()
    switched_at: int = 0
    before: Acceptance = field(default_factory=Acceptance)
    after: Acceptance = field(default_factory=Acceptance)
    live_before: Acceptance = field(default_factory=Acceptance)
    expected: Acceptance = field(default_factory=Acceptance)

    @classmethod
    def read(cls, folder: Path) -> "LearningState":
        """That in a folder; as at first, for what is missing or damaged."""
        state = cls()
        for name, value in _file(folder).read().items():
            match getattr(state, name, None), value:
                case int(), int() if value >= 0:
                    setattr(state, name, value)
                case tuple(), list(names):
                    setattr(state, name, tuple(map(str, names)))
                case Acceptance(), {"right": int(right), "tokens": int(tokens)} if 0 <= right <= tokens:
                    setattr(state, name, Acceptance(right, tokens))
        return state

    def write(self, folder: Path) -> None:
        fields: dict[str, Any] = asdict(self)
        _file(folder).write(fields)


@cache
def _file(folder: Path) -> StateFile:
    return StateFile(NAME, max_bytes=MAX_BYTES, file=folder / NAME)
