"""Shares the passes of a node fairly between its clients. Pure.

Requests of one pass wait for each other, so that a client with many requests makes all passes longer. The share of
each client is the smallest number of requests of any client, and likewise within a client for each of its users.
The other requests are the crowd, which joins a pass when the cost of its earlier passes has been repaid.
"""

from collections import Counter, deque
from collections.abc import Iterable
from statistics import median
from typing import Final

from cosine_engine.curve import CostCurve
from cosine_p2p.fair_places import User

CROWD: Final = 1.25
"""Allowed average time of passes, relative to those of one client's share alone. Less than the factor of two that a
text may take next to a crowd, because other things slow it down too."""
MAX_JOINED: Final = 16
"""After this many passes with a crowd one is measured without it."""
MAX_OWED: Final = 32.0
"""Maximum debt of a crowd, in passes."""
LAST_ALONE: Final = 7
"""Number of passes without a crowd whose median is used."""


class Shares:
    """The remaining shares of the next pass. `present` has the user of each request.

    Each client has a share of `each` requests: the minimum over clients, where each user of a client counts with
    the minimum over its users.
    """

    def __init__(self, present: Iterable[User]) -> None:
        counts = Counter(present)
        fewest: dict[str, int] = {}
        for user, count in counts.items():
            fewest[user.client] = min(count, fewest.get(user.client, count))
        users = Counter(user.client for user in counts)
        self.each = min((users[client] * count for client, count in fewest.items()), default=0)
        self._left = dict.fromkeys(fewest, self.each)
        self._left_of_user = {user: fewest[user.client] for user in counts}

    def has(self, user: User) -> bool:
        """True if a further request of the user is within its share."""
        return self._left.get(user.client, 0) > 0 and self._left_of_user.get(user, 0) > 0

    def take(self, user: User) -> bool:
        """Add a request of the user. Returns False if it is beyond its share."""
        if not self.has(user):
            return False
        self._left[user.client] -= 1
        self._left_of_user[user] -= 1
        return True


class CrowdDebt:
    """The debt of crowds: seconds of passes beyond `CROWD` times the time of one client's share.

    That time is measured in passes without a crowd, relative to the cost curve, which lacks the overhead of
    requests.
    """

    def __init__(self, curve: CostCurve) -> None:
        self._curve = curve
        self._alone: deque[float] = deque(maxlen=LAST_ALONE)
        self._owed_s = 0.0
        self._joined = 0

    @property
    def may_join(self) -> bool:
        return self._owed_s <= 0.0 and self._joined < MAX_JOINED

    def note_pass(self, *, tokens: int, crowd_tokens: int, users: int, elapsed_s: float) -> None:
        """Note a pass with or without a crowd.

        tokens: Tokens of the pass, of which `crowd_tokens` were beyond the shares.
        users: Number of clients with a share.
        """
        share_tokens = max(1, tokens - crowd_tokens)
        share_s = self._curve.seconds(share_tokens)
        if crowd_tokens:
            self._joined += 1
        else:
            self._joined = 0
            self._alone.append(elapsed_s / share_s)
        slowness = median(self._alone) if self._alone else 1.0
        allowed_s = slowness * CROWD * self._curve.seconds(-(-share_tokens // users))
        if crowd_tokens:
            allowed_s = max(allowed_s, slowness * share_s)
            self._owed_s += max(0.0, elapsed_s - allowed_s)
        else:
            self._owed_s -= max(0.0, allowed_s - elapsed_s)
        self._owed_s = min(max(0.0, self._owed_s), MAX_OWED * allowed_s)
