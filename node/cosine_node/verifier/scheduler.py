"""The schedule of the next pass: the requests that decode, and the prompt tokens that are fed. Pure.

Decoding requests need one token each and go first; prompts are fed in chunks with them (chunked prefill:
Sarathi-Serve, Agrawal et al. 2024, arXiv 2403.02310); draft nodes get the rest of the token budget (`costs`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_engine.curve import CostCurve
from cosine_node.passes.fair_pass import CROWD, Shares
from cosine_node.passes.feed_pace import MIN_CHUNK_TOKENS
from cosine_node.verifier.served_request import ServedRequest
from cosine_p2p.fair_places import Turns

STALL: Final = 2.0
"""Factor by which prompts may lengthen a pass for the requests that decode in it, which are half as fast at worst.
At 1.5 times prompts would take twice as many passes."""
MAX_WAIT_PASSES: Final = 64
"""A prompt that has waited this long goes before all others: about 4 s at 60 ms a pass."""


@dataclass(frozen=True, slots=True)
class PassSchedule:
    """The requests of a pass by index: that decode, that prefill (`chunks`), and beyond their users' shares."""

    decoding: tuple[int, ...] = ()
    chunks: Mapping[int, int] = field(default_factory=dict)
    crowd: frozenset[int] = frozenset()

    @property
    def tokens(self) -> int:
        """Tokens of the pass without drafts."""
        return len(self.decoding) + sum(self.chunks.values())


def schedule_pass(
    requests: Sequence[ServedRequest],
    *,
    curve: CostCurve,
    most_tokens: int,
    chunk_tokens: int,
    turns: Turns,
    with_crowd: bool = True,
) -> PassSchedule:
    """The schedule of the next pass; `requests` are those that can use it, in order of admission.

    At most `most_tokens` decode, and without them at most `chunk_tokens` prompt tokens are fed.

    Each user that `turns` selects has a share (`Shares`), which decoding requests take first. Requests beyond the
    shares join `with_crowd`, while the pass is at most `CROWD` times as long as with one share. The least served
    users come first, and of one user the requests that have waited longest.

    Half of the room for prompts goes to the request admitted first, which bounds the time to its first token, the
    rest to those with the least left. A prompt that has waited `MAX_WAIT_PASSES` gets `MIN_CHUNK_TOKENS` before, so
    none of n requests waits more than n / (`most_tokens` / `MIN_CHUNK_TOKENS`) passes longer.
    """
    order = sorted(
        range(len(requests)),
        key=lambda index: (
            requests[index].unfed_tokens > 0,
            turns.of(requests[index].user),
            -requests[index].waited_passes,
            index,
        ),
    )
    first = turns.first(request.user for request in requests)
    shares = Shares(request.user for request in requests if request.user in first)
    crowd = frozenset(index for index in order if not shares.take(requests[index].user))
    ready = [index for index in order if not requests[index].unfed_tokens]
    decoding = [index for index in ready if index not in crowd]
    if with_crowd:
        within_s = CROWD * curve.seconds(shares.each)
        most = curve.most_tokens(within_s=within_s, limit=len(ready))
        decoding += [index for index in ready if index in crowd][: max(0, most - len(decoding))]
    decoding = sorted(decoding[:most_tokens])
    room = chunk_tokens
    if decoding:
        within_s = STALL * curve.seconds(len(decoding))
        most = curve.most_tokens(within_s=within_s, limit=len(decoding) + room)
        room = max(MIN_CHUNK_TOKENS, most - len(decoding))
    unfed = [index for index, request in enumerate(requests) if request.unfed_tokens]
    chunks = _chunks(requests, [index for index in unfed if with_crowd or index not in crowd], room)
    return PassSchedule(tuple(decoding), chunks, crowd)


def _chunks(requests: Sequence[ServedRequest], unfed: Sequence[int], room: int) -> dict[int, int]:
    """The prompt tokens to feed by index of their request, at most `room` in all."""
    first = [index for index in unfed if not requests[index].gives_way][:1]
    overdue = [index for index in unfed if requests[index].waited_passes >= MAX_WAIT_PASSES]
    overdue.sort(key=lambda index: (-requests[index].waited_passes, index))
    shortest_first = sorted(
        unfed, key=lambda index: (requests[index].gives_way, requests[index].unfed_tokens, index)
    )
    shares = [
        *((index, MIN_CHUNK_TOKENS) for index in overdue),
        *((index, -(-room // 2)) for index in first),
        *((index, room) for index in shortest_first),
    ]
    chunks: dict[int, int] = {}
    for index, most in shares:
        tokens = min(room, most, requests[index].unfed_tokens - chunks.get(index, 0))
        if tokens > 0:
            chunks[index] = chunks.get(index, 0) + tokens
            room -= tokens
    return chunks
