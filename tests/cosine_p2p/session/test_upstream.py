"""What a session knows of one verifier: its own place in the stream, and the pace to remember it by."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from cosine_p2p.session.stall import Watch
from cosine_p2p.session.upstream import LEAST_COMMITS, Upstream, end_of
from cosine_p2p.transport.channel import StepCounts
from cosine_p2p.transport.link import PeerLink
from cosine_p2p.trust.peer_memory import PeerSpeeds, UsualSpeeds
from cosine_protocol import messages as m
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.messages import FinishReason
from tests.cosine_p2p.samples import request_of

STATS = m.PassStats(0, 0, 60_000)
REQUEST = request_of("client", max_new_tokens=6)
D_0 = request_digest(REQUEST)


def upstream(after: tuple[int, ...] = (), *, is_opened: bool = True, **watch: Any) -> Upstream:
    """A verifier that stands after some tokens, on a link that reports no progress."""
    link = SimpleNamespace(peer_id="verifier", remote_progress=StepCounts())
    digest = roll_digest(D_0, after)
    seen = Watch(since_s=0.0, **watch)
    return Upstream(1, cast("PeerLink", link), REQUEST, D_0, digest, len(after), seen, is_opened)


def commit(tokens: tuple[int, ...], *, after: tuple[int, ...] = ()) -> m.Commit:
    digest = roll_digest(D_0, [*after, *tokens])
    return m.Commit(1, len(after), tokens, digest, bytes(len(tokens)), STATS)


def test_a_commit_that_continues_the_stream_moves_its_end() -> None:
    verifier = upstream((1, 2))
    verifier.take(commit((3, 4), after=(1, 2)), authors=0)
    assert (verifier.position, verifier.digest) == (4, roll_digest(D_0, (1, 2, 3, 4)))


def test_nothing_is_taken_before_the_request_is_open() -> None:
    with pytest.raises(RemoteProtocolError, match="before the request was opened"):
        upstream(is_opened=False).take(commit((1,)), authors=0)


def test_nothing_is_taken_after_an_end_token() -> None:
    with pytest.raises(RemoteProtocolError, match="past the end"):
        upstream().take(commit((1, 9, 2)), authors=0)
    verifier = upstream()
    verifier.take(commit((1, 9)), authors=0)
    with pytest.raises(RemoteProtocolError, match="past the end"):
        verifier.take(commit((2,), after=(1, 9)), authors=0)


def test_the_end_is_in_the_tokens() -> None:
    assert end_of([], REQUEST) is None
    assert end_of([1, 2], REQUEST) is None
    assert end_of([1, 9], REQUEST) is FinishReason.EOS
    assert end_of([1] * 6, REQUEST) is FinishReason.LENGTH


def noted(verifier: Upstream, *, rtt_s: float = 0.1) -> PeerSpeeds:
    speeds = PeerSpeeds()
    cast("SimpleNamespace", verifier.link).rtt_s = rtt_s
    verifier.note_pace(speeds, verifier.watch.since_s)
    return speeds


def test_the_pace_of_a_verifier_is_remembered_without_round_trips() -> None:
    verifier = upstream()
    for number in range(LEAST_COMMITS + 1):
        verifier.watch.note_commit(1.1 + number)
    usual = noted(verifier).usual(["verifier"], now_s=10.0)
    assert usual.pass_s == pytest.approx(1.0) and usual.prefill_token_s == pytest.approx(1.0)


def test_a_few_commits_say_nothing_of_the_pace() -> None:
    verifier = upstream()
    assert noted(verifier).usual(["verifier"], now_s=10.0) == UsualSpeeds()
    verifier.watch.note_commit(1.0)
    verifier.watch.note_commit(2.0)
    assert noted(verifier, rtt_s=0.0).usual(["verifier"], now_s=10.0) == UsualSpeeds(prefill_token_s=1.0)
