"""Tests of mandates, of proofs of authorship, and of stored drafts."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cosine_lab.rivals import ALL_STRATEGIES
from cosine_p2p.session.delegation import SILENCE_S, Coordinator, Delegation
from cosine_p2p.session.drafts import MAX_KEPT_NODES, Claim, Drafts, SignedDraft, claims_of
from cosine_p2p.session.job import Job
from cosine_p2p.session.upstream import Upstream
from cosine_p2p.trust.mandates import USELESS_TOKENS, Coordination, Mandates
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.draft import BASE, MANDATES, Draft, Fragment, Node, NodeBlock, open_mandate
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.fields import encode_body
from cosine_protocol.verify import Commit, Credit, Delegate, PassStats
from tests.cosine_p2p.samples import identity_of, record_of, request_of

CLIENT, VERIFIER, DRAFTERS = identity_of(1), identity_of(2), (identity_of(3), identity_of(4))
NOW_S = 1000.0
PASS_S = 0.1
FAR_S = 0.05
REQUEST = request_of(CLIENT.peer_id, max_new_tokens=300)
D_0 = request_digest(REQUEST)


@dataclass(slots=True)
class Scene:
    mandates: Mandates = field(default_factory=lambda: Mandates(CLIENT, lambda: NOW_S))
    coordination: Coordination = Coordination.AUTO
    strategy: str = "cosine"
    drafts: Drafts = field(default_factory=Drafts)
    delegation: Delegation = field(init=False)

    def __post_init__(self) -> None:
        job = Job(
            number=7,
            deadline_s=1e9,
            request=REQUEST,
            strategy=ALL_STRATEGIES[self.strategy],
            verifiers={VERIFIER.peer_id: PASS_S},
            drafters=tuple(record_of(drafter, now_s=NOW_S) for drafter in DRAFTERS),
            mandates=self.mandates,
            coordination=self.coordination,
        )
        self.delegation = Delegation(job, D_0, self.drafts)

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
            cast(Upstream, upstream), drafters_may_pay=drafters_may_pay, now_s=NOW_S, left_s=60.0
        )


def credit(tokens: tuple[int, ...], *, author: int = 1, signer: int = 3, d_0: bytes = D_0) -> Credit:
    nodes = NodeBlock.of([Node(index - 1 if index else BASE, token, 1.0) for index, token in enumerate(tokens)])
    body = encode_body(Draft(99, 1, D_0, 0, nodes))
    return Credit(7, author, body, identity_of(signer).sign(kind="fragment", digest=d_0, body=body))


def commit(tokens: tuple[int, ...], authors: bytes) -> Commit:
    return Commit(7, 0, tokens, roll_digest(D_0, tokens), authors, PassStats(0, 0, 0))


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
    authors = scene.delegation.checked_authors(commit((5, 6, 7), b"\1\1\0"), D_0, now_s=NOW_S)
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
    ids=[
        "nothing",
        "other tokens",
        "another author",
        "another's signature",
        "another request",
    ],
)
def test_a_verifier_that_shows_no_signature_is_found_out_and_not_asked_again(shown: Credit | None) -> None:
    scene = delegated()
    if shown is not None:
        scene.delegation.note_credit(shown)
    authors = scene.delegation.checked_authors(commit((5, 7), b"\1\0"), D_0, now_s=NOW_S)
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
    scene.drafts.add(SignedDraft(1, Fragment(shown.body, shown.signature), draft, is_checked=True))
    authors = scene.delegation.checked_authors(commit((5, 6), b"\1\1"), D_0, now_s=NOW_S)
    assert (authors, scene.delegation.taken_back) == (b"\1\0", "")


def test_without_a_mandate_commits_are_believed_as_ever_and_credits_are_a_breach() -> None:
    scene = Scene(coordination=Coordination.CLIENT)
    assert scene.delegation.checked_authors(commit((5,), b"\1"), D_0, now_s=NOW_S) == b"\1"
    with pytest.raises(RemoteProtocolError):
        scene.delegation.note_credit(credit((5,)))
    with pytest.raises(RemoteProtocolError):
        delegated().delegation.note_credit(credit((5,), author=3))


def test_a_delegate_that_says_nothing_is_given_up_unless_it_has_reported() -> None:
    silent, heard = delegated(), delegated()
    heard.delegation.note_report(0, 0.0, now_s=NOW_S)
    for scene in (silent, heard):
        scene.delegation.check_silence(NOW_S + SILENCE_S)
        assert not scene.delegation.taken_back
        scene.delegation.check_silence(NOW_S + SILENCE_S + 0.1)
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
        scene.delegation.checked_authors(commit(tokens, authors + bytes(len(tokens) - 1)), D_0, now_s=NOW_S)
        scene.delegation.end(NOW_S)
    assert Scene(mandates=mandates).offer() is None


def chained(tokens: tuple[int, ...], *, author: int = 1) -> SignedDraft:
    nodes = NodeBlock.of([Node(index - 1 if index else BASE, token, 1.0) for index, token in enumerate(tokens)])
    draft = Draft(1, 1, roll_digest(D_0, ()), 0, nodes)
    return SignedDraft(author, Fragment(b"", bytes(64)), draft, is_checked=False)


def claims(tokens: tuple[int, ...], authors: bytes, *, after: tuple[int, ...] = ()) -> list[Claim]:
    return list(claims_of(tokens, authors, roll_digest(D_0, after)))


def test_a_node_shows_its_own_author_and_prefix_only() -> None:
    drafts, sent = Drafts(), chained((5, 6, 7))
    drafts.add(sent)
    assert [drafts.find(claim) for claim in claims((5, 6), b"\1\1")] == [sent, sent]
    assert [drafts.find(claim) for claim in claims((5, 6), b"\2\1")] == [None, sent]
    assert [drafts.find(claim) for claim in claims((6,), b"\1")] == [None]
    assert [drafts.find(claim) for claim in claims((7,), b"\1", after=(5, 6))] == [sent]
    assert [drafts.find(claim) for claim in claims((7,), b"\1", after=(6, 5))] == [None]


def test_a_flood_costs_its_author_alone() -> None:
    drafts, first = Drafts(), chained((5,), author=2)
    drafts.add(first)
    for token in range(MAX_KEPT_NODES + 1):
        drafts.add(chained((token,)))
    assert [drafts.find(claim) is None for claim in claims((0,), b"\1")] == [True]
    assert [drafts.find(claim) for claim in claims((5,), b"\2")] == [first]
