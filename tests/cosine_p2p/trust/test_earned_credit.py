"""Credit cannot be issued by oneself: strangers' receipts count nothing, and known peers' only so much."""

import base64
from collections.abc import Collection, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.trust.earned_credit import (
    HALF_LIFE_S,
    KEPT_DRAFTERS,
    LEVELS_TOKENS,
    MAX_DRAFTERS,
    MOST_TOKENS,
    Earned,
    EarnedCredit,
    credit_of,
)
from cosine_protocol.messages import Earning, Receipt, SignedEarning, SignedReceipt
from cosine_protocol.statements import ReadReceipt
from tests.cosine_p2p.samples import identity_of, record_of

DRAFTER = identity_of(1)
RECORD = record_of(DRAFTER, now_s=0.0)
TARGET = bytes(32)
NOW_S = 1e9


def receipt(
    number: int = 0,
    *,
    verifier: str = "known",
    client: str = "client",
    tokens: int = MOST_TOKENS,
    expertise: tuple[str, ...] = RECORD.expertise,
    **changes: Any,
) -> ReadReceipt:
    """One that fits; its signatures are another matter."""
    facts: dict[str, Any] = {
        "target_digest": TARGET,
        "client": client,
        "drafter": RECORD.peer_id,
        "tokens": tokens,
        "text_tokens": 1000,
        "ended_at_s": NOW_S,
    }
    said = Receipt(verifier, expertise, SignedEarning(b"", bytes(64)))
    return ReadReceipt(SignedReceipt(number.to_bytes(16), b"", bytes(64)), said, Earning(**(facts | changes)))


def level(
    shown: Sequence[ReadReceipt], *, known: Collection[str] = ("known", "other"), target_digest: bytes = TARGET
) -> int:
    credit = EarnedCredit()
    credit.note(RECORD.peer_id, shown)
    levels = credit.levels([RECORD], target_digest=target_digest, known=known, now_s=NOW_S)
    return levels.get(RECORD.peer_id, 0)


def test_receipts_of_known_verifiers_give_a_level() -> None:
    assert level([receipt(tokens=LEVELS_TOKENS[0])]) == 1
    assert level([receipt(tokens=LEVELS_TOKENS[0] - 1)]) == 0
    assert level([receipt(0), receipt(1, verifier="other", client="another")]) == 2
    assert EarnedCredit().levels([RECORD], target_digest=TARGET, known=("known",), now_s=NOW_S) == {}


def test_a_drafter_s_own_verifiers_give_nothing_and_one_known_or_one_client_a_level_at_most() -> None:
    own = [receipt(number, verifier=f"verifier-{number}", client=f"client-{number}") for number in range(100)]
    assert level(own) == 0
    of_known = [receipt(number, client=f"client-{number}", tokens=1000) for number in range(100)]
    assert level(of_known) == level([*of_known, *own]) == 1
    assert level([receipt(0), receipt(1, verifier="other")]) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"drafter": "somebody else"},
        {"target_digest": bytes(31) + b"1"},
        {"expertise": ("poetry",)},
        {"ended_at_s": NOW_S + 3600},
        {"ended_at_s": NOW_S - 3 * HALF_LIFE_S},
    ],
)
def test_what_is_another_s_or_long_ago_or_yet_to_come_gives_nothing(changes: dict[str, Any]) -> None:
    assert level([receipt(**changes)]) == 0


def test_a_request_counts_once_and_half_as_much_after_a_week() -> None:
    assert credit_of([receipt(ended_at_s=NOW_S - HALF_LIFE_S)], now_s=NOW_S) == MOST_TOKENS / 2
    half = LEVELS_TOKENS[0] // 2
    assert level([receipt(tokens=half)] * 8) == 0
    assert level([receipt(0, tokens=half), receipt(1, tokens=half)]) == 1


def test_what_is_shown_replaces_what_was_and_the_oldest_is_forgotten() -> None:
    credit = EarnedCredit()
    where: dict[str, Any] = {"target_digest": TARGET, "known": ("known",), "now_s": NOW_S}
    credit.note(RECORD.peer_id, [receipt()])
    assert credit.levels([RECORD], **where) == {RECORD.peer_id: 1}
    credit.note(RECORD.peer_id, [])
    assert credit.levels([RECORD], **where) == {}
    credit.note(RECORD.peer_id, [receipt()])
    for number in range(MAX_DRAFTERS):
        credit.note(f"other-{number}", [])
    assert credit.levels([RECORD], **where) == {}


RECEIPTS = st.lists(
    st.builds(
        receipt,
        st.integers(0, 3),
        verifier=st.sampled_from(["a", "b", "c"]),
        client=st.sampled_from(["d", "e", "f"]),
        tokens=st.integers(1, 1000),
        ended_at_s=st.floats(0, 2 * NOW_S),
    ),
    max_size=12,
)


@given(RECEIPTS)
def test_no_set_of_receipts_is_worth_more_than_its_verifiers_and_clients(shown: list[ReadReceipt]) -> None:
    peers = min(len({one.verifier for one in shown}), len({one.client for one in shown}))
    assert 0 <= credit_of(shown, now_s=NOW_S) <= MOST_TOKENS * peers + 1e-6
    assert credit_of(shown * 2, now_s=NOW_S) == credit_of(shown, now_s=NOW_S)


def test_a_request_is_summed_once_and_who_has_shown_nothing_has_earned_nothing() -> None:
    credit = EarnedCredit()
    credit.note("a", [receipt(0, tokens=5), receipt(0, tokens=5), receipt(1, tokens=7, verifier="other")])
    credit.note("b", [])
    assert credit.earned() == {"a": Earned(tokens=12, verifiers=2, clients=1)}


@pytest.mark.parametrize(
    "states", [None, 5, ["a"], [["a", "b"]], [["a", ["?", 5, ""]]], [["a", [base64.b64encode(b"x").decode()]]]]
)
def test_what_is_broken_in_a_file_has_earned_nothing(states: Any) -> None:
    credit = EarnedCredit()
    credit.restore(states)
    assert credit.earned() == {}


def test_the_drafters_that_are_kept_are_bounded_and_the_newest() -> None:
    credit = EarnedCredit()
    for number in range(KEPT_DRAFTERS + 5):
        credit.note(f"{number}", [receipt()])
    names = [name for name, _ in credit.state()]
    assert len(names) == KEPT_DRAFTERS and names[-1] == f"{KEPT_DRAFTERS + 4}"
