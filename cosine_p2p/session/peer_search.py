"""The look-up of peers for one request, the choice among them, and further verifiers for a session."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cosine_p2p.directory.recent_finds import RecentFinds
from cosine_p2p.directory.selection import Chance, pick_drafters, rank_verifiers
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.session.auditing import Judge
from cosine_p2p.session.delegation import may_delegate
from cosine_p2p.session.job import AnnouncedVerifier, OtherVerifiers, Shared
from cosine_p2p.session.plan import Ask, RequestForm, forms_of
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.text.target import Target, settled_digest
from cosine_p2p.transport.patience import end_all
from cosine_p2p.trust.mandates import Coordination
from cosine_protocol.errors import ClockOff, CosineError, GenerationFailed, PeerLost
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.request import Request
from cosine_protocol.verify import VERIFY

WANTED_VERIFIERS: Final = 32  # Bounds what a look-up reads; a sample of this size is enough to choose from.
MAX_ASKED_DRAFTERS: Final = 8
"""Default maximum. Each reads the end of the prompt, and three are kept: eight included the expert of each prompt
of the embedded family (decision 2)."""
WANTED_DRAFTERS: Final = 16 * MAX_ASKED_DRAFTERS  # Bounds a look-up in a large directory (docs/design.md).

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The verifiers of a target, best first, with level and measured seconds of a pass by peer id."""

    records: Sequence[NodeRecord]
    standing: Mapping[str, int]
    passes_s: Mapping[str, float]
    are_recalled: bool = False

    def judges(self) -> dict[str, Judge]:
        return {record.peer_id: Judge.of(record) for record in self.records}


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSearch:
    """Finds a target's peers for a request with some options. Times are from the event loop's clock."""

    finds: RecentFinds
    shared: Shared
    choose_digest: Callable[[str, Mapping[bytes, int]], bytes]
    target: Target
    named: str
    """The target as the user names it."""
    strategy: StrategyKind
    options: ClientOptions
    chance: Chance

    async def find(
        self, *, is_anew: bool = False, takes_recalled: bool = False, patience_s: float = 0.0
    ) -> Candidates:
        """Return suitable verifiers, best first, at least one.

        With `takes_recalled` those of an earlier run are used, if any is suitable and the digest is known. Raises
        `GenerationFailed`, `UsageError`, and as `RecentFinds.find`.
        """
        look = self.finds.find_anew if is_anew else partial(self.finds.find_some, patience_s=patience_s)
        find = partial(look, Role.VERIFIER, self.target.name, wanted=self._wanted)
        found = await find()
        if self.finds.is_recalled(Role.VERIFIER, self.target.name, wanted=self._wanted):
            digest = self.target.digest or settled_digest(self.target.name)
            known = [record for record in found if record.target_digest == digest]
            recalled = self._ranked(known, are_recalled=True)
            if takes_recalled and recalled.records:
                return recalled
            await self._renew()
            found = await find()
        if found:
            digest = self.target.digest or self.choose_digest(
                self.target.name, Counter(record.target_digest for record in found)
            )
            found = [record for record in found if record.target_digest == digest]
        if not found:
            raise GenerationFailed(
                f"No verifier serves {self.named!r} in this network; check --initial-peers, or start one with "
                f"`cosine-node verify --model {self.named}`."
            )
        candidates = self._ranked(found)
        if not candidates.records:
            offered = ", ".join(sorted({f"{record.peer_id} ({record.numerics})" for record in found}))
            raise GenerationFailed(f"No verifier of {self.named!r} fits the options; available: {offered}.")
        return candidates

    async def find_present(self) -> Candidates:
        """Return those of the look-up that has begun with the use of an earlier run's. Raises as `find`."""
        await self._renew()
        return await self.find()

    async def _renew(self) -> None:
        await self.finds.look_again(Role.VERIFIER, self.target.name, wanted=self._wanted)

    @property
    def _wanted(self) -> int | None:
        """Maximum number of records of a look-up; None if the options select verifiers that a sample may lack."""
        named = (self.options.get("verifier"), self.options["trust"], self.options.get("dtype"), self.target.digest)
        return None if any(named) else WANTED_VERIFIERS

    def _ranked(self, found: Sequence[NodeRecord], *, are_recalled: bool = False) -> Candidates:
        now_s = asyncio.get_running_loop().time()
        peer_ids = [record.peer_id for record in found]
        passes_s = self.shared.speeds.passes_s(peer_ids, now_s=now_s)
        standing = self.shared.standings.levels(peer_ids, now_s=now_s)
        ranked = rank_verifiers(
            found,
            chance=self.chance,
            dtype=self.options.get("dtype"),
            only=self.options.get("verifier"),
            trust=self.options["trust"],
            rtts_s=self.shared.distances.measured(found, self.shared.links, VERIFY),
            passes_s=passes_s,
            standing=standing,
            avoided=self.shared.failures.avoided(now_s) | self.shared.standings.rejected(now_s),
        )
        return Candidates(ranked, standing, passes_s, are_recalled)

    @property
    def drafter_limit(self) -> int:
        given = self.options.get("max_drafters")
        return MAX_ASKED_DRAFTERS if given is None else given

    @property
    def _wanted_drafters(self) -> int | None:
        return None if self.options["trust"] else max(WANTED_DRAFTERS, self.drafter_limit)

    async def look_up_drafters(self) -> list[NodeRecord]:
        """Return the target's drafters by its name; none if the directory does not answer."""
        if not self.strategy.wants_drafters or not self.drafter_limit:
            return []
        try:
            return await self.finds.find(Role.DRAFTER, self.target.name, wanted=self._wanted_drafters)
        except (PeerLost, ClockOff) as lost:
            logger.warning("no drafters could be looked up: %s", lost)
            return []

    def look_out_for_drafters(self, *, asked: int) -> None:
        """Look up new drafters for the next request, if fewer than `drafter_limit` were asked."""
        if self.strategy.wants_drafters and asked < self.drafter_limit:
            self.finds.begin_renewal(Role.DRAFTER, self.target.name, wanted=self._wanted_drafters)

    def choose_drafters(
        self, found: Sequence[NodeRecord], verifier: NodeRecord, *, now_s: float
    ) -> tuple[NodeRecord, ...]:
        """Return the drafters to ask for a request to a verifier, without those that failed recently.

        If the client may delegate, those near the verifier are preferred: a client that coordinates nevertheless is
        near it too.
        """
        avoided = self.shared.failures.avoided(now_s)
        able = [record for record in found if record.peer_id not in avoided]
        distances, links = self.shared.distances, self.shared.links
        if may_delegate(self.shared.mandates, self.strategy, Coordination(self.options["coordination"])):
            rtts_s = distances.by_verifier(able, verifier, links, now_s=now_s)
        else:
            rtts_s = distances.by_client(able, verifier, links)
        return pick_drafters(
            able,
            tokenizer_digest=verifier.tokenizer_digest,
            limit=self.drafter_limit,
            chance=self.chance,
            trust=self.options["trust"],
            rtts_s=rtts_s,
        )


class Forms(OtherVerifiers):
    """The forms of a request, which are tried one after the other, and further verifiers for the present one.

    If the verifiers in `candidates` were found by an earlier run, present ones are looked up meanwhile. End that
    with `close`.
    """

    def __init__(self, search: PeerSearch, candidates: Candidates, ask: Ask) -> None:
        """Raises as `forms_of`."""
        self.candidates = candidates
        self.search = search
        self._ask = ask
        self._forms = forms_of(ask, candidates.records, standing=candidates.standing)
        self._present: list[RequestForm] = []
        self._tried: list[Request] = []
        self._finding = asyncio.ensure_future(self._find_present()) if candidates.are_recalled else None

    def take(self) -> RequestForm | None:
        """Return the best form that was not taken yet; the other methods are about this one."""
        form = next(self._untried(), None)
        if form is not None:
            self._tried.append(form.request)
            self.other_numerics = {one.request.numerics for one in self._forms} - {form.request.numerics}
        return form

    @property
    def has_other_form(self) -> bool:
        return any(self._untried())

    async def present(self) -> dict[str, AnnouncedVerifier]:
        if self._finding is not None:
            await asyncio.wait((self._finding,))
        found = (form.verifiers for form in self._present if form.request == self._tried[-1])
        return AnnouncedVerifier.by_peer(next(found, ()))

    async def found_again(self) -> dict[str, AnnouncedVerifier]:
        request = self._tried[-1]
        needed_tokens = len(request.prompt) + request.max_new_tokens
        try:
            found = await self.search.find(is_anew=True)
        except CosineError as error:
            logger.info("no verifier was found to continue: %s", error)
            return {}
        of_target = [record for record in found.records if record.target_digest == request.target_digest]
        self.other_numerics = {record.numerics for record in of_target} - {request.numerics}
        alike = [record for record in of_target if record.numerics == request.numerics]
        return AnnouncedVerifier.by_peer([record for record in alike if record.context_tokens >= needed_tokens])

    async def close(self) -> None:
        if self._finding is not None:
            await end_all([self._finding])

    def _untried(self) -> Iterator[RequestForm]:
        return (form for form in (*self._forms, *self._present) if form.request not in self._tried)

    async def _find_present(self) -> None:
        try:
            found = await self.search.find_present()
            self._present = forms_of(self._ask, found.records, standing=found.standing)
            self.candidates = found
        except CosineError as error:
            logger.info("the verifiers of an earlier run were not found again: %s", error)
