"""Of two neighbours at odds the guilty one is suspected more as soon as it has been so with another, too."""

from cosine_node.stages.suspicions import SUSPECTED_S, Suspicions


def test_a_fault_is_that_of_one_or_shared_by_two_and_they_add_up_until_they_are_forgotten() -> None:
    suspicions = Suspicions()
    suspicions.note(["liar", "first"], now_s=0.0)
    assert suspicions.weights(now_s=0.0) == {"liar": 1, "first": 1}
    suspicions.note(["liar", "second"], now_s=1.0)
    suspicions.note(["alone"], now_s=1.0)
    assert suspicions.weights(now_s=1.0) == {"liar": 2, "first": 1, "second": 1, "alone": 2}
    assert suspicions.weights(now_s=SUSPECTED_S) == {"liar": 1, "second": 1, "alone": 2}
