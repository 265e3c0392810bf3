"""A verifier signs for each drafter what it credited to it, and for nobody else."""

from collections import Counter
from typing import Any, cast

from cosine_lab.simulation.swarm import numbered_identity
from cosine_node.verifier.request import KvState, VerifierRequest
from cosine_node.verifier.step_loop import signed_earnings
from cosine_protocol.limits import MAX_EARNINGS
from cosine_protocol.messages import Earning, Pacing
from cosine_protocol.statements import open_earning
from tests.protocol.samples import NOW_S, request_of

VERIFIER = numbered_identity(1)


def request(drafters: int, accepted: dict[int, int]) -> VerifierRequest:
    """One resumed after 2 output tokens, of 10."""
    names = tuple(numbered_identity(number).peer_id for number in range(2, 2 + drafters))
    channel = cast("Any", None)
    made = VerifierRequest(
        channel, 3, request_of(), KvState(0), [1, 2], pacing=Pacing.FREE, authors=drafters, drafters=names
    )
    made.output += [3] * 8
    made.accepted = Counter(accepted)
    return made


def opened(made: VerifierRequest) -> list[Earning]:
    signed = signed_earnings(made, VERIFIER, now_s=NOW_S) or ()
    return [open_earning(each, verifier=VERIFIER.peer_id, d_0=made.d_0) for each in signed]


def test_each_drafter_with_tokens_has_one() -> None:
    made = request(3, {0: 2, 1: 4, 3: 2})
    asked = made.request
    assert opened(made) == [
        Earning(asked.target_digest, asked.client, made.drafters[index], tokens, 8, NOW_S)
        for index, tokens in ((0, 4), (2, 2))
    ]


def test_nobody_s_tokens_earn_nothing() -> None:
    assert signed_earnings(request(2, {0: 8}), VERIFIER, now_s=NOW_S) is None


def test_of_many_those_with_the_most_have_one() -> None:
    made = request(20, {author: 1 + author % 3 for author in range(1, 21)})
    found = opened(made)
    assert len(found) == MAX_EARNINGS
    assert sum(one.tokens for one in found) == sum(sorted(made.accepted.values())[-MAX_EARNINGS:])
