"""Reports of a node's work."""

from dataclasses import replace

import pytest

from cosine_node.serving.work import DraftWork, StageWork, VerifyWork, Work

DRAFTED = DraftWork(
    requests=3,
    drafted_tokens=1234,
    accepted_tokens=40,
    text_tokens=640,
    unwanted=0,
    seldom_right=0,
    others_better=0,
    nothing_new=0,
)
VERIFIED = VerifyWork(requests=1, passes=220, text_tokens=512, taken_tokens=128)
COMPUTED = StageWork(requests=1, passes=57, fed_tokens=1047)


@pytest.mark.parametrize(
    ("work", "said"),
    [
        (DRAFTED, "drafted 1234 tokens for 3 requests; of 640 tokens of their texts 40 (6 %) came by it"),
        (
            replace(DRAFTED, unwanted=1, others_better=2),
            "drafted 1234 tokens for 3 requests; of 640 tokens of their texts 40 (6 %) came by it; let go 1 time "
            "since no drafters were wanted, 2 times since others were better",
        ),
        (VERIFIED, "generated 512 tokens for 1 request in 220 passes, 25 % of them drafted by others"),
        (replace(COMPUTED, passes=60, fed_tokens=1050).since(COMPUTED), "computed 3 tokens in 3 passes"),
        (DRAFTED.since(DRAFTED), "drafted nothing"),
    ],
)
def test_a_node_tells_what_it_has_done(work: Work, said: str) -> None:
    assert str(work) == said
