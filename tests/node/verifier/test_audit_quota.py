"""Audits take a bounded part of a verifier's time, and each peer a bounded part of that."""

from cosine_node.verifier.audit_service import (
    AHEAD_S,
    MAX_AUDITS,
    MAX_PEERS,
    RETRY_AFTER_S,
    TOKENS_PER_S,
    AuditQuota,
)


def test_few_are_under_way_at_once_and_one_of_each_peer() -> None:
    quota = AuditQuota()
    assert quota.wait_s("a", [], now_s=0.0) == quota.wait_s("a", ["b"], now_s=0.0) == 0.0
    assert quota.wait_s("a", ["a"], now_s=0.0) == RETRY_AFTER_S
    assert quota.wait_s("a", list("bcdefgh"[:MAX_AUDITS]), now_s=0.0) == RETRY_AFTER_S


def test_a_peer_that_had_much_audited_waits_and_others_do_not() -> None:
    quota = AuditQuota()
    quota.note("a", tokens=round((AHEAD_S + 30.0) * TOKENS_PER_S), now_s=5.0)
    assert quota.wait_s("a", [], now_s=5.0) == 30.0
    assert quota.wait_s("a", [], now_s=35.0) == quota.wait_s("b", [], now_s=5.0) == 0.0


def test_its_memory_is_bounded() -> None:
    quota = AuditQuota()
    for number in range(MAX_PEERS + 1):
        quota.note(str(number), tokens=10**9, now_s=0.0)
    assert quota.wait_s("0", [], now_s=0.0) == 0.0 < quota.wait_s("1", [], now_s=0.0)
