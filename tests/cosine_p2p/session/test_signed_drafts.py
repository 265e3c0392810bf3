"""Whose a token was is shown by a signed node after exactly the prefix that the token follows."""

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.session.delegation import MAX_KEPT_NODES, Claim, SignedDraft, SignedDrafts, claims_of, without
from cosine_protocol import messages as m
from cosine_protocol.digests import roll_digest
from cosine_protocol.limits import HOME_AUTHOR
from cosine_protocol.nodes import BASE, Node, NodeBlock

D_0 = bytes(16)
STATS = m.PassStats(0, 0, 0)


def signed(
    tokens: tuple[int, ...], *, author: int = 1, after: tuple[int, ...] = (), is_checked: bool = False
) -> SignedDraft:
    """A chain of tokens after a prefix."""
    nodes = NodeBlock.of([Node(index - 1 if index else BASE, token, 1.0) for index, token in enumerate(tokens)])
    draft = m.Draft(1, 1, roll_digest(D_0, after), len(after), nodes)
    return SignedDraft(author, m.Fragment(b"", bytes(64)), draft, is_checked=is_checked)


def commit(tokens: tuple[int, ...], authors: bytes, *, after: tuple[int, ...] = ()) -> m.Commit:
    return m.Commit(1, len(after), tokens, roll_digest(D_0, (*after, *tokens)), authors, STATS)


def claims(tokens: tuple[int, ...], authors: bytes, *, after: tuple[int, ...] = ()) -> list[Claim]:
    return list(claims_of(commit(tokens, authors, after=after), roll_digest(D_0, after)))


def test_only_what_drafters_are_credited_with_is_a_claim() -> None:
    found = claims((5, 6, 7), bytes([2, HOME_AUTHOR, 0]))
    assert found == [Claim(0, 2, roll_digest(D_0, (5,)))]
    assert without(bytes([2, 1, 3]), [Claim(1, 1, b"")]) == bytes([2, 0, 3])


def test_a_node_shows_its_own_author_and_prefix_only() -> None:
    drafts, sent = SignedDrafts(), signed((5, 6, 7))
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
    drafts, sent = SignedDrafts(), signed(tuple(text[start:]), after=tuple(text[:start]))
    drafts.add(sent)
    (claim,) = claims((text[at],), b"\1", after=tuple(text[:at]))
    assert drafts.find(claim) is sent


def test_what_is_committed_past_is_forgotten() -> None:
    drafts = SignedDrafts()
    drafts.add(signed((5, 6)))
    drafts.forget_before(1)
    assert [drafts.find(claim) is None for claim in claims((5, 6), b"\1\1")] == [True, False]


def test_a_flood_costs_its_author_alone() -> None:
    drafts, first = SignedDrafts(), signed((5,), author=2)
    drafts.add(first)
    for token in range(MAX_KEPT_NODES + 1):
        drafts.add(signed((token,)))
    assert [drafts.find(claim) is None for claim in claims((0,), b"\1")] == [True]
    assert [drafts.find(claim) for claim in claims((5,), b"\2")] == [first]


def test_one_whose_signature_holds_is_not_given_up_for_another() -> None:
    drafts, good = SignedDrafts(), signed((5,), is_checked=True)
    drafts.add(good)
    drafts.add(signed((5,)))
    assert [drafts.find(claim) for claim in claims((5,), b"\1")] == [good]
