from cosine_p2p.session.verifier_dials import ASK_AGAIN_S, MAX_BACKOFFS, VerifierQueue


def test_all_are_asked_in_their_order_and_then_nobody() -> None:
    queue = VerifierQueue(["a", "b"])
    assert [queue.next(0.0), queue.next(0.0), queue.next(0.0)] == ["a", "b", None]
    assert queue.next_at_s is None


def test_who_backs_off_comes_after_the_others_and_when_its_time_has_come() -> None:
    queue = VerifierQueue(["a", "b", "c"])
    queue.back_off(queue.next(0.0) or "", until_s=5.0)
    queue.back_off(queue.next(0.0) or "", until_s=3.0)
    assert queue.next(9.0) == "c"
    assert (queue.next(2.9), queue.next_at_s) == (None, 3.0)
    assert [queue.next(5.0), queue.next(5.0), queue.next(5.0)] == ["b", "a", None]


def test_who_was_not_needed_is_asked_first_again() -> None:
    queue = VerifierQueue(["a", "b"])
    queue.put_back(queue.next(0.0) or "")
    assert [queue.next(0.0), queue.next(0.0)] == ["a", "b"]


def test_who_is_always_overloaded_is_given_up() -> None:
    queue = VerifierQueue(["a"])
    for _ in range(MAX_BACKOFFS + 1):
        assert queue.next(0.0) == "a"
        queue.back_off("a", until_s=0.0)
    assert queue.next(0.0) is None and queue.next_at_s is None


def test_who_was_too_slow_is_asked_once_more_after_all_others() -> None:
    queue = VerifierQueue(["a", "b", "c"])
    queue.ask_last(queue.next(0.0) or "")
    queue.back_off(queue.next(0.0) or "", until_s=5.0)
    assert queue.has_fresh and queue.next(0.0) == "c" and not queue.has_fresh
    assert [queue.next(4.0), queue.next(5.0), queue.next(5.0)] == [None, "b", "a"]
    queue.ask_last("a")
    assert queue.next(9.0) is None


def test_one_whose_connection_ended_is_asked_again_once_nobody_fresh_is_left() -> None:
    queue = VerifierQueue(["a", "b"])
    assert queue.next(0.0) == "a"
    queue.ask_again("a", now_s=0.0)
    assert queue.next(ASK_AGAIN_S) == "b"
    assert queue.next(ASK_AGAIN_S / 2) is None
    assert queue.next_at_s == ASK_AGAIN_S
    assert queue.next(ASK_AGAIN_S) == "a"


def test_one_whose_connection_ends_again_and_again_is_given_up() -> None:
    queue = VerifierQueue(["a"])
    asked = 0
    while (peer_id := queue.next(asked * ASK_AGAIN_S)) is not None:
        asked += 1
        queue.ask_again(peer_id, now_s=(asked - 1) * ASK_AGAIN_S)
    assert asked == 1 + MAX_BACKOFFS
