"""The sentences that tell a volunteer what the node has done."""

from dataclasses import replace

from cosine_node.serving.work import DraftWork, StageWork, VerifyWork

DRAFTED = DraftWork(
    requests=3, drafted_tokens=1234, text_tokens=640, offered_positions=520, taken_tokens=400, receipt_tokens=0
)
VERIFIED = VerifyWork(requests=1, passes=220, text_tokens=512, taken_tokens=128)


def test_a_drafter_tells_how_often_it_was_right_and_its_share_of_the_text() -> None:
    assert str(DRAFTED) == (
        "drafted 1234 tokens for 3 requests: right at 400 of 520 positions (77 %), 62 % of the text"
    )


def test_a_drafter_tells_what_others_have_signed_for() -> None:
    assert str(replace(DRAFTED, receipt_tokens=380)).endswith("62 % of the text; receipts for 380 tokens")


def test_a_verifier_tells_what_others_drafted() -> None:
    assert str(VERIFIED) == "generated 512 tokens for 1 request in 220 passes, 25 % of them drafted by others"


def test_a_stage_tells_what_it_computed() -> None:
    work = StageWork(requests=1, passes=57, fed_tokens=1047)
    assert str(work) == "computed 1047 tokens in 57 passes for 1 new chain"
    assert str(StageWork(requests=1, passes=60, fed_tokens=1050).since(work)) == "computed 3 tokens in 3 passes"
    assert str(work.since(work)) == "computed nothing"


def test_the_work_of_a_minute_is_what_came_after_the_last_one() -> None:
    later = DraftWork(
        requests=3, drafted_tokens=1244, text_tokens=645, offered_positions=520, taken_tokens=400, receipt_tokens=0
    )
    assert str(later.since(DRAFTED)) == "drafted 10 tokens: right at 0 of 0 positions (0 %), 0 % of the text"
    assert VERIFIED.since(VERIFIED) == VerifyWork(requests=0, passes=0, text_tokens=0, taken_tokens=0)


def test_a_node_without_work_says_so() -> None:
    assert str(DRAFTED.since(DRAFTED)) == "drafted nothing"
    assert str(VERIFIED.since(VERIFIED)) == "generated nothing"
