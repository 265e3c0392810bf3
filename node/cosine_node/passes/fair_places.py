"""The places of a node, shared fairly between its clients: who gives one up, and who waits for one. Pure.

No client keeps more places than another one lacks, and of those that wait the one comes next that has been given
least (start-time fair queueing: Goyal, Vin and Cheng 1996, doi:10.1145/248156.248171). The same holds between the
users who share a client, such as the keys of a gateway, within what is the client's: more names bring it no more.
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from cosine_p2p.storage.memory import Remembered

IDLE_WANTED_S: Final = 4.0
"""Where others want its place, an idle request has as long as a peer may be silent."""
MAX_WAITING: Final = 64
"""Bounds memory: requests that wait, of all clients."""
MAX_WAITING_EACH: Final = 8
"""Requests of one client that wait."""
MAX_CLIENTS: Final = 1024
"""Bounds memory: clients whose share is remembered; those given something longest ago are forgotten first."""
MAX_USERS: Final = 64
"""The same of the users of one client."""
FIRST_TOKENS: Final = 512
"""What a user may have before others of its client who were at work when it came. With it a text of 24 tokens took
1.22 times as long as alone, with equal shares 2.28 times (docs/decisions/0059); what is beyond it comes at equal
shares. The long texts of others wait for as many tokens of each who comes."""
EVEN_TOKENS: Final = 64
"""Users who were given as many tokens but for so few share passes, for passes in turns serve fewer requests."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class User:
    """Who asks: a client, or one of those that share it, by a name that the client has for each."""

    client: str
    name: bytes = b""


@dataclass(frozen=True, slots=True)
class Holder:
    """A request that holds a place. Of several, `since` is larger for one that came later."""

    user: User
    since: int
    is_idle: bool = False


def whom_to_evict(newcomer: User, holders: Sequence[Holder]) -> int | None:
    """The index of the holder whose place a user's next request gets where all are taken; None if it must wait.

    Whoever else is idle gives its place up. Else a client does as long as it has two more than the newcomer's, of
    the youngest request of its user with the most; else a user of the same client, as long as it has two more.
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
    """What each of several names was given, in virtual time, which is that of who was given least and is present.

    Who comes later has a claim on no more than `claim` of what was given before.
    """

    def __init__(self, most_names: int, *, claim: float = 0.0) -> None:
        self._most_names = most_names
        self._claim = claim
        self._given: OrderedDict[str | bytes, float] = OrderedDict()
        self._now = 0.0

    def to(self, name: str | bytes) -> float:
        """What a name has been given."""
        least = self._now - self._claim
        return max(least, self._given.get(name, least))

    def note(self, name: str | bytes, cost: float, *, present: Iterable[str | bytes]) -> None:
        """Count what a name was given while some others were there to be given something."""
        begin = self.to(name)
        self._given[name] = begin + cost
        self._given.move_to_end(name)
        self._now = max(self._now, min([begin, *map(self.to, present)]))
        if len(self._given) > self._most_names:
            self._given.popitem(last=False)


class Turns:
    """Whose turn it is: of the users of the client that was given least, the one who was given least."""

    def __init__(self) -> None:
        self._clients = Given(MAX_CLIENTS)
        self._users: Remembered[str, Given] = Remembered(MAX_CLIENTS)

    def of(self, user: User) -> tuple[float, float]:
        """The smaller, the sooner."""
        return self._clients.to(user.client), self._within(user.client).to(user.name)

    def first(self, present: Iterable[User]) -> set[User]:
        """Of each client those users who are present and were given no more than others, but for `EVEN_TOKENS`."""
        turns = {user: self._within(user.client).to(user.name) for user in set(present)}
        least: dict[str, float] = {}
        for user, turn in turns.items():
            least[user.client] = min(turn, least.get(user.client, turn))
        return {user for user, turn in turns.items() if turn <= least[user.client] + EVEN_TOKENS}

    def note(self, user: User, cost: float, *, present: Iterable[User] = ()) -> None:
        """Count what a user was given while some, it or others, were there to be given something."""
        others = set(present)
        self._clients.note(user.client, cost, present={other.client for other in others})
        within = self._within(user.client)
        self._users.note(user.client, within)
        within.note(user.name, cost, present={other.name for other in others if other.client == user.client})

    def _within(self, client: str) -> Given:
        return self._users.get(client) or Given(MAX_USERS, claim=FIRST_TOKENS)


class FairQueue(Generic[_T]):
    """Requests that wait for a place, each until a time of its own."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[User, deque[tuple[_T, float]]] = OrderedDict()
        self._turns = Turns()

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, user: User, item: _T, *, until_s: float) -> bool:
        """Let a request wait; False if it may not."""
        of_client = sum(len(queue) for other, queue in self._waiting.items() if other.client == user.client)
        if len(self) >= MAX_WAITING or of_client >= MAX_WAITING_EACH:
            return False
        self._waiting.setdefault(user, deque()).append((item, until_s))
        return True

    def take(self) -> _T | None:
        """The next request, of the user whose turn it is; None if nobody waits."""
        if not self._waiting:
            return None
        item, _ = self._waiting[min(self._waiting, key=self._turns.of)].popleft()
        self._tidy()
        return item

    def note_given(self, user: User, cost: float) -> None:
        """Count what a user was given, waiting or not."""
        self._turns.note(user, cost, present=self._waiting)

    def take_expired(self, now_s: float) -> list[_T]:
        """Those that have waited long enough."""
        return self.take_where(lambda item, until_s: until_s <= now_s)

    def take_where(self, is_meant: Callable[[_T, float], bool]) -> list[_T]:
        """Those that a rule over the request and the time until which it waits means."""
        taken = [item for queue in self._waiting.values() for item, until_s in queue if is_meant(item, until_s)]
        for user, queue in self._waiting.items():
            self._waiting[user] = deque(entry for entry in queue if not is_meant(*entry))
        self._tidy()
        return taken

    def _tidy(self) -> None:
        for user in [user for user, queue in self._waiting.items() if not queue]:
            del self._waiting[user]
