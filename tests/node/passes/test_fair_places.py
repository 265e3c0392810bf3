"""Places are shared fairly: no client keeps more than others lack, and those that wait come in turns."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cosine_node.passes.fair_places import MAX_WAITING, MAX_WAITING_EACH, FairQueue, Holder, whom_to_evict


def holders(clients: str) -> list[Holder]:
    """One request for each letter, an idle one for each capital letter."""
    return [Holder(letter.lower(), since, is_idle=letter.isupper()) for since, letter in enumerate(clients)]


def test_a_client_with_two_more_gives_up_its_youngest_request() -> None:
    assert whom_to_evict("b", holders("aaaa")) == 3
    assert whom_to_evict("b", holders("aaba")) == 3
    assert whom_to_evict("b", holders("aab")) is None
    assert whom_to_evict("c", holders("ab")) is None
    assert whom_to_evict("a", holders("aaaa")) is None
    assert whom_to_evict("a", []) is None


def test_the_one_idle_for_longest_goes_first_unless_it_is_ones_own() -> None:
    assert whom_to_evict("b", holders("aACA")) == 1
    assert whom_to_evict("c", holders("aC")) is None


@given(st.text("abcdABCD", min_size=1, max_size=20), st.sampled_from("abcdef"))
def test_nobody_is_evicted_who_has_no_more_than_the_newcomer_gets(text: str, newcomer: str) -> None:
    held = holders(text)
    index = whom_to_evict(newcomer, held)
    if index is not None and not held[index].is_idle:
        counts = Counter(holder.client for holder in held)
        assert counts[held[index].client] - 1 >= counts[newcomer] + 1


@given(st.text("abcdABCD", min_size=1, max_size=20))
def test_two_clients_never_take_each_others_places_in_turns(text: str) -> None:
    """Evicting ends: every eviction of a request that is not idle makes shares more equal."""
    held, evicted = holders(text), 0
    while (index := whom_to_evict("x", held)) is not None:
        held[index] = Holder("x", len(text) + evicted)
        evicted += 1
        assert evicted <= len(text)


def test_of_those_that_wait_the_client_comes_next_that_was_given_least() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        assert queue.put("greedy", f"greedy {number}", until_s=1.0)
    assert queue.put("modest", "modest 0", until_s=1.0)
    order = []
    while item := queue.take():
        order.append(item)
        queue.note_given(item.split()[0], 100.0)
    assert order == ["greedy 0", "modest 0", "greedy 1", "greedy 2"]


def test_who_asks_for_little_comes_more_often() -> None:
    queue: FairQueue[str] = FairQueue()
    costs = {"long": 300.0, "short": 100.0}
    served: Counter[str] = Counter()
    for client in costs:
        queue.put(client, client, until_s=1.0)
    for _ in range(40):
        client = queue.take() or ""
        served[client] += 1
        queue.note_given(client, costs[client])
        queue.put(client, client, until_s=1.0)
    assert served == {"short": 30, "long": 10}


def test_who_comes_later_has_no_claim_on_the_time_before() -> None:
    queue: FairQueue[str] = FairQueue()
    for _ in range(100):
        queue.put("early", "early", until_s=1.0)
        queue.note_given(queue.take() or "", 1.0)
    for client in ("late", "early") * 2:
        queue.put(client, client, until_s=1.0)
    order = []
    while served := queue.take():
        order.append(served)
        queue.note_given(served, 1.0)
    assert order[0] == "late" and "early" in order[1:3]


def test_waiting_is_bounded_and_ends() -> None:
    queue: FairQueue[int] = FairQueue()
    taken = [queue.put("one", number, until_s=float(number)) for number in range(MAX_WAITING_EACH + 1)]
    assert taken == [True] * MAX_WAITING_EACH + [False]
    for number in range(MAX_WAITING):
        queue.put(f"client {number}", number, until_s=100.0)
    assert len(queue) == MAX_WAITING
    assert queue.take_expired(2.0) == [0, 1, 2]
    assert len(queue) == MAX_WAITING - 3
    assert queue.take_where(lambda item, _: item == 5) == [5, 5]
