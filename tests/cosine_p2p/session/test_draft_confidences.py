"""What drafters said of committed tokens is found again in the drafts that they signed."""

from cosine_p2p.session.draft_confidences import MAX_DRAFTS, DraftConfidences
from cosine_protocol.digests import roll_digest
from cosine_protocol.limits import MAX_TREE_DEPTH
from cosine_protocol.messages import Draft
from cosine_protocol.nodes import BASE, Node, NodeBlock

D_0 = b"\x07" * 16


def draft(output: tuple[int, ...], *nodes: Node) -> Draft:
    """A draft of nodes after some output tokens."""
    return Draft(1, 1, roll_digest(D_0, output), len(output), NodeBlock.of(nodes))


def told(confidences: tuple[float | None, ...]) -> list[float | None]:
    """They travel in steps of 1/255."""
    return [None if each is None else round(each, 2) for each in confidences]


def test_each_committed_token_has_what_its_author_said() -> None:
    known = DraftConfidences(D_0)
    known.note(1, draft((), Node(BASE, 5, 0.9), Node(BASE, 6, 0.1), Node(0, 7, 0.6), Node(1, 8, 0.3)))
    known.note(2, draft((), Node(BASE, 5, 0.4)))
    assert told(known.follow((5, 7, 9), bytes((1, 1, 0)))) == [0.9, 0.6, None]


def test_the_author_counts_whose_token_it_is() -> None:
    known = DraftConfidences(D_0)
    known.note(1, draft((), Node(BASE, 5, 0.9)))
    known.note(2, draft((), Node(BASE, 5, 0.4)))
    assert told(known.follow((5,), bytes((2,)))) == [0.4]


def test_a_draft_below_a_prefix_that_was_not_committed_when_it_came_counts() -> None:
    known = DraftConfidences(D_0)
    known.note(1, draft((3, 4), Node(BASE, 5, 0.7), Node(0, 6, 0.5)))
    assert told(known.follow((3, 4), bytes(2))) == [None, None]
    assert told(known.follow((5, 6), bytes((1, 1)))) == [0.7, 0.5]


def test_another_path_to_the_same_token_says_nothing() -> None:
    known = DraftConfidences(D_0)
    known.note(1, draft((9,), Node(BASE, 5, 0.7)))
    known.note(1, draft((), Node(BASE, 9, 0.2), Node(0, 5, 0.2)))
    assert told(known.follow((3, 5), bytes((0, 1)))) == [None, None]


def test_the_latest_word_counts() -> None:
    known = DraftConfidences(D_0)
    known.note(1, draft((), Node(BASE, 5, 0.2)))
    known.note(1, draft((), Node(BASE, 5, 0.8)))
    assert told(known.follow((5,), bytes((1,)))) == [0.8]


def test_what_is_too_old_is_forgotten() -> None:
    known = DraftConfidences(D_0)
    known.note(1, draft((), *(Node(index - 1, 5, 0.5) for index in range(MAX_TREE_DEPTH + 3))))
    ones = bytes((1,) * (MAX_TREE_DEPTH + 3))
    assert told(known.follow((5,) * len(ones), ones)) == [0.5] * (MAX_TREE_DEPTH + 1) + [None] * 2
    flooded = DraftConfidences(D_0)
    flooded.note(1, draft((), Node(BASE, 5, 0.5)))
    for _ in range(MAX_DRAFTS):
        flooded.note(1, draft((), Node(BASE, 6, 0.5)))
    assert told(flooded.follow((5,), bytes((1,)))) == [None]
