"""How much of a verifier's time goes to audits: few at once, and so many tokens of each peer. Pure."""

from collections import Counter, OrderedDict
from collections.abc import Iterable
from typing import Final

MAX_AUDITS: Final = 2
"""A choice: audits at once, of all peers; they take what prompts leave of a pass."""
MAX_PEER_AUDITS: Final = 1
"""A choice: audits at once of one peer."""
TOKENS_PER_S: Final = 100.0
"""A choice: clients that audit 5 % of what they are given ask for so much only at 2,000 tokens a second."""
AHEAD_S: Final = 60.0
"""A choice: a peer may have audited in one go what it may in so long."""
RETRY_AFTER_S: Final = 2.0
"""A choice: an audit of a few hundred tokens takes about so long beside other requests."""
MAX_PEERS: Final = 1024
"""Bounds memory: peers whose audits are remembered; those that asked longest ago are forgotten first."""


class AuditQuota:
    """Remembers what peers had audited. Times never go back."""

    def __init__(self) -> None:
        self._paid_until_s: OrderedDict[str, float] = OrderedDict()

    def wait_s(self, peer_id: str, under_way: Iterable[str], *, now_s: float) -> float:
        """Seconds until a peer may ask, 0 if it may now; `under_way` are the peers whose audits have not ended."""
        asked = Counter(under_way)
        if asked.total() >= MAX_AUDITS or asked[peer_id] >= MAX_PEER_AUDITS:
            return RETRY_AFTER_S
        return max(0.0, self._paid_until_s.get(peer_id, now_s) - now_s - AHEAD_S)

    def note(self, peer_id: str, *, tokens: int, now_s: float) -> None:
        """Count an audit of so many tokens."""
        paid_s = max(now_s, self._paid_until_s.pop(peer_id, now_s))
        self._paid_until_s[peer_id] = paid_s + tokens / TOKENS_PER_S
        if len(self._paid_until_s) > MAX_PEERS:
            self._paid_until_s.popitem(last=False)
