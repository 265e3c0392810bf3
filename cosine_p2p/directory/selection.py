"""The choice of nodes to ask: verifiers in order of preference, drafters of different expertise. Pure.

All clients see the same records, so nodes whose expected speed differs by less than `NEAR_EQUAL` are shuffled.
Announced speeds are not trusted: verifiers of the highest standing come first (`trust.standing`), measured speeds
override announced ones, and a verifier that was never measured counts as at best of median speed. If no verifier
has standing, one of `EXPLORE_EVERY` requests first asks the stranger that announces the highest speed.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from statistics import median_low
from types import MappingProxyType
from typing import Final

from cosine_protocol.numerics import arithmetic_of
from cosine_protocol.records import NodeRecord

NEAR_EQUAL: Final = 1.25  # Announced speeds that differ by less than a quarter do not show who is faster.
EXPLORE_EVERY: Final = 8  # Bounds the share of requests that a stranger can attract by its record.
WANTED_SPARES: Final = 2  # One that continues after a failure, and one that judges both.
SPARE_LEVEL: Final = 3  # Four checks: enough for a verifier that is seldom asked, and audited each time.
LEAST_PASS_US: Final = 1.0  # A measured pass may be 0 if the round trip took all of it.
NOT_KNOWN: Final[Mapping[str, float]] = MappingProxyType({})
NO_LEVELS: Final[Mapping[str, int]] = MappingProxyType({})

Chance = Callable[[], float]  # Returns numbers from 0 to below 1, such as `random.Random(seed).random`.


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """A client's own findings about verifiers: measured times and levels of standing, by peer id.

    Those `avoided` have failed recently or were found wrong.
    """

    rtts_s: Mapping[str, float] = field(default_factory=dict)
    passes_s: Mapping[str, float] = field(default_factory=dict)
    standing: Mapping[str, int] = field(default_factory=dict)
    avoided: Collection[str] = ()


def rank_verifiers(
    records: Iterable[NodeRecord],
    experience: Experience,
    *,
    chance: Chance,
    dtype: str | None = None,
    only: str | None = None,
    trust: Collection[str] = (),
) -> tuple[NodeRecord, ...]:
    """The verifiers that may be asked, best first.

    They are sorted by the level of standing, then by free capacity, then by the pass under load plus RTT. Avoided
    ones come last. `dtype` is an arithmetic or numerics.
    """
    allowed = [
        record
        for record in records
        if dtype in (None, record.numerics, arithmetic_of(record.numerics))
        and (only is None or record.peer_id == only)
        and (not trust or record.peer_id in trust)
    ]
    if not allowed:
        return ()
    passes_s, standing = experience.passes_s, experience.standing
    earned_us, levels = _earned_passes_us(allowed, passes_s), dict.fromkeys(passes_s, 1)
    ranked = _ranked(allowed, earned_us, experience.rtts_s, chance, levels=levels)
    measured_s = [passes_s[record.peer_id] for record in ranked if record.peer_id in passes_s]
    if any(standing.values()):
        ranked.sort(key=lambda record: -standing.get(record.peer_id, 0))
    elif measured_s and chance() * EXPLORE_EVERY < 1:
        strangers = [record for record in ranked if record.peer_id not in passes_s and not _is_full(record)]
        fastest = min(strangers, key=lambda record: record.pass_us, default=None)
        if fastest is not None and fastest.pass_us < 1e6 * min(measured_s):
            ranked.sort(key=lambda record: record is not fastest)
    return tuple(sorted(ranked, key=lambda record: record.peer_id in experience.avoided))


def newcomer_among(
    records: Sequence[NodeRecord],
    *,
    standing: Mapping[str, int],
    passes_s: Mapping[str, float],
    not_again: Collection[str] = (),
) -> NodeRecord | None:
    """The verifier to try next among those below the highest standing; None if no one is worth it.

    It is the one with the fastest announced pass and a free place, if it is clearly faster than those of the
    highest standing, or if fewer than `WANTED_SPARES` others have `SPARE_LEVEL`.
    """
    top = max(standing.values(), default=0)
    level = {record.peer_id: standing.get(record.peer_id, 0) for record in records}
    free = [record for record in records if record.peer_id not in not_again and not _is_full(record)]
    newcomer = min(
        (record for record in free if level[record.peer_id] < top), key=lambda record: record.pass_us, default=None
    )
    if newcomer is None:
        return None
    best = [record for record in records if level[record.peer_id] == top]
    fastest_us = min(1e6 * passes_s.get(record.peer_id, record.pass_us / 1e6) for record in best)
    if NEAR_EQUAL * newcomer.pass_us < fastest_us:
        return newcomer
    known = min(top, SPARE_LEVEL)
    if sum(level[record.peer_id] >= known for record in records) > WANTED_SPARES:
        return None
    return next((record for record in free if level[record.peer_id] < known), None)


def _earned_passes_us(records: Sequence[NodeRecord], passes_s: Mapping[str, float]) -> list[float]:
    """The measured passes; where nothing was measured, the announced pass or the median, whichever is longer."""
    announced_us = [float(record.pass_us or 1) for record in records]
    measured_us = [1e6 * passes_s[record.peer_id] for record in records if record.peer_id in passes_s]
    usual_us = median_low(measured_us or announced_us)
    return [
        1e6 * passes_s[record.peer_id] if record.peer_id in passes_s else max(usual_us, pass_us)
        for record, pass_us in zip(records, announced_us, strict=True)
    ]


def pick_drafters(
    records: Iterable[NodeRecord],
    *,
    tokenizer_digest: bytes,
    limit: int,
    chance: Chance,
    trust: Collection[str] = (),
    rtts_s: Mapping[str, float] = NOT_KNOWN,
) -> tuple[NodeRecord, ...]:
    """At most `limit` drafters, with one of each expertise before a second of any."""
    allowed = [
        record
        for record in records
        if record.tokenizer_digest == tokenizer_digest and (not trust or record.peer_id in trust)
    ]
    by_expertise: dict[tuple[str, ...], list[NodeRecord]] = defaultdict(list)
    announced_us = [float(record.pass_us or 1) for record in allowed]
    for record in _ranked(allowed, announced_us, rtts_s, chance):
        by_expertise[record.expertise].append(record)
    # If there are more kinds of expertise than places, the choice does not depend on the alphabet.
    groups = [group for _, group in sorted(islice(by_expertise.items(), limit))]
    rounds = max(map(len, groups), default=0)
    ordered = (group[index] for index in range(rounds) for group in groups if index < len(group))
    return tuple(islice(ordered, limit))


def _ranked(
    records: list[NodeRecord],
    passes_us: Sequence[float],
    rtts_s: Mapping[str, float],
    chance: Chance,
    *,
    levels: Mapping[str, int] = NO_LEVELS,
) -> list[NodeRecord]:
    """Records, best first, near-equals by level, full ones last."""
    if not records:
        return []
    # The announced load at most doubles a pass.
    waits_us = [
        max(LEAST_PASS_US, pass_us) * (1 + min(1.0, record.load_requests / (record.capacity_requests or 1)))
        for record, pass_us in zip(records, passes_us, strict=True)
    ]
    if rtts_s:
        usual_s = median_low(rtts_s.values())
        rtts_us = [1e6 * rtts_s.get(record.peer_id, usual_s) for record in records]
        waits_us = [wait_us + rtt_us for wait_us, rtt_us in zip(waits_us, rtts_us, strict=True)]
    per_band, shortest = 1 / math.log2(NEAR_EQUAL), math.log2(min(waits_us))
    keys = [
        (
            _is_full(record),
            int((math.log2(wait_us) - shortest) * per_band),
            -levels.get(record.peer_id, 0),
            chance(),
        )
        for record, wait_us in zip(records, waits_us, strict=True)
    ]
    return [records[index] for index in sorted(range(len(records)), key=keys.__getitem__)]


def _is_full(record: NodeRecord) -> bool:
    return record.load_requests >= record.capacity_requests
