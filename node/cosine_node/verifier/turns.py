"""Who takes part in the next pass, and with how much of a prompt. Pure.

Requests that decode need one token each and go first; prompts are fed in chunks beside them, so that a long one
does not stall the others (Sarathi-Serve, Agrawal et al. 2024); drafts get what is left (`selection`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_node.engine.curve import CostCurve

LONGEST_PASS: Final = 4.0
"""A pass takes at most as many tokens as make it last so many times a pass over one."""
MIN_BUDGET_TOKENS: Final = 16
MAX_BUDGET_TOKENS: Final = 512
STALL: Final = 2.0
"""How many times longer prompts may make a pass for those that decode in it."""
MIN_CHUNK_TOKENS: Final = 16
MAX_CHUNK_TOKENS: Final = 512
MAX_WAIT_PASSES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A request that could use the next pass, and for how many passes it has waited.

    `unfed_tokens` are those of its prompt, or of what is fed again after a preemption; 0 if it decodes.
    """

    unfed_tokens: int
    waited_passes: int = 0


@dataclass(frozen=True, slots=True)
class Turns:
    """Places of the requests that decode, and the tokens of those that are fed a chunk, by their place."""

    decoding: tuple[int, ...] = ()
    chunks: Mapping[int, int] = field(default_factory=dict)

    @property
    def tokens(self) -> int:
        """Tokens of a pass without drafts."""
        return len(self.decoding) + sum(self.chunks.values())


def budget_of(curve: CostCurve) -> int:
    """The most tokens of a pass, from a device's measured cost."""
    longest_s = LONGEST_PASS * curve.seconds(1)
    return max(MIN_BUDGET_TOKENS, most_tokens(curve, within_s=longest_s, limit=MAX_BUDGET_TOKENS))


def take_turns(waiting: Sequence[Waiting], *, curve: CostCurve, budget_tokens: int) -> Turns:
    """The turns of the next pass; `waiting` is in order of admission.

    Of more requests than the budget those decode that have waited longest. Half of the room for prompts goes to the
    one that came first, which bounds the time to its first token, the rest to those with the least left, which get
    out of the way soonest; but one that has waited `MAX_WAIT_PASSES` gets `MIN_CHUNK_TOKENS` before. So where n
    requests wait none does so for more than that many passes, and n / (`budget_tokens` / `MIN_CHUNK_TOKENS`) more.
    """
    ready = [place for place, one in enumerate(waiting) if not one.unfed_tokens]
    longest_first = sorted(ready, key=lambda place: (-waiting[place].waited_passes, place))
    decoding = tuple(sorted(longest_first[:budget_tokens]))
    room = _chunk_room(len(decoding), curve)
    return Turns(decoding, _chunks(waiting, room))


def _chunk_room(decoding: int, curve: CostCurve) -> int:
    """Tokens of prompts beside so many requests that decode."""
    if not decoding:
        return MAX_CHUNK_TOKENS
    room = most_tokens(curve, within_s=STALL * curve.seconds(decoding), limit=decoding + MAX_CHUNK_TOKENS)
    return max(MIN_CHUNK_TOKENS, room - decoding)


def _chunks(waiting: Sequence[Waiting], room: int) -> dict[int, int]:
    unfed = [place for place, one in enumerate(waiting) if one.unfed_tokens]
    overdue = [place for place in unfed if waiting[place].waited_passes >= MAX_WAIT_PASSES]
    overdue.sort(key=lambda place: (-waiting[place].waited_passes, place))
    by_rest = sorted(unfed, key=lambda place: (waiting[place].unfed_tokens, place))
    shares = [
        *((place, MIN_CHUNK_TOKENS) for place in overdue),
        *((place, -(-room // 2)) for place in unfed[:1]),
        *((place, room) for place in by_rest),
    ]
    chunks: dict[int, int] = {}
    for place, most in shares:
        tokens = min(room, most, waiting[place].unfed_tokens - chunks.get(place, 0))
        if tokens > 0:
            chunks[place] = chunks.get(place, 0) + tokens
            room -= tokens
    return chunks


def most_tokens(curve: CostCurve, *, within_s: float, limit: int) -> int:
    """The most tokens, at most `limit`, of a pass that lasts no longer."""
    least, most = 0, limit
    while least < most:
        middle = (least + most + 1) // 2
        if curve.seconds(middle) <= within_s:
            least = middle
        else:
            most = middle - 1
    return least
