"""A client hands over where that pays, believes a delegate what drafters signed, and takes back what it must."""

from dataclasses import dataclass, field
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.rivals import ALL_STRATEGIES
from cosine_p2p.directory.distances import Distances
from cosine_p2p.session.delegation import (
    SILENCE_S,
    Coordinator,
    Delegation,
    expected_coordinator,
)
from cosine_p2p.session.drafts import MAX_KEPT_NODES, Claim, Drafts, SignedDraft, claims_of, without
from cosine_p2p.session.job import Job
from cosine_p2p.session.upstream import Upstream
from cosine_p2p.trust.mandates import USELESS_TOKENS, Coordination, Mandates
from cosine_protocol import messages as m
from cosine_protocol.codec import decode_body, encode_body
from cosine_protocol.digests import request_digest, roll_digest
from cosine_protocol.errors import RemoteProtocolError
from cosine_protocol.limits import HOME_AUTHOR
from cosine_protocol.messages import Mandate
from cosine_protocol.nodes import BASE, Node, NodeBlock
from cosine_protocol.protocols import MANDATES, WINDOWS
from cosine_protocol.statements import open_mandate
from tests.cosine_p2p.samples import identity_of, record_of, request_of

CLIENT, VERIFIER, DRAFTERS = identity_of(1), identity_of(2), (identity_of(3), identity_of(4))
NOW_S = 1000.0
PASS_S = 0.1
FAR_S = 0.05
REQUEST = request_of(CLIENT.peer_id, max_new_tokens=300)
D_0 = request_digest(REQUEST)


@dataclass(slots=True)
class Scene:
    """A delegation, and offers to it."""

    mandates: Mandates = field(default_factory=lambda: Mandates(CLIENT, lambda: NOW_S))
    coordination: Coordination = Coordination.AUTO
    strategy: str = "cosine"
    distances: Distances | None = None
    window_tokens: int | None = None
    shares: bool = False
    stages: int = 0
    pupil: int = 0
    drafts: Drafts = field(default_factory=Drafts)
    delegation: Delegation = field(init=False)

    def __post_init__(self) -> None:
        job = Job(
            number=7,
            deadline_s=1e9,
            request=REQUEST,
            strategy=ALL_STRATEGIES[self.strategy],
            verifiers={VERIFIER.peer_id: PASS_S},
            stages={VERIFIER.peer_id: self.stages} if self.stages else {},
            drafters=tuple(record_of(drafter, now_s=NOW_S) for drafter in DRAFTERS),
            mandates=self.mandates,
            coordination=self.coordination,
            distances=self.distances,
            prompt_window_tokens=self.window_tokens,
            shares_feedback=self.shares,
            pupil=self.pupil,
        )
        self.delegation = Delegation(job, D_0, self.drafts)

    def offer(
        self,
        *,
        rtt_s: float = FAR_S,
        features: frozenset[str] | None = frozenset({MANDATES}),
        is_opened: bool = True,
        pass_s: float = 0.0,
        drafters_may_pay: bool = True,
    ) -> m.Delegate | None:
        link = SimpleNamespace(peer_id=VERIFIER.peer_id, features=features, rtt_s=rtt_s)
        watch = SimpleNamespace(announced_pass_s=pass_s)
        upstream = SimpleNamespace(link=link, watch=watch, number=7, is_opened=is_opened)
        return self.delegation.offer(
            cast(Upstream, upstream), drafters_may_pay=drafters_may_pay, now_s=NOW_S, left_s=60.0
        )


def credit(tokens: tuple[int, ...], *, author: int = 1, signer: int = 3, d_0: bytes = D_0) -> m.Credit:
    """A chain of tokens from the beginning on, shown as an author's."""
    nodes = NodeBlock.of([Node(index - 1 if index else BASE, token, 1.0) for index, token in enumerate(tokens)])
    body = encode_body(m.Draft(99, 1, D_0, 0, nodes))
    return m.Credit(7, author, body, identity_of(signer).sign(kind="fragment", digest=d_0, body=body))


def commit(tokens: tuple[int, ...], authors: bytes, *, after: tuple[int, ...] = ()) -> m.Commit:
    return m.Commit(7, len(after), tokens, roll_digest(D_0, (*after, *tokens)), authors, m.PassStats(0, 0, 0))


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


def test_a_mandate_names_the_window_and_is_for_verifiers_that_know_of_windows() -> None:
    sent = Scene(window_tokens=64).offer(features=frozenset({MANDATES, WINDOWS}))
    assert sent is not None
    mandate = open_mandate(
        sent.mandate, client=CLIENT.peer_id, d_0=D_0, delegate=VERIFIER.peer_id, now_s=NOW_S + 60.0
    )
    assert mandate.prompt_window_tokens == 64
    older = Scene(window_tokens=64)
    assert older.offer() is None
    assert older.delegation.take_why() == "coordinated here: the verifier knows no windows of prompts"


@pytest.mark.parametrize(
    ("shares", "pupil", "expected"),
    [
        (True, 0, (True, None)),
        (True, len(DRAFTERS), (True, DRAFTERS[-1].peer_id)),
        (False, 0, (None, None)),
    ],
)
def test_a_mandate_says_that_drafters_may_keep_the_text_and_who_only_learns(
    shares: bool, pupil: int, expected: tuple[bool | None, str | None]
) -> None:
    sent = Scene(shares=shares, pupil=pupil).offer()
    assert sent is not None
    mandate = decode_body(Mandate, sent.mandate.body)
    assert (mandate.shares_feedback, mandate.pupil) == expected
    assert mandate.drafters == tuple(drafter.peer_id for drafter in DRAFTERS)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rtt_s": 0.01}, "the verifier is near: it is 10 ms away, a pass takes 100 ms"),
        ({"rtt_s": 0.05, "pass_s": 0.5}, "the verifier is near: it is 50 ms away, a pass takes 500 ms"),
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


def test_a_verifier_over_stages_is_far_where_the_next_pass_begins_long_before_one_has_ended() -> None:
    scene = Scene(stages=4)
    assert scene.offer(rtt_s=0.01) is not None
    told = "the verifier coordinates: it is 10 ms away, a pass takes 100 ms over 4 stages"
    assert scene.delegation.take_why() == told


@pytest.mark.parametrize(
    "scene", [Scene(coordination=Coordination.CLIENT), Scene(strategy="plain"), Scene(strategy="dsi")]
)
def test_a_user_may_forbid_it_and_other_strategies_know_none(scene: Scene) -> None:
    assert scene.delegation.coordinator is Coordinator.CLIENT
    assert scene.offer() is None


def test_nothing_is_decided_before_the_distance_is_known() -> None:
    scene = Scene()
    for unknown in ({"features": None}, {"rtt_s": 0.0}):
        assert scene.offer(is_opened=False, **unknown) is None
        assert scene.delegation.coordinator is Coordinator.UNDECIDED
    assert scene.offer(is_opened=False) is not None


def test_one_that_is_wanted_in_any_case_needs_no_distance() -> None:
    scene = Scene(coordination=Coordination.VERIFIER)
    assert scene.offer(rtt_s=0.0, is_opened=False) is not None
    assert scene.delegation.take_why() == "the verifier coordinates: as you asked"


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
        credit((5,), signer=2),
        credit((5,), d_0=bytes(16)),
    ],
    ids=["nothing", "other tokens", "another author", "another's signature", "its own", "another request"],
)
def test_a_verifier_that_shows_no_signature_is_found_out_and_not_asked_again(shown: m.Credit | None) -> None:
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
    draft = m.Draft(7, 1, D_0, 0, NodeBlock.of([Node(BASE, 5, 1.0)]))
    scene.drafts.add(SignedDraft(1, m.Fragment(shown.body, shown.signature), draft, is_checked=True))
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


def test_what_a_delegate_measured_of_drafters_is_remembered_for_requests_to_come() -> None:
    distances = Distances(Random(0).random)
    scene = Scene(distances=distances)
    assert scene.offer() is not None
    for author, rtt_s in ((0, 0.5), (1, 0.012), (2, 0.0), (3, 0.5)):
        scene.delegation.note_report(author, rtt_s, now_s=NOW_S)
    assert distances.state(NOW_S)["told"] == [[VERIFIER.peer_id, DRAFTERS[0].peer_id, 0.012, 0.0]]


@pytest.mark.parametrize(
    ("coordination", "rtt_s", "stages", "expected"),
    [
        (Coordination.AUTO, FAR_S, 0, Coordinator.VERIFIER),
        (Coordination.AUTO, 0.01, 0, Coordinator.CLIENT),
        (Coordination.AUTO, 0.01, 4, Coordinator.VERIFIER),
        (Coordination.AUTO, None, 0, Coordinator.VERIFIER),
        (Coordination.VERIFIER, 0.01, 0, Coordinator.VERIFIER),
        (Coordination.CLIENT, FAR_S, 0, Coordinator.CLIENT),
    ],
)
def test_the_coordinator_is_foreseen_by_the_distance_of_the_verifier(
    coordination: Coordination, rtt_s: float | None, stages: int, expected: Coordinator
) -> None:
    mandates = Mandates(CLIENT, lambda: NOW_S)

    def foreseen(mandates: Mandates | None, strategy: str) -> Coordinator:
        peers = tuple(identity_of(10 + number).peer_id for number in range(stages))
        verifier = record_of(VERIFIER, now_s=NOW_S, pass_us=round(1e6 * PASS_S), stages=peers or None)
        kind = ALL_STRATEGIES[strategy]
        return expected_coordinator(mandates, kind, coordination, verifier, rtt_s=rtt_s, now_s=NOW_S)

    assert foreseen(mandates, "cosine") is expected
    assert foreseen(mandates, "plain") is foreseen(None, "cosine") is Coordinator.CLIENT
    mandates.failures.note_failed(VERIFIER.peer_id, now_s=NOW_S)
    assert foreseen(mandates, "cosine") is Coordinator.CLIENT


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


def test_when_the_delegate_is_lost_the_next_verifier_is_judged_anew() -> None:
    scene = delegated()
    scene.delegation.lose(VERIFIER.peer_id)
    assert scene.delegation.coordinator is Coordinator.UNDECIDED
    assert scene.offer() is not None


def chained(
    tokens: tuple[int, ...], *, author: int = 1, after: tuple[int, ...] = (), is_checked: bool = False
) -> SignedDraft:
    """A chain of tokens after a prefix."""
    nodes = NodeBlock.of([Node(index - 1 if index else BASE, token, 1.0) for index, token in enumerate(tokens)])
    draft = m.Draft(1, 1, roll_digest(D_0, after), len(after), nodes)
    return SignedDraft(author, m.Fragment(b"", bytes(64)), draft, is_checked=is_checked)


def claims(tokens: tuple[int, ...], authors: bytes, *, after: tuple[int, ...] = ()) -> list[Claim]:
    return list(claims_of(tokens, authors, roll_digest(D_0, after)))


def test_only_what_drafters_are_credited_with_is_a_claim() -> None:
    found = claims((5, 6, 7), bytes([2, HOME_AUTHOR, 0]))
    assert found == [Claim(0, 2, roll_digest(D_0, (5,)))]
    assert without(bytes([2, 1, 3]), [Claim(1, 1, b"")]) == bytes([2, 0, 3])


def test_a_node_shows_its_own_author_and_prefix_only() -> None:
    drafts, sent = Drafts(), chained((5, 6, 7))
    drafts.add(sent)
    assert [drafts.find(claim) for claim in claims((5, 6), b"\1\1")] == [sent, sent]
    assert [drafts.find(claim) for claim in claims((5, 6), b"\2\1")] == [None, sent]
    assert [drafts.find(claim) for claim in claims((6,), b"\1")] == [None]
    assert [drafts.find(claim) for claim in claims((7,), b"\1", after=(5, 6))] == [sent]
    assert [drafts.find(claim) for claim in claims((7,), b"\1", after=(6, 5))] == [None]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=12), st.integers(0, 12), st.data())
def test_a_chain_shows_each_of_its_tokens_wherever_it_begins(text: list[int], at: int, data: st.DataObject) -> None:
    at = min(at, len(text) - 1)
    start = data.draw(st.integers(0, at))
    drafts, sent = Drafts(), chained(tuple(text[start:]), after=tuple(text[:start]))
    drafts.add(sent)
    (claim,) = claims((text[at],), b"\1", after=tuple(text[:at]))
    assert drafts.find(claim) is sent


def test_what_is_committed_past_is_forgotten() -> None:
    drafts = Drafts()
    drafts.add(chained((5, 6)))
    drafts.forget_before(1)
    assert [drafts.find(claim) is None for claim in claims((5, 6), b"\1\1")] == [True, False]


def test_a_flood_costs_its_author_alone() -> None:
    drafts, first = Drafts(), chained((5,), author=2)
    drafts.add(first)
    for token in range(MAX_KEPT_NODES + 1):
        drafts.add(chained((token,)))
    assert [drafts.find(claim) is None for claim in claims((0,), b"\1")] == [True]
    assert [drafts.find(claim) for claim in claims((5,), b"\2")] == [first]


def test_one_whose_signature_holds_is_not_given_up_for_another() -> None:
    drafts, good = Drafts(), chained((5,), is_checked=True)
    drafts.add(good)
    drafts.add(chained((5,)))
    assert [drafts.find(claim) for claim in claims((5,), b"\1")] == [good]


def test_each_committed_token_has_the_confidence_that_its_author_stated_last() -> None:
    drafts = Drafts()
    for author, confidence in ((1, 0.2), (2, 0.4), (1, 0.8)):
        nodes = NodeBlock.of([Node(BASE, 5, confidence), Node(0, 6, 0.6)])
        drafts.add(SignedDraft(author, m.Fragment(b"", bytes(64)), m.Draft(1, 1, D_0, 0, nodes), is_checked=True))
    told = drafts.confidences((5, 6, 7), bytes([1, 1, 1]), D_0)
    assert [None if each is None else round(each, 2) for each in told] == [0.8, 0.6, None]
    [other] = drafts.confidences((5,), bytes([2]), D_0)
    assert other == pytest.approx(0.4, abs=0.01)
    assert drafts.confidences((5, 6), bytes([0, HOME_AUTHOR]), D_0) == (None, None)
