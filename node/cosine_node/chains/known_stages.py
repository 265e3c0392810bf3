"""The stages of a target as a head knows them, and its choice of a chain among them. Pure.

Theory of operation
-------------------
Stages announce their layers, pass time, load and room. Measured times precede announced ones (`StageSpeeds`,
docs/decisions/0025), delays add up, and faults are remembered as `Suspicions`. `best` chooses the chain of least
expected time among those with the fewest suspects. A stage that failed is unused for `GONE_S`, unless it has
announced itself since, and then a last resort. The first chain determines numerics and pool size of all later ones.

The findings of checks decide which stages a chain may use (`Disputes`). Keys are free, so stages earn trust as
verifiers do (`cosine_p2p.trust.standing`): by checks in which another holder of the same layers computed the same.
The first rule that applies decides a contradiction:

- A third holder agrees with one side: the other side lied.
- One side has clearly more checks: it is trusted.
- Neighbours that disagree about their transfer are kept apart. A stage in such a dispute with two others
  lied, since one liar is likelier than two.
- Otherwise all are set aside, until one of them is found wrong elsewhere, or for `UNDECIDED_S`.

A wrong side of several stages is set aside as a whole, since it is unknown which one lied. Times never go back.
"""

import math
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Final

from cosine_engine.curve import CostCurve
from cosine_node.chains.search import (
    USUAL_RTT_S,
    FoundChain,
    NoChain,
    StagePlace,
    chain_seconds,
    find_chain,
)
from cosine_node.chains.traces import Contradiction
from cosine_p2p.directory.coverage import unheld
from cosine_p2p.directory.vivaldi import estimated_rtt_s
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.trust.peer_memory import PeerFailures
from cosine_p2p.trust.standing import Standings
from cosine_protocol.records import NetworkCoordinate, NodeRecord, StageOffer
from cosine_protocol.stage import LayerRange

MAX_STAGES: Final = 1024
"""Bounds memory."""
FORGOTTEN_S: Final = 3600.0
"""A slow machine or link may be idle within an hour; a liar costs one replacement in each."""
RECENT_PASSES: Final = 7
"""Passes whose median counts, so that one wait for another head's prompt has no effect."""
LOST_S: Final = 1.0
"""Limit of the total delay: about the time until another chain has fed the kept tokens. With less, chains are left
because of noise; with more, requests wait longer than for another chain."""
MOST_OF_ONE_S: Final = 0.4
"""Largest delay counted for one pass, so that no single one is enough."""


@dataclass(slots=True)
class _Speed:
    passes_s: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT_PASSES))
    lost_s: float = 0.0


Measured = str | tuple[str, str]
"""A stage, by its peer id; or the link between two stages, beyond its expected time."""


class StageSpeeds:
    """The times of one-token passes at stages and between them, which precede announced ones."""

    def __init__(self) -> None:
        self._speeds = Remembered[Measured, _Speed](MAX_STAGES, forgotten_s=FORGOTTEN_S)

    def begin(self, what: Measured, *, now_s: float) -> None:
        """Begin a new chain: keep only the median of a stage's earlier passes, and no delays."""
        known = self._speeds.get(what, now_s)
        if known is not None:
            self._speeds.note(what, _Speed(deque([median(known.passes_s)], RECENT_PASSES)), now_s)

    def note(self, what: Measured, *, pass_s: float, expected_s: float, now_s: float) -> None:
        """Record a pass; one that is faster than expected reduces the total delay."""
        speed = self._speeds.get(what, now_s) or _Speed()
        speed.passes_s.append(pass_s)
        speed.lost_s = max(0.0, speed.lost_s + min(MOST_OF_ONE_S, pass_s - expected_s))
        self._speeds.note(what, speed, now_s)

    def pass_s(self, what: Measured, *, now_s: float) -> float | None:
        """The median of recent passes; None if none was measured."""
        speed = self._speeds.get(what, now_s)
        return median(speed.passes_s) if speed is not None else None

    def has_cost_much(self, what: Measured, *, now_s: float) -> bool:
        """True if the delays in the present chain add up to `LOST_S`."""
        speed = self._speeds.get(what, now_s)
        return speed is not None and speed.lost_s >= LOST_S

    def forgive(self, what: Measured, *, now_s: float) -> None:
        """Reset the delay, since there was no better stage."""
        speed = self._speeds.get(what, now_s)
        if speed is not None:
            speed.lost_s = 0.0


SUSPECTED_S: Final = 600.0
"""Duration of a suspicion. A stage that always stalls costs one stuck pass (`STUCK_S`) in this time, 1/400 of it; a
machine that was busy for a moment is a last resort for as long."""
MAX_SUSPICIONS: Final = 256
"""Bounds memory."""
SHARED: Final = 2
"""Weight of one fault: all of it for a single suspect, half for each of two neighbours. The guilty one of a pair
weighs more after its next fault beside another neighbour."""


class Suspicions:
    """Suspicions against stages, each for `SUSPECTED_S`."""

    def __init__(self) -> None:
        self._noted: deque[tuple[float, str, int]] = deque(maxlen=MAX_SUSPICIONS)

    def note(self, peer_ids: Collection[str], *, now_s: float) -> None:
        """Record a fault of one of these stages."""
        for peer_id in peer_ids:
            self._noted.append((now_s, peer_id, SHARED if len(peer_ids) == 1 else SHARED // 2))

    def weights(self, *, now_s: float) -> Mapping[str, int]:
        """The total weight of suspicions by peer id."""
        found: Counter[str] = Counter()
        for at_s, peer_id, weight in self._noted:
            if now_s - at_s < SUSPECTED_S:
                found[peer_id] += weight
        return found


CHECK_SHARE: Final = 0.05
"""Lower bound of the share of checked requests, equal to that of clients' audits."""
CLEARLY: Final = 4
"""Factor and least number of checks by which one side is trusted: two levels of standing."""
UNDECIDED_S: Final = 24 * 3600.0
"""An honest stage is used again within a day; a liar in the same dispute writes one wrong text a day."""
MAX_DISPUTES: Final = 256
"""Bounds memory."""


@dataclass(frozen=True, slots=True)
class Dispute:
    """Stages of which at least one lies, without proof which."""

    members: frozenset[str]
    layers: LayerRange
    is_link: bool = False

    def __str__(self) -> str:
        names = sorted(self.members)
        joined = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return f"Stages {joined} disagree about layers {self.layers} of {self.layers.layers}"


class Disputes:
    """A head's findings about stages. Times never go back."""

    def __init__(self) -> None:
        self.standings = Standings()
        self._open = Remembered[Dispute, bool](MAX_DISPUTES, forgotten_s=UNDECIDED_S)

    def open(self, now_s: float) -> tuple[Dispute, ...]:
        """The undecided disputes."""
        return tuple(dispute for dispute, _ in self._open.items(now_s))

    def set_aside(self, now_s: float) -> frozenset[str]:
        """The stages that no chain may use."""
        doubted = (dispute.members for dispute in self.open(now_s) if not dispute.is_link)
        return self.standings.rejected(now_s).union(*doubted)

    def apart(self, now_s: float) -> frozenset[frozenset[str]]:
        """Pairs that must not be neighbours."""
        return frozenset(dispute.members for dispute in self.open(now_s) if dispute.is_link)

    def are_free(self, peer_ids: Collection[str], *, now_s: float) -> bool:
        """True if a chain may use these stages in this order."""
        pairs = zip(peer_ids, list(peer_ids)[1:], strict=False)
        apart = self.apart(now_s)
        return self.set_aside(now_s).isdisjoint(peer_ids) and not any({*pair} in apart for pair in pairs)

    def are_checked(self, peer_ids: Iterable[str], *, now_s: float) -> bool:
        """True if each of these was found right at least once."""
        return all(self.standings.checks(peer_id, now_s=now_s) for peer_id in peer_ids)

    def levels(self, peer_ids: Iterable[str], *, now_s: float) -> dict[str, int]:
        """The standing of stages for the choice of chains; `CLEARLY` checks or more count the same."""
        levels = self.standings.levels(peer_ids, now_s=now_s)
        return {peer_id: min(level, CLEARLY.bit_length()) for peer_id, level in levels.items()}

    def check_chance(self, peer_ids: Iterable[str], *, now_s: float) -> float:
        """The chance that a request over these stages is checked; the least checked stage decides."""
        chances = [self.standings.audit_chance(each, CHECK_SHARE, now_s=now_s) for each in peer_ids]
        return max(chances, default=0.0)

    def note_wrong(self, side: Collection[str], layers: LayerRange, *, now_s: float) -> None:
        """Record that a side lied: a single stage is rejected, several are set aside."""
        if len(side) == 1:
            (peer_id,) = side
            self.standings.reject(peer_id, now_s=now_s)
            for dispute in self.open(now_s):
                if peer_id in dispute.members:
                    self._open.pop(dispute)
        else:
            self._open.note(Dispute(frozenset(side), layers), True, now_s)

    def judge(self, found: Contradiction, *, now_s: float) -> tuple[str, ...]:
        """Judge a contradiction that no third stage has decided; return the side that lied, or () if undecided."""
        for side, other in ((found.ones, found.others), (found.others, found.ones)):
            least = min(self.standings.checks(each, now_s=now_s) for each in side)
            most = max(self.standings.checks(each, now_s=now_s) for each in other)
            if least >= CLEARLY * max(1, most):
                self.note_wrong(other, found.layers, now_s=now_s)
                return other
        if found.is_link:
            for peer_id in found.members:
                if any(pair & found.members == {peer_id} for pair in self.apart(now_s)):
                    self.note_wrong((peer_id,), found.layers, now_s=now_s)
                    return (peer_id,)
        self._open.note(Dispute(found.members, found.layers, found.is_link), True, now_s)
        return ()


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

    def seconds(self, found: FoundChain, *, now_s: float) -> float:
        """The present expected time of a pass over a chain that was found earlier."""
        present = [
            one if record is None else self._place(record, now_s)
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

        def find(records: Sequence[NodeRecord], *, apart: Collection[frozenset[str]]) -> FoundChain:
            places = [self._place(record, now_s) for record in records]
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
        # Raises with the layers that no stage holds in any numerics.
        find(asked, apart=())
        raise NoChain(self._why_not(believed, now_s))

    def _usable(self, now_s: float) -> list[NodeRecord]:
        """The stages with room and the numerics in use that have not failed recently."""

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
            return f"{dispute}, and no other stage holds them."
        held = [record.stage.held for record in believed if record.stage is not None]
        if gaps := unheld(held, layers=self.needs.layers):
            names = " and ".join(map(str, gaps))
            return f"Layers {names} of {self.needs.layers} are held only by stages that were found wrong."
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

    def _place(self, record: NodeRecord, now_s: float) -> StagePlace:
        """A stage, with its measured or else announced pass time."""
        announced = StagePlace.announced(record)
        # If distances were overestimated, the measured time is 0.
        measured_s = self.speeds.pass_s(record.peer_id, now_s=now_s)
        return replace(announced, pass_s=measured_s) if measured_s else announced
