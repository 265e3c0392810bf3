"""The look-up of drafters for one request, and the choice among them by the route of their drafts."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cosine_p2p.directory.distances import Distances
from cosine_p2p.directory.recent_finds import RecentFinds
from cosine_p2p.directory.selection import Chance, pick_drafters, pick_pupil
from cosine_p2p.request.options import ClientOptions, shares_feedback
from cosine_p2p.session.delegation import may_delegate
from cosine_p2p.strategy.base import StrategyKind
from cosine_p2p.transport.link import PeerLinks
from cosine_p2p.trust.mandates import Coordination, Mandates
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_protocol.errors import ClockOff, PeerLost
from cosine_protocol.records import NodeRecord, Role

MAX_ASKED_DRAFTERS: Final = 8
"""Default maximum. Each reads the end of the prompt, and three are kept: eight included the expert of each prompt
of the embedded family (decision 2)."""
WANTED_DRAFTERS: Final = 16 * MAX_ASKED_DRAFTERS  # Bounds a look-up in a large directory (docs/design.md).

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AskedDrafters:
    """The drafters to ask, and the author number of the pupil, which only learns, 0 for none."""

    records: tuple[NodeRecord, ...]
    pupil: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterSearch:
    """Finds drafters for a request with some options. Times are from the event loop's clock."""

    finds: RecentFinds
    links: PeerLinks
    mandates: Mandates | None
    failures: PeerFailures
    distances: Distances
    strategy: StrategyKind
    options: ClientOptions

    @property
    def limit(self) -> int:
        given = self.options.get("max_drafters")
        return MAX_ASKED_DRAFTERS if given is None else given

    @property
    def _wanted(self) -> int | None:
        return None if self.options["trust"] else max(WANTED_DRAFTERS, self.limit)

    async def look_up(self, target: str) -> list[NodeRecord]:
        """Return the drafters of a target by its name; none if the directory does not answer."""
        if not self.strategy.wants_drafters or not self.limit:
            return []
        try:
            return await self.finds.find(Role.DRAFTER, target, wanted=self._wanted)
        except (PeerLost, ClockOff) as lost:
            logger.warning("no drafters could be looked up: %s", lost)
            return []

    def look_out(self, target: str, *, asked: int) -> None:
        """Look up new drafters for the next request, if fewer than `limit` were asked."""
        if self.strategy.wants_drafters and asked < self.limit:
            self.finds.begin_renewal(Role.DRAFTER, target, wanted=self._wanted)

    def choose(
        self, found: Sequence[NodeRecord], verifier: NodeRecord, *, chance: Chance, now_s: float
    ) -> AskedDrafters:
        """Return the drafters to ask for a request to a verifier, without those that failed recently.

        If the client may delegate, those near the verifier are preferred: a client that coordinates nevertheless is
        near it too.
        """
        avoided = self.failures.avoided(now_s)
        able = [record for record in found if record.peer_id not in avoided]
        if may_delegate(self.mandates, self.strategy, Coordination(self.options["coordination"])):
            rtts_s = self.distances.by_verifier(able, verifier, self.links, now_s=now_s)
        else:
            rtts_s = self.distances.by_client(able, verifier, self.links)
        asked = pick_drafters(
            able,
            tokenizer_digest=verifier.tokenizer_digest,
            limit=self.limit,
            chance=chance,
            trust=self.options["trust"],
            rtts_s=rtts_s,
        )
        return self._with_pupil(asked, able, verifier, chance)

    def _with_pupil(
        self, asked: tuple[NodeRecord, ...], able: Sequence[NodeRecord], verifier: NodeRecord, chance: Chance
    ) -> AskedDrafters:
        """With feedback, sometimes add a pupil, unless it would replace the only drafter of an expertise."""
        if not asked or not shares_feedback(self.options):
            return AskedDrafters(asked)
        if self.options.get("max_drafters") is not None and len(asked) == self.limit:
            *kept, last = asked
            if all(record.expertise != last.expertise for record in kept):
                return AskedDrafters(asked)
        else:
            kept = list(asked)
        pupil = pick_pupil(able, verifier, asked=asked, chance=chance, trust=self.options["trust"])
        return AskedDrafters((*kept, pupil), len(kept) + 1) if pupil is not None else AskedDrafters(asked)
