"""The look-up of verifiers and drafters for one request, and the choice among them."""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from cosine_p2p.directory.distances import Distances
from cosine_p2p.directory.recent_finds import RecentFinds
from cosine_p2p.directory.selection import Chance, pick_drafters, rank_verifiers
from cosine_p2p.request.options import ClientOptions
from cosine_p2p.session.auditing import Auditing, Judge
from cosine_p2p.session.delegation import may_delegate
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.text.target import Target, settled_digest
from cosine_p2p.transport.link import PeerLinks
from cosine_p2p.trust.mandates import Coordination, Mandates
from cosine_p2p.trust.peer_memory import PeerSpeeds
from cosine_protocol.errors import ClockOff, GenerationFailed, PeerLost
from cosine_protocol.records import ALL_TARGETS, NodeRecord, Role
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
    links: PeerLinks
    choose_digest: Callable[[str, Mapping[bytes, int]], bytes]
    mandates: Mandates | None
    speeds: PeerSpeeds
    distances: Distances
    auditing: Auditing
    target: Target
    strategy: StrategyKind
    options: ClientOptions
    chance: Chance

    async def find(self, *, is_anew: bool = False, takes_recalled: bool = False) -> Candidates:
        """Return suitable verifiers, best first, at least one.

        With `takes_recalled` those of an earlier run are used, if any is suitable and the digest is known. Raises
        `GenerationFailed`, `UsageError`, and as `Directory.find`.
        """
        look = self.finds.find_anew if is_anew else self.finds.find_some
        find = partial(look, Role.VERIFIER, self.target.name, wanted=self._wanted)
        found = await find()
        if self.finds.is_recalled(Role.VERIFIER, self.target.name, wanted=self._wanted):
            digest = self.target.digest or settled_digest(self.target.name)
            known = [record for record in found if record.target_digest == digest]
            recalled = self._ranked(known, are_recalled=True)
            if takes_recalled and recalled.records:
                return recalled
            await self._renewed()
            found = await find()
        if found:
            digest = self.target.digest or self.choose_digest(
                self.target.name, Counter(record.target_digest for record in found)
            )
            found = [record for record in found if record.target_digest == digest]
        named = self.options.get("target") or ALL_TARGETS
        if not found:
            raise GenerationFailed(
                f"No verifier serves {named!r} in this network; check --initial-peers, or start one with "
                f"`cosine-node verify --model {named}`."
            )
        candidates = self._ranked(found)
        if not candidates.records:
            offered = ", ".join(sorted({f"{record.peer_id} ({record.numerics})" for record in found}))
            raise GenerationFailed(f"No verifier of {named!r} fits the options; available: {offered}.")
        return candidates

    async def find_present(self) -> Candidates:
        """Return those of the look-up that has begun with the use of an earlier run's. Raises as `find`."""
        await self._renewed()
        return await self.find()

    async def _renewed(self) -> None:
        await self.finds.look_again(Role.VERIFIER, self.target.name, wanted=self._wanted)

    @property
    def _wanted(self) -> int | None:
        """Maximum number of records of a look-up; None if the options select verifiers that a sample may lack."""
        named = (self.options.get("verifier"), self.options["trust"], self.options.get("dtype"), self.target.digest)
        return None if any(named) else WANTED_VERIFIERS

    def _ranked(self, found: Sequence[NodeRecord], *, are_recalled: bool = False) -> Candidates:
        now_s = asyncio.get_running_loop().time()
        peer_ids = [record.peer_id for record in found]
        passes_s = self.speeds.passes_s(peer_ids, now_s=now_s)
        standing = self.auditing.standings.levels(peer_ids, now_s=now_s)
        ranked = rank_verifiers(
            found,
            chance=self.chance,
            dtype=self.options.get("dtype"),
            only=self.options.get("verifier"),
            trust=self.options["trust"],
            rtts_s=self.distances.measured(found, self.links, VERIFY),
            passes_s=passes_s,
            standing=standing,
            avoided=self.auditing.failures.avoided(now_s) | self.auditing.convicted,
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
        avoided = self.auditing.failures.avoided(now_s)
        able = [record for record in found if record.peer_id not in avoided]
        if may_delegate(self.mandates, self.strategy, Coordination(self.options["coordination"])):
            rtts_s = self.distances.by_verifier(able, verifier, self.links, now_s=now_s)
        else:
            rtts_s = self.distances.by_client(able, verifier, self.links)
        return pick_drafters(
            able,
            tokenizer_digest=verifier.tokenizer_digest,
            limit=self.drafter_limit,
            chance=self.chance,
            trust=self.options["trust"],
            rtts_s=rtts_s,
        )
