"""The stages of a target as a head knows them, and its choice of a chain among them. Pure.

Theory of operation
-------------------
Stages announce their layers, pass time, load and room. What the head has measured precedes that (`measured`), and
what its checks have found decides which stages it may use (`disputes`). `best` chooses the chain of least expected
time among those with the fewest suspects. A stage that failed is unused for `GONE_S`, unless it has announced
itself since, and then a last resort. The first chain determines numerics and pool size of all later ones.
"""

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median_low
from typing import Final

from cosine_engine.curve import CostCurve
from cosine_node.chains.disputes import Disputes
from cosine_node.chains.measured import SHARED, LinkSpeeds, StageSpeeds, Suspicions
from cosine_node.chains.search import (
    USUAL_RTT_S,
    FoundChain,
    NoChain,
    StagePlace,
    chain_seconds,
    find_chain,
    loaded_pass_s,
)
from cosine_p2p.directory.coverage import unheld
from cosine_p2p.directory.vivaldi import estimated_rtt_s
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_protocol.records import NetworkCoordinate, NodeRecord, StageOffer

GONE_S: Final = 10.0
"""Time for which a failed stage is not used, unless it has announced itself since. Afterwards it is a last
resort."""
EXCLUDED: Final = 1 << 20
"""More than all suspicions weigh together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainNeeds:
    """The target of a head's chains, the pool it wants and needs, and the size of a token's activations."""

    target_digest: bytes
    layers: int
    vocab_tokens: int
    pool_tokens: int
    least_pool_tokens: int
    token_bytes: int = 0


class KnownStages:
    """The stages of one target. Times are of one clock."""

    def __init__(
        self,
        needs: ChainNeeds,
        *,
        head: str,
        here: Callable[[], NetworkCoordinate | None],
        chance: Callable[[], float],
    ) -> None:
        """`head` is the head's peer id, `here` returns its coordinate; `chance` is uniform in [0, 1)."""
        self.needs = needs
        self._head = head
        self._here = here
        self._chance = chance
        self.numerics: str | None = None
        self.pool_tokens: int | None = None
        self.disputes = Disputes()
        self.speeds = StageSpeeds()
        self.links = LinkSpeeds()
        self.suspicions = Suspicions()
        self._failures = PeerFailures()
        self._records: dict[str, NodeRecord] = {}
        self._rtts_s: dict[str, float] = {}
        self._failed: dict[str, tuple[float, int]] = {}

    def see(self, records: Sequence[NodeRecord]) -> None:
        """Replace the known records."""
        digest = self.needs.target_digest
        found = [record for record in records if record.stage is not None and record.target_digest == digest]
        self._records = present = {record.peer_id: record for record in found}
        self._rtts_s = {peer_id: rtt_s for peer_id, rtt_s in self._rtts_s.items() if peer_id in present}
        self._failed = {peer_id: failed for peer_id, failed in self._failed.items() if peer_id in present}

    def settle(self, numerics: str, pool_tokens: int) -> None:
        """Keep to the numerics and pool size of a chain from now on."""
        self.numerics, self.pool_tokens = numerics, pool_tokens

    def note_rtts(self, rtts_s: Mapping[str, float]) -> None:
        """Record round-trip times between the head and stages."""
        self._rtts_s |= rtts_s

    def note_failed(self, peer_id: str, *, now_s: float) -> None:
        """Record that a stage is gone, has refused, or broke the protocol."""
        record = self._records.get(peer_id)
        self._failed[peer_id] = (now_s, 0 if record is None else record.sequence)
        self._failures.note_failed(peer_id, now_s=now_s)

    def doubted(self, now_s: float) -> set[str]:
        """The stages that failed recently or are suspected of a fault."""
        return {*self._failures.avoided(now_s), *self.suspicions.weights(now_s=now_s)}

    def are_fit(self, peer_ids: Collection[str], *, now_s: float) -> bool:
        """True if none of these is doubted or in a dispute."""
        return self.doubted(now_s).isdisjoint(peer_ids) and self.disputes.are_free(peer_ids, now_s=now_s)

    def room_tokens(self, peer_ids: Collection[str]) -> list[int]:
        """The largest pool that each of these stages offers to a new chain."""
        return [offer.pool_tokens for peer_id in peer_ids if (offer := self._offer(peer_id)) is not None]

    def numerics_of(self, found: FoundChain) -> str:
        return self._records[found.peer_ids[0]].numerics

    def _offer(self, peer_id: str) -> StageOffer | None:
        record = self._records.get(peer_id)
        return None if record is None else record.stage

    def curve(self, stage: StagePlace) -> CostCurve:
        """The announced cost of passes at a stage; at most that of one pass for each token."""
        offer = self._offer(stage.peer_id)
        if offer is None or offer.wide_tokens < 2:
            return CostCurve(((1, stage.pass_s),))
        wide_s = min(max(stage.pass_s, offer.wide_pass_us / 1e6), offer.wide_tokens * stage.pass_s)
        return CostCurve(((1, stage.pass_s), (offer.wide_tokens, wide_s)))

    def token_s(self, found: FoundChain, *, now_s: float) -> float:
        """The seconds that a token's activations take over the slowest known link between two stages."""
        rates = (self.links.bytes_per_s(pair, now_s=now_s) for pair in pairwise(found.peer_ids))
        return self.needs.token_bytes / min(rates, default=math.inf)

    def seconds(self, found: FoundChain, *, now_s: float) -> float:
        """The present expected time of a pass over a chain that was found earlier."""
        floor_s = self._stranger_layer_s(now_s)
        present = [
            one if record is None else self._place(record, floor_s, now_s)
            for one in found.stages
            for record in [self._records.get(one.peer_id)]
        ]
        return chain_seconds(present, head=self._head, rtt_s=lambda one, other: self._rtt_s(one, other, now_s))

    def has_chain_without(self, peer_ids: Collection[str], *, now_s: float) -> bool:
        """True if some chain does without at least one of these peers."""
        with suppress(NoChain):
            return not set(self.best(now_s, excluded=peer_ids).peer_ids).issuperset(peer_ids)
        return False

    def best(
        self,
        now_s: float,
        *,
        busy: Collection[str] = (),
        unlike: Collection[str] = (),
        without: Collection[str] = (),
        excluded: Collection[str] = (),
    ) -> FoundChain:
        """The best chain of stages with one numerics; busy ones are the last resort. Raises `NoChain`.

        With `unlike` it is a random chain over as few of these peers as possible. `excluded` peers are avoided more
        than any suspect.
        """
        failed = self._failures.avoided(now_s)
        avoided = Counter(self.suspicions.weights(now_s=now_s))
        avoided.update(dict.fromkeys([*failed, *busy, *unlike], SHARED))
        avoided.update(dict.fromkeys(excluded, EXCLUDED))
        # A failed stage would only delay a check.
        aside = self.disputes.set_aside(now_s).union(without, failed if unlike else ())
        asked = self._usable(now_s)
        levels = {} if unlike else self.disputes.levels([record.peer_id for record in asked], now_s=now_s)
        floor_s = self._stranger_layer_s(now_s)

        def find(records: Sequence[NodeRecord], *, apart: Collection[frozenset[str]]) -> FoundChain:
            places = [self._place(record, floor_s, now_s) for record in records]
            return find_chain(
                [replace(place, pass_s=self._chance()) for place in places] if unlike else places,
                layers=self.needs.layers,
                head=self._head,
                rtt_s=lambda one, other: 0.0 if unlike else self._rtt_s(one, other, now_s),
                avoided=avoided,
                standing=levels,
                apart=apart,
            )

        found = []
        believed = [record for record in asked if record.peer_id not in aside]
        for numerics in {record.numerics for record in believed}:
            with suppress(NoChain):
                same = [record for record in believed if record.numerics == numerics]
                found.append(find(same, apart=self.disputes.apart(now_s)))
        if found:
            return min(found, key=lambda one: one.seconds)
        # Raises with the layers that nobody holds in any numerics.
        find(asked, apart=())
        raise NoChain(self._why_not(believed, now_s))

    def _usable(self, now_s: float) -> list[NodeRecord]:
        """The stages with room and of the numerics in use that have not failed just now."""

        def is_usable(record: NodeRecord, offer: StageOffer) -> bool:
            failed_s, sequence = self._failed.get(record.peer_id, (-math.inf, 0))
            is_gone = now_s - failed_s < GONE_S and record.sequence <= sequence
            has_room = self.pool_tokens is not None or offer.pool_tokens >= self.needs.least_pool_tokens
            return not is_gone and has_room and record.numerics == (self.numerics or record.numerics)

        records = self._records.values()
        return [record for record in records if record.stage is not None and is_usable(record, record.stage)]

    def _why_not(self, believed: Sequence[NodeRecord], now_s: float) -> str:
        """The reason why there is no chain although all layers are held."""
        for dispute in self.disputes.open(now_s):
            return f"{dispute}, and nobody else holds them."
        held = [record.stage.held for record in believed if record.stage is not None]
        if gaps := unheld(held, layers=self.needs.layers):
            names = " and ".join(map(str, gaps))
            return f"Layers {names} of {self.needs.layers} are held by stages alone that were found wrong."
        return "No stages of one data type hold all layers in order."

    def _rtt_s(self, one: str, other: str, now_s: float) -> float | None:
        """The round-trip time of two peers, with the measured extra time if they were neighbours in a chain."""
        known_s, between_s = self.known_rtt_s(one, other), self.speeds.pass_s((one, other), now_s=now_s)
        return (USUAL_RTT_S if known_s is None else known_s) + 2 * between_s if between_s else known_s

    def known_rtt_s(self, one: str, other: str) -> float | None:
        """The round-trip time of two peers, one of whom may be this head: measured, or by their coordinates."""
        measured_s = self._rtts_s.get(other if one == self._head else one) if self._head in (one, other) else None
        if measured_s is not None:
            return measured_s

        def place(peer_id: str) -> NetworkCoordinate | None:
            record = self._records.get(peer_id)
            return self._here() if peer_id == self._head else None if record is None else record.coordinate

        return estimated_rtt_s(place(one), place(other))

    def _stranger_layer_s(self, now_s: float) -> float:
        """The least assumed time of a layer at unmeasured stages: 0, or once a stage has lied, the median."""
        if not self._records or not self.speeds.is_deceived(now_s=now_s):
            return 0.0
        offers = ((record.pass_us / 1e6, record.stage) for record in self._records.values())
        return median_low(pass_s / len(offer.held) for pass_s, offer in offers if offer is not None)

    def _place(self, record: NodeRecord, stranger_layer_s: float, now_s: float) -> StagePlace:
        """A stage, with its measured or else announced pass time."""
        assert record.stage is not None
        measured_s = self.speeds.pass_s(record.peer_id, now_s=now_s)
        announced_s = loaded_pass_s(record.pass_us / 1e6, busy=record.stage.busy_permille / 1000)
        # If distances were overestimated, the measured time is 0.
        pass_s = measured_s or max(announced_s, stranger_layer_s * len(record.stage.held))
        return StagePlace(record.peer_id, record.stage.held, pass_s)
