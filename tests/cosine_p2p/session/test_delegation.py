"""Tests of mandates, and of proofs of authorship."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_lab.rivals import ALL_STRATEGIES
from cosine_p2p.session.delegation import DRAFTER_SILENCE_S, Coordinator, Delegation
from cosine_p2p.session.drafts import Drafts, SignedDraft
from cosine_p2p.session.job import AnnouncedVerifier, Job, Shared
from cosine_p2p.session.upstream import Upstream
from cosine_p2p.transport.link import PeerLinks
from cosine_p2p.trust.mandates import USELESS_TOKENS, Coordination, Mandates
from cosine_protocol.digests import request_digest
from cosine_protocol.draft import BASE, MANDATES, Draft, Fragment, Node, NodeBlock, open_mandate
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.fields import encode_body
from cosine_protocol.verify import Credit, Delegate
from tests.cosine_p2p.samples import identity_of, record_of, request_of

CLIENT, VERIFIER, DRAFTERS = identity_of(1), identity_of(2), (identity_of(3), identity_of(4))
NOW_S = 1000.0
ANNOUNCED = AnnouncedVerifier(0.1)
FAR_S = 0.05
REQUEST = request_of(CLIENT.peer_id, max_new_tokens=300)
D_0 = request_digest(REQUEST)


@dataclass(slots=True)
class Scene:
    mandates: Mandates = field(default_factory=lambda: Mandates(CLIENT, lambda: NOW_S))
    coordination: Coordination = Coordination.AUTO
    strategy: str = "cosine"
    drafts: Drafts = field(default_factory=lambda: Drafts(D_0))
    delegation: Delegation = field(init=False)

    def __post_init__(self) -> None:
        job = Job(
            deadline_s=1e9,
            request=REQUEST,
            strategy=ALL_STRATEGIES[self.strategy],
            verifiers={VERIFIER.peer_id: ANNOUNCED},
            drafters=tuple(record_of(drafter, now_s=NOW_S) for drafter in DRAFTERS),
            coordination=self.coordination,
        )
        shared = Shared(links=cast(PeerLinks, None), offload=call_at_once, mandates=self.mandates)
        self.delegation = Delegation(job, shared, D_0, self.drafts)

    def offer(
        self,
        *,
        rtt_s: float = FAR_S,
        features: frozenset[str] = frozenset({MANDATES}),
        drafters_may_pay: bool = True,
    ) -> Delegate | None:
        link = SimpleNamespace(peer_id=VERIFIER.peer_id, features=features, rtt_s=rtt_s)
        watch = SimpleNamespace(announced_pass_s=0.0)
        upstream = SimpleNamespace(link=link, watch=watch, number=7, is_opened=True)
        return self.delegation.offer(
            cast(Upstream, upstream), ANNOUNCED, drafters_may_pay=drafters_may_pay, now_s=NOW_S, left_s=60.0
        )

    def checked(self, tokens: tuple[int, ...], authors: bytes) -> bytes:
        """Return the authors of a first commit that count."""
        nodes = self.drafts.commit(0, tokens, authors)
        return self.delegation.checked_authors(authors, nodes, now_s=NOW_S)


def credit(tokens: tuple[int, ...], *, author: int = 1, signer: int = 3, d_0: bytes = D_0) -> Credit:
    nodes = NodeBlock.of([Node(index - 1 if index else BASE, token, 1.0) for index, token in enumerate(tokens)])
    body = encode_body(Draft(99, 1, D_0, 0, nodes))
    return Credit(7, author, body, identity_of(signer).sign(kind="fragment", digest=d_0, body=body))


def delegated() -> Scene:
    scene = Scene()
    assert scene.offer() is not None
    return scene


def test_a_far_verifier_gets_a_mandate_for_its_drafters_and_the_reason_is_told() -> None:
    scene = Scene()
    sent = scene.offer()
    assert sent is not None
    mandate = open_mandate(
        sent.mandate, client=CLIENT.peer_id, d_0=D_0, delegate=VERIFIER.peer_id, now_s=NOW_S + 60.0
    )
    assert mandate.drafters == tuple(drafter.peer_id for drafter in DRAFTERS)
    assert (mandate.most_tokens, mandate.lifetime_s) == (300, 60.0)
    assert scene.delegation.coordinator is Coordinator.VERIFIER
    assert scene.delegation.take_why() == "the verifier coordinates: it is 50 ms away, a pass takes 100 ms"
    assert scene.delegation.take_why() == ""


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rtt_s": 0.01}, "the verifier is near: it is 10 ms away, a pass takes 100 ms"),
        ({"features": frozenset()}, "the verifier knows no mandates"),
        ({"drafters_may_pay": False}, "drafters do not pay at this verifier"),
    ],
)
def test_else_the_client_keeps_it_and_says_why(options: dict[str, Any], reason: str) -> None:
    scene = Scene()
    assert scene.offer(**options) is None
    assert scene.delegation.take_why() == f"coordinated here: {reason}"
    assert scene.delegation.coordinator is Coordinator.CLIENT
    assert scene.offer() is None


@pytest.mark.parametrize(
    "scene", [Scene(coordination=Coordination.CLIENT), Scene(strategy="plain"), Scene(strategy="dsi")]
)
def test_a_user_may_forbid_it_and_other_strategies_know_none(scene: Scene) -> None:
    assert scene.delegation.coordinator is Coordinator.CLIENT
    assert scene.offer() is None


def test_an_author_counts_if_its_signature_is_shown_before_the_commit() -> None:
    scene = delegated()
    scene.delegation.note_credit(credit((5, 6)))
    scene.delegation.note_credit(credit((5, 8), author=2, signer=4))
    authors = scene.checked((5, 6, 7), b"\1\1\0")
    assert (authors, scene.delegation.taken_back) == (b"\1\1\0", "")


@pytest.mark.parametrize(
    "shown",
    [
        None,
        credit((6, 5)),
        credit((5,), author=2, signer=4),
        credit((5,), signer=4),
        credit((5,), d_0=bytes(16)),
    ],
    ids=["nothing", "other tokens", "another author", "another's signature", "another request"],
)
def test_a_verifier_that_shows_no_signature_is_found_out_and_not_asked_again(shown: Credit | None) -> None:
    scene = delegated()
    if shown is not None:
        scene.delegation.note_credit(shown)
    authors = scene.checked((5, 7), b"\1\0")
    assert authors == b"\0\0"
    assert "without showing" in scene.delegation.taken_back
    scene.delegation.take_back(scene.delegation.taken_back)
    assert scene.delegation.coordinator is Coordinator.CLIENT
    other = Scene(mandates=scene.mandates)
    assert other.offer() is None
    assert "poor use of a mandate" in other.delegation.take_why()


def test_after_it_was_taken_back_drafts_count_that_the_client_checked_itself() -> None:
    scene = delegated()
    scene.delegation.take_back("the verifier declined")
    shown = credit((5, 6))
    draft = Draft(7, 1, D_0, 0, NodeBlock.of([Node(BASE, 5, 1.0)]))
    scene.drafts.add(1, SignedDraft(Fragment(shown.body, shown.signature), is_checked=True), draft)
    authors = scene.checked((5, 6), b"\1\1")
    assert (authors, scene.delegation.taken_back) == (b"\1\0", "")


def test_without_a_mandate_commits_are_believed_as_ever_and_credits_are_a_breach() -> None:
    scene = Scene(coordination=Coordination.CLIENT)
    assert scene.checked((5,), b"\1") == b"\1"
    with pytest.raises(RemoteProtocolError):
        scene.delegation.note_credit(credit((5,)))
    with pytest.raises(RemoteProtocolError):
        delegated().delegation.note_credit(credit((5,), author=3))


def test_a_delegate_that_says_nothing_is_given_up_unless_it_has_reported() -> None:
    silent, heard = delegated(), delegated()
    heard.delegation.note_report(0, 0.0, now_s=NOW_S)
    for scene in (silent, heard):
        scene.delegation.check_silence(NOW_S + DRAFTER_SILENCE_S)
        assert not scene.delegation.taken_back
        scene.delegation.check_silence(NOW_S + DRAFTER_SILENCE_S + 0.1)
    assert "nothing was heard" in silent.delegation.taken_back
    assert not heard.delegation.taken_back


def test_a_delegate_whose_drafters_bring_nothing_for_long_is_not_asked_for_a_while() -> None:
    mandates = Mandates(CLIENT, lambda: NOW_S)
    tokens = tuple(range(10, 10 + USELESS_TOKENS // 2))
    for authors, credited in ((b"\0", False), (b"\1", True), (b"\0", False), (b"\0", False)):
        scene = Scene(mandates=mandates)
        assert scene.offer() is not None
        if credited:
            scene.delegation.note_credit(credit((tokens[0],)))
        scene.checked(tokens, authors + bytes(len(tokens) - 1))
        scene.delegation.end(NOW_S)
    assert Scene(mandates=mandates).offer() is None
