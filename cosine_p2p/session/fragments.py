"""Fragments on their way in: a bounded queue in which their signatures are checked off the event loop."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from cosine_p2p.request.offload import Offload
from cosine_p2p.transport.link import Delivery
from cosine_protocol import messages as m
from cosine_protocol.errors import BadSignature
from cosine_protocol.identity import verify

MAX_WAITING_FRAGMENTS: Final = 64
"""Bounds memory, for each drafter: far more than arrive while one signature is checked."""


class FragmentGate:
    """Lets fragments of one request through whose signature holds.

    Drafters come one after the other, so that one that floods it loses the oldest of its own only. `take` gets
    every good fragment with its sender, `refuse` the sender of a bad one, of which nothing more is taken.
    """

    def __init__(
        self,
        d_0: bytes,
        offload: Offload,
        *,
        take: Callable[[str, m.Fragment, m.Draft], None],
        refuse: Callable[[str, str], None],
    ) -> None:
        self._d_0 = d_0
        self._offload = offload
        self._take = take
        self._refuse = refuse
        self._waiting: dict[str, deque[Delivery]] = {}
        self._refused: set[str] = set()
        self._has_waiting = asyncio.Event()

    def put(self, delivery: Delivery) -> None:
        if delivery.peer_id not in self._refused:
            self._waiting.setdefault(delivery.peer_id, deque(maxlen=MAX_WAITING_FRAGMENTS)).append(delivery)
            self._has_waiting.set()

    async def run(self) -> None:
        """Check what comes until cancelled: the oldest fragment of one drafter, then of the next."""
        while True:
            while not self._waiting:
                self._has_waiting.clear()
                await self._has_waiting.wait()
            peer_id = next(iter(self._waiting))
            waiting = self._waiting.pop(peer_id)
            delivery = waiting.popleft()
            if waiting:
                self._waiting[peer_id] = waiting
            fragment, draft = delivery.message, delivery.body
            if not isinstance(fragment, m.Fragment) or not isinstance(draft, m.Draft):
                continue
            check = partial(
                verify,
                kind="fragment",
                signer=peer_id,
                digest=self._d_0,
                body=fragment.body,
                signature=fragment.signature,
            )
            try:
                await self._offload(check)
            except BadSignature as error:
                self._refused.add(peer_id)
                self._waiting.pop(peer_id, None)
                self._refuse(peer_id, str(error))
            else:
                self._take(peer_id, fragment, draft)
