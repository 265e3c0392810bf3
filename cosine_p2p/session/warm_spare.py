"""Keeps the prefix of a long request in the cache of a second verifier, so that it can continue at once."""

import asyncio
import logging
from contextlib import suppress
from typing import Final

from cosine_p2p.session.job import Shared
from cosine_p2p.session.session import Session
from cosine_p2p.session.stall import LONE_S
from cosine_p2p.transport.link import Delivery, PeerLink, check_knows
from cosine_protocol.errors import PeerLost
from cosine_protocol.stream import Final as FinalMessage
from cosine_protocol.verify import VERIFY, Cancel, Commit, Open, Opened, Pacing

logger = logging.getLogger(__name__)

# Each warming costs the spare a pass and an unread token; without it the new verifier must prefill. After a prompt
# of 2,000 tokens a text continues after 0.2 s instead of 5.0 (docs/generate.md), so that below 256 tokens at most
# half a second is saved. 64 tokens are one short pass.
LEAST_TOKENS: Final = 256  # A shorter prefix is not kept warm.
EVERY_TOKENS: Final = LEAST_TOKENS // 4  # Number of new tokens after which the next warming is due.
LOOK_EVERY_S: Final = 0.25  # Few verifiers commit `EVERY_TOKENS` in that time.
WARM_WITHIN_S: Final = LONE_S  # The limit for a sole verifier: a slower spare would not help.


class WarmSpare:
    """A session's second verifier: it gets the prompt and commits, and commits one unread token each time."""

    def __init__(self, session: Session, shared: Shared) -> None:
        self._session = session
        self._shared = shared
        self._given_up: set[str] = set()

    async def run(self) -> None:
        """Keep a spare warm until cancelled; one that fails is replaced."""
        spare, warm_tokens = "", 0
        while True:
            output = self._session.output
            is_due = spare in self._session.serving or spare == "" or len(output) - warm_tokens >= EVERY_TOKENS
            # The first commit shows that a verifier serves the request.
            if output and is_due and len(self._session.job.request.prompt) + len(output) >= LEAST_TOKENS:
                taken = {*self._session.serving, *self._given_up}
                spare = next((peer_id for peer_id in self._session.verifiers if peer_id not in taken), "")
                warm_tokens = len(output)
                if spare and not await self._warm(spare):
                    self._given_up.add(spare)
                    spare = ""
            await asyncio.sleep(LOOK_EVERY_S)

    async def _warm(self, peer_id: str) -> bool:
        try:
            async with asyncio.timeout(WARM_WITHIN_S):
                link = await self._shared.links.get(peer_id, VERIFY)
                await check_knows(link, self._session.job.request)
                await self._commit_one(link, next(self._shared.numbers))
        except (PeerLost, TimeoutError) as error:
            logger.debug("%s cannot be kept warm: %s", peer_id, error)
            return False
        return True

    async def _commit_one(self, link: PeerLink, number: int) -> None:
        """Have a verifier prefill all committed tokens and commit one more. Raises `PeerLost`."""
        job, has_ended = self._session.job, asyncio.get_running_loop().create_future()

        def receive(delivery: Delivery) -> None:
            if not isinstance(delivery.message, Opened) and not has_ended.done():
                has_ended.set_result(delivery)

        link.subscribe(number, receive)
        try:
            output = tuple(self._session.output)
            if not link.post(Open(number, job.request, output, Pacing.PLAIN, (), job.cache_scope)):
                raise PeerLost(link.peer_id, "it reads too slowly")
            delivery: Delivery = await has_ended
        finally:
            link.unsubscribe(number)
            with suppress(PeerLost):
                link.post(Cancel(number))
        if not isinstance(delivery.message, Commit | FinalMessage):
            raise PeerLost(link.peer_id, delivery.lost or f"it answered with {type(delivery.message).__name__}")
