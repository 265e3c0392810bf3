from cosine_node.engine.torch.cached_model import StateStore


def test_the_last_known_state_is_found_from_the_end() -> None:
    store = StateStore[str](capacity=4)
    store.put(10, "after the first")
    store.put(12, "after the third")
    assert store.last([10, 11, 12, 13]) == (3, "after the third")
    assert store.last([10, 11]) == (1, "after the first")
    assert store.last([11, 13]) == store.last([]) == (0, None)


def test_the_state_not_used_for_longest_is_dropped() -> None:
    store = StateStore[str](capacity=2)
    store.put(1, "a")
    store.put(2, "b")
    assert store.last([1]) == (1, "a")
    store.put(3, "c")
    assert [store.last([slot])[1] for slot in (1, 2, 3)] == ["a", None, "c"]
    store.put(3, "d")
    assert (len(store), store.last([3])) == (2, (1, "d"))


def test_a_slot_that_is_written_to_has_no_state() -> None:
    store = StateStore[str](capacity=2)
    store.put(1, "a")
    store.discard([1, 7])
    assert store.last([1]) == (0, None)
