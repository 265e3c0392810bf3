"""The passes of a node, shared fairly between its clients: what one asks for beyond its share waits. Pure.

Requests of one pass wait for each other, so those of a client that asks for many at once make all passes longer.
Each client's share is as many requests as the client with the fewest has, and where users share a client, each has
as many of those as the one with the fewest; the others are the crowd, which joins a pass whenever all that it has
cost so far is paid for.
"""

from collections import Counter, deque
from collections.abc import Iterable
from statistics import median
from typing import Final

from cosine_node.engine.curve import CostCurve
from cosine_node.passes.fair_places import User

CROWD: Final = 1.25
"""How many times longer passes may take, on average, than those of one client's share alone. Under the
twice that a text may take beside a crowd, for there is more that slows it down."""
MAX_JOINED: Final = 16
"""After so many passes with a crowd one goes without it, which shows anew how long those take."""
MAX_OWED: Final = 32.0
"""Passes whose time a crowd owes at most, whatever one that it joined took."""
LAST_ALONE: Final = 7
"""Passes without a crowd whose median counts, so that one that waited for the processor does not."""


class Shares:
    """What is left to each user of the next pass; requests are told by their users.

    Of those that are `present` each client has as many in it as the one with the fewest, which is `each`; each user
    of a client counts with as many as its user with the fewest.
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
        """True if one more request of the user is within its share."""
        return self._left.get(user.client, 0) > 0 and self._left_of_user.get(user, 0) > 0

    def take(self, user: User) -> bool:
        """Give one more request of the user a place; False if that is beyond its share."""
        if not self.has(user):
            return False
        self._left[user.client] -= 1
        self._left_of_user[user] -= 1
        return True


class CrowdDebt:
    """What crowds owe the passes that they joined: seconds beyond `CROWD` times what one client's share takes.

    How long that is, is measured in passes without a crowd, next to what the device's curve says of them: a request
    costs more than as many tokens of another, and there is work to do for it beside the pass.
    """

    def __init__(self, curve: CostCurve) -> None:
        self._curve = curve
        self._alone: deque[float] = deque(maxlen=LAST_ALONE)
        self._owed_s = 0.0
        self._joined = 0

    @property
    def may_join(self) -> bool:
        """True if the crowd may join the next pass."""
        return self._owed_s <= 0.0 and self._joined < MAX_JOINED

    def note_pass(self, *, tokens: int, crowd_tokens: int, users: int, elapsed_s: float) -> None:
        """Take into account how long a pass took that a crowd had joined, or that it was left out of.

        It was over the shares of so many users, and `crowd_tokens` of its tokens were beyond their shares.
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
