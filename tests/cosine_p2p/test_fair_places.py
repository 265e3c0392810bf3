"""Fair places: eviction, queueing, and turns of users."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.fair_places import (
    EVEN_TOKENS,
    FIRST_TOKENS,
    MAX_WAITING,
    MAX_WAITING_EACH,
    FairQueue,
    Holder,
    Turns,
    User,
    whom_to_evict,
)


def holders(clients: str) -> list[Holder]:
    """One request for each letter, an idle one for each capital letter."""
    return [Holder(User(letter.lower()), since, is_idle=letter.isupper()) for since, letter in enumerate(clients)]


def test_a_client_with_two_more_gives_up_its_youngest_request() -> None:
    assert whom_to_evict(User("b"), holders("aaaa")) == 3
    assert whom_to_evict(User("b"), holders("aaba")) == 3
    assert whom_to_evict(User("b"), holders("aab")) is None
    assert whom_to_evict(User("c"), holders("ab")) is None
    assert whom_to_evict(User("a"), holders("aaaa")) is None
    assert whom_to_evict(User("a"), []) is None


def test_the_one_idle_for_longest_goes_first_unless_it_is_ones_own() -> None:
    assert whom_to_evict(User("b"), holders("aACA")) == 1
    assert whom_to_evict(User("c"), holders("aC")) is None


def test_a_user_gives_up_a_place_to_another_of_its_client_and_to_no_other_client() -> None:
    greedy, modest = User("gateway", b"greedy"), User("gateway", b"modest")
    held = [Holder(greedy, 0), Holder(modest, 1), Holder(greedy, 2), Holder(greedy, 3)]
    assert whom_to_evict(modest, held) == 3
    assert whom_to_evict(greedy, held) is None
    assert whom_to_evict(modest, held[:3]) is None
    # Of a client that has more than others the user gives way who has most.
    assert whom_to_evict(User("other"), [*held, Holder(modest, 4)]) == 3
    assert whom_to_evict(modest, [*held[:1], *[Holder(User("other"), since) for since in range(4, 6)]]) is None


@given(st.text("abcdABCD", min_size=1, max_size=20), st.sampled_from("abcdef"))
def test_nobody_is_evicted_who_has_no_more_than_the_newcomer_gets(text: str, newcomer: str) -> None:
    held = holders(text)
    index = whom_to_evict(User(newcomer), held)
    if index is not None and not held[index].is_idle:
        counts = Counter(holder.user.client for holder in held)
        assert counts[held[index].user.client] - 1 >= counts[newcomer] + 1


@given(st.text("abcdABCD", min_size=1, max_size=20))
def test_two_clients_never_take_each_others_places_in_turns(text: str) -> None:
    """Evictions end, because each makes shares more equal."""
    held, evicted = holders(text), 0
    while (index := whom_to_evict(User("x"), held)) is not None:
        held[index] = Holder(User("x"), len(text) + evicted)
        evicted += 1
        assert evicted <= len(text)


def test_of_those_that_wait_the_client_comes_next_that_was_given_least() -> None:
    queue: FairQueue[str] = FairQueue()
    for number in range(3):
        assert queue.put(User("greedy"), f"greedy {number}")
    assert queue.put(User("modest"), "modest 0")
    order = []
    while item := queue.take():
        order.append(item)
        queue.note_given(User(item.split()[0]), 100.0)
    assert order == ["greedy 0", "modest 0", "greedy 1", "greedy 2"]


def test_waiting_is_bounded() -> None:
    queue: FairQueue[int] = FairQueue()
    taken = [queue.put(User("one"), number) for number in range(MAX_WAITING_EACH + 1)]
    assert taken == [True] * MAX_WAITING_EACH + [False]
    for number in range(MAX_WAITING):
        queue.put(User(f"client {number}"), number)
    assert len(queue) == MAX_WAITING
    assert queue.take_where(lambda item: item == 5) == [5, 5]
    assert len(queue) == MAX_WAITING - 2


def test_users_of_one_client_come_in_turns_by_their_tokens() -> None:
    queue: FairQueue[str] = FairQueue()
    users = {name: User(name[0], name.encode()) for name in ("a long", "a short", "b")}
    cost = {"a long": 300.0, "a short": 100.0, "b": 100.0}
    served: Counter[str] = Counter()
    for name, user in users.items():
        queue.put(user, name)
    for _ in range(80):
        name = queue.take() or ""
        served[name] += 1
        queue.note_given(users[name], cost[name])
        queue.put(users[name], name)
    tokens = {name: count * cost[name] for name, count in served.items()}
    assert abs(tokens["a long"] - tokens["a short"]) <= 300.0 + FIRST_TOKENS
    assert abs(tokens["a long"] + tokens["a short"] - tokens["b"]) <= 300.0


def test_a_users_first_tokens_come_before_what_others_of_its_client_had_long_before() -> None:
    turns, greedy, modest = Turns(), User("gateway", b"greedy"), User("gateway", b"modest")
    for _ in range(9000):
        turns.note(greedy, 1.0, present=[greedy])
    assert turns.first([greedy]) == {greedy}
    tokens = 0
    while turns.first([greedy, modest]) == {modest}:
        turns.note(modest, 1.0, present=[greedy, modest])
        tokens += 1
    assert tokens == FIRST_TOKENS + 1 - EVEN_TOKENS
    # From then on both are served, and only who was given much more waits.
    assert turns.first([greedy, modest]) == {greedy, modest}
    turns.note(greedy, 2 * EVEN_TOKENS + FIRST_TOKENS, present=[greedy, modest])
    assert turns.first([greedy, modest]) == {modest}
