"""The logits that rows ask of a pass, and what becomes of them."""

import torch

from cosine_node.engine.base import BadLogits, Row
from cosine_node.engine.torch.row_results import row_results
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling

VOCAB = 7


def test_only_what_rows_ask_for_is_computed_and_a_row_that_fails_fails_alone() -> None:
    rows = [
        Row.chain(0, (1, 2, 3), scored_from=2),
        Row.chain(1, (4, 5), scored_from=2),
        Row(2, (1, 2, 3), (0, 1, 2), (-1, 0, 1), scored_from=2, wants_nll=True),
        Row.chain(3, (6,)),
    ]
    trees = [SequenceTree(sampling=Sampling(), prompt_tokens=0) for _ in rows]
    for tree, row in zip(trees, rows, strict=True):
        tree.add(row, range(len(row.tokens)))
    asked = []

    def logits_of(wanted: list[int]) -> torch.Tensor:
        asked.extend(wanted)
        # The best token after a position of the pass is its number modulo the vocabulary.
        logits = torch.nn.functional.one_hot(torch.tensor(wanted) % VOCAB, VOCAB).float()
        logits[-1] = torch.nan
        return logits

    results = row_results(trees, rows, logits_of)
    assert asked == [2, 5, 6, 7, 8]
    assert [[choice.token for choice in result.choices] for result in results] == [[2], [], [7 % VOCAB], []]
    expected = torch.nn.functional.cross_entropy(torch.eye(VOCAB)[[5, 6]], torch.tensor([2, 3]))
    assert results[2].nll is not None
    assert abs(results[2].nll - float(expected)) < 1e-6
    assert [type(result.error) for result in results] == [type(None)] * 3 + [BadLogits]
