"""The forms of one request, which are tried one after the other, and the verifiers of each."""

import asyncio
import logging
from collections.abc import Callable, Sequence

from cosine_p2p.directory.selection import Offer
from cosine_p2p.session.job import OtherVerifiers
from cosine_p2p.session.peer_search import Candidates, PeerSearch
from cosine_p2p.transport.patience import end_all
from cosine_protocol.errors import CosineError
from cosine_protocol.records import NodeRecord
from cosine_protocol.request import Request

logger = logging.getLogger(__name__)


def passes_s_of(records: Sequence[NodeRecord]) -> dict[str, float]:
    """Return the announced seconds per pass, by peer id."""
    return {record.peer_id: record.pass_us / 1e6 for record in records}


class Offers(OtherVerifiers):
    """The forms of a request that `candidates` serve, by `requests_of`.

    If those were found by an earlier run, the present ones are looked up meanwhile. End that with `close`.
    """

    def __init__(self, search: PeerSearch, candidates: Candidates, requests_of: Callable[..., list[Offer]]) -> None:
        self.candidates = candidates
        self._search = search
        self._requests_of = requests_of
        self._offers = self._offers_of(candidates)
        self._present: list[Offer] = []
        self._tried: list[Request] = []
        self._finding = asyncio.ensure_future(self._find_present()) if candidates.are_recalled else None

    def take(self) -> Offer | None:
        """Return the best form that was not taken yet; the other methods are about this one."""
        if not self.has_other_form:
            return None
        request, able = self._untried()[0]
        self._tried.append(request)
        self.other_numerics = {form.numerics for form, _ in self._offers} - {request.numerics}
        return request, able

    @property
    def has_other_form(self) -> bool:
        return bool(self._untried())

    async def present(self) -> dict[str, float]:
        if self._finding is not None:
            await asyncio.wait((self._finding,))
        return passes_s_of(next((able for form, able in self._present if form == self._tried[-1]), ()))

    async def found_again(self) -> dict[str, float]:
        request = self._tried[-1]
        needed_tokens = len(request.prompt) + request.max_new_tokens
        try:
            found = await self._search.find(is_anew=True)
        except CosineError as error:
            logger.info("no verifier was found to continue: %s", error)
            return {}
        of_target = [record for record in found.records if record.target_digest == request.target_digest]
        self.other_numerics = {record.numerics for record in of_target} - {request.numerics}
        return passes_s_of(
            [
                record
                for record in of_target
                if record.numerics == request.numerics and record.context_tokens >= needed_tokens
            ]
        )

    async def close(self) -> None:
        if self._finding is not None:
            await end_all([self._finding])

    def _offers_of(self, candidates: Candidates) -> list[Offer]:
        return self._requests_of(candidates.records, standing=candidates.standing)

    def _untried(self) -> list[Offer]:
        return [offer for offer in (*self._offers, *self._present) if offer[0] not in self._tried]

    async def _find_present(self) -> None:
        try:
            found = await self._search.find_present()
            self._present = self._offers_of(found)
            self.candidates = found
        except CosineError as error:
            logger.info("the verifiers of an earlier run were not found again: %s", error)
