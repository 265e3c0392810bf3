"""The offers of a look-up that runs while its request begins with verifiers of an earlier run."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection

from cosine_p2p.directory.selection import Offer
from cosine_p2p.session.probation import Candidates
from cosine_p2p.transport.patience import end_all
from cosine_protocol.errors import CosineError
from cosine_protocol.request import Request

logger = logging.getLogger(__name__)


class LaterOffers:
    """The offers of the look-up `find`, none if it fails. End it with `close`."""

    def __init__(
        self, find: Callable[[], Awaitable[Candidates]], offers_of: Callable[[Candidates], list[Offer]]
    ) -> None:
        self._find, self._offers_of = find, offers_of
        self._offers: list[Offer] = []
        self.candidates: Candidates | None = None
        self._finding = asyncio.ensure_future(self._look_up())

    async def find_for(self, request: Request) -> dict[str, float]:
        """Return the verifiers of this form of the request, by peer id, with announced seconds per pass."""
        await asyncio.wait((self._finding,))
        able = next((able for form, able in self._offers if form == request), ())
        return {record.peer_id: record.pass_us / 1e6 for record in able}

    def others(self, tried: Collection[Request]) -> list[Offer]:
        return [offer for offer in self._offers if offer[0] not in tried]

    async def close(self) -> None:
        await end_all([self._finding])

    async def _look_up(self) -> None:
        try:
            found = await self._find()
            self._offers = self._offers_of(found)
            self.candidates = found
        except CosineError as error:
            logger.info("the verifiers of an earlier run were not found again: %s", error)
