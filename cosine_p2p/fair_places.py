"""Shares the places of a node fairly between its clients: eviction and queueing. Pure.

The next place goes to the waiting client that was served least (start-time fair queueing: Goyal, Vin and Cheng
1996, doi:10.1145/248156.248171). The same holds between the users of a client, such as the keys of a gateway.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from cosine_p2p.storage.memory import Remembered

IDLE_WANTED_S: Final = 4.0
"""An idle request may be evicted after this time, for which a peer may be silent."""
MAX_WAITING: Final = 64
MAX_WAITING_EACH: Final = 8
MAX_CLIENTS: Final = 1024
MAX_USERS: Final = 64
FIRST_TOKENS: Final = 512
"""Head start of a new user before the present users of its client. With it a text of 24 tokens took 1.22 times as
long as alone, with equal shares 2.28 times (docs/decisions/0059)."""
EVEN_TOKENS: Final = 64
"""Users within this difference share passes, because passes in turns serve fewer requests."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class User:
    """A client, or one of its users by the client's name for it."""

    client: str
    name: bytes = b""


@dataclass(frozen=True, slots=True)
class Holder:
    """A request with a place. `since` grows with its start."""

    user: User
    since: int
    is_idle: bool = False


def whom_to_evict(newcomer: User, holders: Sequence[Holder]) -> int | None:
    """The index of the holder to evict for a user's request. None if it must wait.

    The first choice is an idle request of another client; then the youngest request of the largest client, if that
    has at least two more than the newcomer's; then likewise of the largest user of the same client.
    """
    idle = [
        index for index, holder in enumerate(holders) if holder.is_idle and holder.user.client != newcomer.client
    ]
    if idle:
        return min(idle, key=lambda index: holders[index].since)
    clients = Counter(holder.user.client for holder in holders)
    users = Counter(holder.user for holder in holders)
    most = max(clients.values(), default=0)
    if most >= clients[newcomer.client] + 2:
        among = [index for index, holder in enumerate(holders) if clients[holder.user.client] == most]
    else:
        among = [index for index, holder in enumerate(holders) if holder.user.client == newcomer.client]
        if max((users[holders[index].user] for index in among), default=0) < users[newcomer] + 2:
            return None
    return max(among, key=lambda index: (users[holders[index].user], holders[index].since))


class Given:
    """The service of several names in virtual time, which is the minimum over present names.

    A new name starts at most `claim` behind.
    """

    def __init__(self, most_names: int, *, claim: float = 0.0) -> None:
        self._most_names = most_names
        self._claim = claim
        self._given: OrderedDict[str | bytes, float] = OrderedDict()
        self._now = 0.0

    def to(self, name: str | bytes) -> float:
        least = self._now - self._claim
        return max(least, self._given.get(name, least))

    def note(self, name: str | bytes, cost: float, *, present: Iterable[str | bytes]) -> None:
        """Count service of a name while others were `present`."""
        begin = self.to(name)
        self._given[name] = begin + cost
        self._given.move_to_end(name)
        self._now = max(self._now, min([begin, *map(self.to, present)]))
        if len(self._given) > self._most_names:
            self._given.popitem(last=False)


class Turns:
    """The order of users: by the service of their client, then by their own."""

    def __init__(self) -> None:
        self._clients = Given(MAX_CLIENTS)
        self._users: Remembered[str, Given] = Remembered(MAX_CLIENTS)

    def of(self, user: User) -> tuple[float, float]:
        """Sort key of a user; the smallest comes first."""
        return self._clients.to(user.client), self._within(user.client).to(user.name)

    def first(self, present: Iterable[User]) -> set[User]:
        """The present users within `EVEN_TOKENS` of the least served one of their client."""
        turns = {user: self._within(user.client).to(user.name) for user in set(present)}
        least: dict[str, float] = {}
        for user, turn in turns.items():
            least[user.client] = min(turn, least.get(user.client, turn))
        return {user for user, turn in turns.items() if turn <= least[user.client] + EVEN_TOKENS}

    def note(self, user: User, cost: float, *, present: Iterable[User] = ()) -> None:
        """Count service of a user while others were `present`."""
        others = set(present)
        self._clients.note(user.client, cost, present={other.client for other in others})
        within = self._within(user.client)
        self._users.note(user.client, within)
        within.note(user.name, cost, present={other.name for other in others if other.client == user.client})

    def _within(self, client: str) -> Given:
        return self._users.get(client) or Given(MAX_USERS, claim=FIRST_TOKENS)


class FairQueue(Generic[_T]):
    """Requests that wait for a place."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[User, deque[_T]] = OrderedDict()
        self._turns = Turns()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, user: User, item: _T) -> bool:
        """Add a request. Returns False if there are too many."""
        of_client = sum(len(queue) for other, queue in self._waiting.items() if other.client == user.client)
        if len(self) >= MAX_WAITING or of_client >= MAX_WAITING_EACH:
            return False
        self._waiting.setdefault(user, deque()).append(item)
        return True

    def take(self) -> _T | None:
        """Remove and return the next request. None if there is none."""
        if not self._waiting:
            return None
        item = self._waiting[min(self._waiting, key=self._turns.of)].popleft()
        self._tidy()
        return item

    def note_given(self, user: User, cost: float) -> None:
        self._turns.note(user, cost, present=self._waiting)

    def take_where(self, is_meant: Callable[[_T], bool]) -> list[_T]:
        """Remove and return the requests that match."""
        taken = [item for queue in self._waiting.values() for item in queue if is_meant(item)]
        for user, queue in self._waiting.items():
            self._waiting[user] = deque(item for item in queue if not is_meant(item))
        self._tidy()
        return taken

    def _tidy(self) -> None:
        for user in [user for user, queue in self._waiting.items() if not queue]:
            del self._waiting[user]
