"""The places of a node, shared fairly between its clients: who gives one up, and who waits for one. Pure.

No client keeps more places than another one lacks, and of those that wait the one comes next that has been given
least (start-time fair queueing: Goyal, Vin and Cheng 1996, doi:10.1145/248156.248171).
"""

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

IDLE_WANTED_S: Final = 4.0
"""Where others want its place, an idle request has as long as a peer may be silent."""
MAX_WAITING: Final = 64
"""Bounds memory: requests that wait, of all clients."""
MAX_WAITING_EACH: Final = 8
"""Requests of one client that wait."""
MAX_CLIENTS: Final = 1024
"""Bounds memory: clients whose share is remembered; those given something longest ago are forgotten first."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Holder:
    """A request that holds a place. Of several, `since` is larger for one that came later."""

    client: str
    since: int
    is_idle: bool = False


def whom_to_evict(newcomer: str, holders: Sequence[Holder]) -> int | None:
    """The index of the holder whose place a client's next request gets where all are taken; None if it must wait.

    Whoever else is idle gives its place up. Else a client does as long as it has two more than the newcomer, of its
    youngest request.
    """
    idle = [index for index, holder in enumerate(holders) if holder.is_idle and holder.client != newcomer]
    if idle:
        return min(idle, key=lambda index: holders[index].since)
    counts = Counter(holder.client for holder in holders)
    most = max(counts.values(), default=0)
    if most < counts[newcomer] + 2:
        return None
    crowd = [index for index, holder in enumerate(holders) if counts[holder.client] == most]
    return max(crowd, key=lambda index: holders[index].since)


class FairQueue(Generic[_T]):
    """Requests that wait for a place, each until a time of its own."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[str, deque[tuple[_T, float]]] = OrderedDict()
        self._given: OrderedDict[str, float] = OrderedDict()
        self._turn = 0.0

    def __len__(self) -> int:
        return sum(map(len, self._waiting.values()))

    def put(self, client: str, item: _T, *, until_s: float) -> bool:
        """Let a request wait; False if it may not."""
        mine = self._waiting.get(client, ())
        if len(self) >= MAX_WAITING or len(mine) >= MAX_WAITING_EACH:
            return False
        self._waiting.setdefault(client, deque()).append((item, until_s))
        return True

    def take(self) -> _T | None:
        """The next request, of the client that was given least so far; None if nobody waits."""
        if not self._waiting:
            return None
        client = min(self._waiting, key=lambda name: self._given.get(name, self._turn))
        item, _ = self._waiting[client].popleft()
        self._tidy()
        return item

    def note_given(self, client: str, cost: float) -> None:
        """Count what a client was given, waiting or not; who comes later has no claim on what was before."""
        begin = max(self._turn, self._given.pop(client, self._turn))
        self._given[client] = begin + cost
        others = [self._given.get(name, self._turn) for name in self._waiting]
        self._turn = max(self._turn, min([begin, *others]))
        if len(self._given) > MAX_CLIENTS:
            self._given.popitem(last=False)

    def take_expired(self, now_s: float) -> list[_T]:
        """Those that have waited long enough."""
        return self.take_where(lambda item, until_s: until_s <= now_s)

    def take_where(self, is_meant: Callable[[_T, float], bool]) -> list[_T]:
        """Those that a rule over the request and the time until which it waits means."""
        taken = [item for queue in self._waiting.values() for item, until_s in queue if is_meant(item, until_s)]
        for client, queue in self._waiting.items():
            self._waiting[client] = deque(entry for entry in queue if not is_meant(*entry))
        self._tidy()
        return taken

    def _tidy(self) -> None:
        for client in [client for client, queue in self._waiting.items() if not queue]:
            del self._waiting[client]
