"""The sentence that tells that drafts do not pay at a verifier."""

import pytest

from cosine_p2p.directory.draft_cost import drafts_sentence


@pytest.mark.parametrize(
    ("permille", "said"),
    [
        (None, ""),
        (1220, ""),
        (2499, ""),
        (3000, "drafts hardly pay here: a pass over 4 tokens takes 3.0 times as long as one over 1"),
        (4020, "drafts do not pay here: a pass over 4 tokens takes 4.0 times as long as one over 1"),
    ],
)
def test_drafts_that_cost_about_their_number_do_not_pay(permille: int | None, said: str) -> None:
    assert drafts_sentence(permille) == said
