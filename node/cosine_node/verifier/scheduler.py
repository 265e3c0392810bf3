"""The schedule of the next pass: which requests decode in it, and how much of which prompt it feeds. Pure.

Requests that decode need one token each and go first; prompts are fed in chunks beside them, so that a long one
does not stall the others (chunked prefill: Sarathi-Serve, Agrawal et al. 2024, arXiv 2403.02310); draft nodes get
what is left of the token budget (`selection`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cosine_node.engine.curve import LONGEST_PROMPT_PASS_S, CostCurve
from cosine_node.passes.fair_pass import CROWD, Shares
from cosine_node.passes.fair_places import Turns
from cosine_node.passes.feed_pace import MIN_CHUNK_TOKENS, FeedPace, OneAtATime
from cosine_node.verifier.request import ServedRequest

# The bounds of one pass. Its tokens come at once, so that its length is the pace of all requests in it. Drafts and
# more requests bring tokens for their time; of a prompt a request that decodes has nothing, and is half as fast
# beside one at worst: at three times a third, and at 1.5 times prompts take twice as many passes.
LONGEST_PASS: Final = 4.0
"""A pass takes at most as many tokens as make it last this many times a pass over one token."""
STALL: Final = 2.0
"""How many times longer prompts may make a pass for the requests that decode in it."""
MIN_BUDGET_TOKENS: Final = 16
"""Sixteen requests, the default `max_requests`, fit in one pass even where every token costs."""
MOST_TOKENS: Final = 512
"""Bounds the memory of a pass where the measured curve is flat, and that of a prompt where no longer one was
measured."""
ONE_AT_A_TIME: Final = OneAtATime()
MAX_WAIT_PASSES: Final = 64
"""A prompt that has waited this long goes before all others: about 4 s at 60 ms a pass."""


@dataclass(frozen=True, slots=True)
class PassSchedule:
    """The requests of a pass by their index: those that decode, and the prompt tokens of those that prefill.

    `crowd` are all requests, in the pass or not, that are beyond their users' shares of it.
    """

    decoding: tuple[int, ...] = ()
    chunks: Mapping[int, int] = field(default_factory=dict)
    crowd: frozenset[int] = frozenset()

    @property
    def tokens(self) -> int:
        """Tokens of the pass without drafts."""
        return len(self.decoding) + sum(self.chunks.values())


def pass_budget_tokens(curve: CostCurve) -> int:
    """The most tokens of a pass, from a device's measured cost."""
    return curve.tokens_within(LONGEST_PASS, least=MIN_BUDGET_TOKENS, most=MOST_TOKENS)


def pass_chunk_tokens(curve: CostCurve) -> int:
    """The most prompt tokens of a pass: `MOST_TOKENS`, or more if more were measured to take little time."""
    measured = curve.points[-1][0]
    if measured <= MOST_TOKENS:
        return MOST_TOKENS
    return max(MOST_TOKENS, curve.most_tokens(within_s=LONGEST_PROMPT_PASS_S, limit=measured))


def schedule_pass(
    requests: Sequence[ServedRequest],
    *,
    curve: CostCurve,
    budget_tokens: int,
    with_crowd: bool = True,
    turns: Turns,
    pace: FeedPace = ONE_AT_A_TIME,
) -> PassSchedule:
    """The schedule of the next pass; `requests` are those that could use it, in order of admission.

    A client's users whose turn it is, by `turns`, have a share each (`Shares`), which requests take first that
    decode. What is beyond joins `with_crowd`, of those that decode as many as make the pass `CROWD` times as long
    as one client's share does.

    If more requests decode than the budget has tokens, or their users shares, those of the user go who was given
    least, and of one user's those that have waited longest.
    Half of the room for prompts goes to the one admitted first, which bounds the time to its first token, the rest
    to those with the least left, which finish soonest; but one that has waited `MAX_WAIT_PASSES` gets
    `MIN_CHUNK_TOKENS` before. So of n requests none waits longer than that many passes and n / (`budget_tokens` /
    `MIN_CHUNK_TOKENS`) more.
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
    decoding = sorted(decoding[:budget_tokens])
    unfed_tokens = max((request.unfed_tokens for request in requests), default=0)
    room = pace.chunk_tokens(unfed_tokens, most=pass_chunk_tokens(curve))
    if decoding:
        within_s = STALL * curve.seconds(len(decoding))
        most = curve.most_tokens(within_s=within_s, limit=len(decoding) + room)
        room = max(MIN_CHUNK_TOKENS, most - len(decoding))
    unfed = [index for index, request in enumerate(requests) if request.unfed_tokens]
    chunks = _chunks(requests, [index for index in unfed if with_crowd or index not in crowd], room)
    return PassSchedule(tuple(decoding), chunks, crowd)


def _chunks(requests: Sequence[ServedRequest], unfed: Sequence[int], room: int) -> dict[int, int]:
    """Prompt tokens by the index of their request, of those in `unfed`, as many as there is room for."""
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
