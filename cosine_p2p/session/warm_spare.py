"""Keeps the prefix of a long request in the cache of a second verifier, so that it can go on at once."""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from cosine_p2p.session.session import Session
from cosine_p2p.session.stall import LONE_S
from cosine_p2p.transport.link import Delivery, PeerLink, PeerLinks, check_knows
from cosine_protocol import messages as m
from cosine_protocol.errors import PeerLost
from cosine_protocol.protocols import VERIFY

logger = logging.getLogger(__name__)

# Each warming costs the spare a pass and a token that nobody reads; without it a failover feeds all that the spare
# lacks. After a prompt of 2,000 tokens a text goes on after 0.2 s in place of 5.0 (docs/generate.md), so that of
# fewer than 256 there is half a second to save. 64 are one short pass: half as many would warm twice as often to
# save a part of it.
LEAST_TOKENS: Final = 256  # A shorter prefix is not kept warm.
EVERY_TOKENS: Final = LEAST_TOKENS // 4  # Committed since the last warming, which makes the next one due.
LOOK_EVERY_S: Final = 0.25  # An idle look costs nothing, and hardly a verifier commits `EVERY_TOKENS` in that time.
WARM_WITHIN_S: Final = LONE_S  # As long as a sole verifier is waited for: a slower one would not help.


class WarmSpare:
    """A session's second verifier: it gets prompt and commits, and commits one token each time, unread."""

    def __init__(self, session: Session, links: PeerLinks) -> None:
        self._session = session
        self._links = links
        self._given_up: set[str] = set()

    async def run(self) -> None:
        """Keep it warm until cancelled; one that fails is replaced."""
        spare, warm_tokens = "", 0
        while True:
            output = self._session.output
            is_due = spare in self._session.serving or spare == "" or len(output) - warm_tokens >= EVERY_TOKENS
            # The first commit shows that somebody serves the request.
            if output and is_due and len(self._session.job.request.prompt) + len(output) >= LEAST_TOKENS:
                spare, warm_tokens = self._next_spare(), len(output)
                if spare and not await self._warm(spare):
                    self._given_up.add(spare)
                    spare = ""
            await asyncio.sleep(LOOK_EVERY_S)

    def _next_spare(self) -> str:
        """The verifier that is asked next after those that serve; "" if there is none."""
        taken = {*self._session.serving, *self._given_up}
        return next((peer_id for peer_id in self._session.job.verifiers if peer_id not in taken), "")

    async def _warm(self, peer_id: str) -> bool:
        number = next(self._session.job.more_numbers, None)
        if number is None:
            return False
        try:
            async with asyncio.timeout(WARM_WITHIN_S):
                link = await self._links.get(peer_id, VERIFY)
                await check_knows(link, self._session.job.request)
                await self._commit_one(link, number)
        except (PeerLost, TimeoutError) as error:
            logger.debug("%s cannot be kept warm: %s", peer_id, error)
            return False
        return True

    async def _commit_one(self, link: PeerLink, number: int) -> None:
        """Have a verifier feed all that is committed and commit one token. Raises `PeerLost`."""
        job, has_ended = self._session.job, asyncio.get_running_loop().create_future()

        def receive(delivery: Delivery) -> None:
            if not isinstance(delivery.message, m.Opened) and not has_ended.done():
                has_ended.set_result(delivery)

        link.subscribe(number, receive)
        try:
            output = tuple(self._session.output)
            if not link.post(m.Open(number, job.request, output, m.Pacing.PLAIN, (), job.cache_scope)):
                raise PeerLost(link.peer_id, "it reads too slowly")
            delivery: Delivery = await has_ended
        finally:
            link.unsubscribe(number)
            with suppress(PeerLost):
                link.post(m.Cancel(number))
        if not isinstance(delivery.message, m.Commit | m.Final):
            raise PeerLost(link.peer_id, delivery.lost or f"it answered with {type(delivery.message).__name__}")
