"""A drafter goes on below what its client has fused, whoever drafted it."""

import pytest

from cosine_lab.rivals.fused_prefix import TOLD, FusedTree
from cosine_p2p.strategy.fusion import Calibration
from cosine_protocol.digests import roll_digest
from tests.node.drafter.test_draft_tree import D_0, branch, grown_by, planned, said, tokens_of


@pytest.mark.parametrize("width", [1, 2])
def test_a_fused_prefix_is_drafted_below_first_however_unlikely(width: int) -> None:
    tree = FusedTree(D_0, (1,), (), Calibration())
    assert tree.assign(branch(width=width, depth=1)) is None
    assert tokens_of(grown_by(tree, said((5, 0.9), (6, 1e-4)))) == [5]
    tree.assign(branch(TOLD.note(D_0, (6,)), width=width, depth=1, window=2))
    assert planned(tree).tokens[0] == 6
    grown = grown_by(tree, *[said((7, 0.5)), said((8, 0.5))][:width])
    assert (grown.base, tokens_of(grown)) == {1: (roll_digest(D_0, [6]), [7]), 2: (D_0, [6, 7, 5, 8])}[width]


def test_one_that_was_drafted_before_counts_as_certain_with_all_below_it() -> None:
    tree = FusedTree(D_0, (1,), (), Calibration())
    tree.assign(branch(width=4))
    grown_by(tree, said((5, 0.2), (6, 0.1)))
    grown_by(tree, said((7, 0.5)), said((8, 0.06), (9, 0.05)))
    assert planned(tree).tokens == (7,)
    assert tree.assign(branch(TOLD.note(D_0, (6,)), width=4)) is not None
    assert planned(tree).tokens == (7, 8, 9)
