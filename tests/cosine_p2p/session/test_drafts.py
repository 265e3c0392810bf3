"""Tests of the index of drafts."""

from collections.abc import Sequence

import pytest

from cosine_p2p.session.drafts import MAX_KEPT_NODES, Drafts, SignedDraft
from cosine_protocol.digests import roll_digest
from cosine_protocol.draft import BASE, Draft, Fragment, Node, NodeBlock

ROOT = bytes(16)


def chain(tokens: Sequence[int], *, after: Sequence[int] = (), position: int | None = None) -> Draft:
    nodes = [Node(index - 1 if index else BASE, token, 0.2 * index) for index, token in enumerate(tokens)]
    base, first = roll_digest(ROOT, after), len(after) if position is None else position
    return Draft(1, 1, base, first, NodeBlock.of(nodes))


def signed(*, is_checked: bool = False) -> SignedDraft:
    return SignedDraft(Fragment(b"", bytes(64)), is_checked=is_checked)


def found(drafts: Drafts, tokens: Sequence[int], authors: bytes, *, after: int = 0) -> list[SignedDraft | None]:
    return [node and node.signed for node in drafts.commit(after, tokens, authors)]


def test_a_node_shows_its_own_author_and_prefix_only() -> None:
    for tokens, authors, is_shown in (
        ((5, 6), b"\1\1", (True, True)),
        ((5, 6), b"\2\1", (False, True)),
        ((6,), b"\1", (False,)),
        ((6, 5, 7), b"\0\0\1", (False, False, False)),
    ):
        drafts, sent = Drafts(ROOT), signed()
        assert drafts.add(1, sent, chain((5, 6, 7))) == tuple(roll_digest(ROOT, (5, 6, 7)[:n]) for n in (1, 2, 3))
        assert found(drafts, tokens, authors) == [sent if each else None for each in is_shown]


def test_commits_go_on_and_what_was_committed_before_is_not_found_again() -> None:
    drafts, sent = Drafts(ROOT), signed()
    drafts.add(1, sent, chain((5, 6, 7)))
    assert found(drafts, (5,), b"\1") == [sent]
    assert found(drafts, (5, 6, 7), b"\1\1\1") == [None, sent, sent]
    assert drafts.offered == 3


@pytest.mark.parametrize("is_checked", [True, False])
def test_a_later_fragment_replaces_a_signature_that_nobody_has_checked(is_checked: bool) -> None:
    drafts, first, second = Drafts(ROOT), signed(is_checked=is_checked), signed()
    drafts.add(1, first, chain((5, 6)))
    drafts.add(1, second, chain((6,), after=(5,)))
    (_, node) = drafts.commit(0, (5, 6), b"\1\1")
    assert node is not None and (node.signed, node.confidence) == (first if is_checked else second, 0.0)


@pytest.mark.parametrize("author", [1, 2])
def test_a_flood_costs_its_author_alone(author: int) -> None:
    drafts, first = Drafts(ROOT), signed()
    for number in (1, 2):
        drafts.add(number, first, chain((5,)))
    for token in range(10, MAX_KEPT_NODES + 10):
        drafts.add(1, signed(), chain((token,)))
    assert found(drafts, (5,), bytes([author])) == [None if author == 1 else first]


def test_a_position_is_offered_once_however_many_nodes_stand_for_it_and_before_it_is_committed() -> None:
    drafts = Drafts(ROOT)
    tree = NodeBlock.of([Node(BASE, 7, 1.0), Node(BASE, 8, 1.0), Node(1, 9, 1.0)])
    drafts.add(1, signed(), Draft(1, 1, ROOT, 1, tree))
    drafts.add(2, signed(), chain((7, 7), position=2))
    # No output has such a position.
    drafts.add(3, signed(), chain((7, 7, 7), position=2**40))
    drafts.commit(0, (1, 2, 3), bytes(3))
    assert drafts.offered == 2
    drafts.add(3, signed(), chain((7, 7, 7), position=0))
    drafts.commit(3, (4, 5), bytes(2))
    assert drafts.offered == 3
    drafts.note_told_offered(2**40)
    assert drafts.offered == 5
