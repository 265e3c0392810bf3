"""Whom to ask: verifiers in order of preference, drafters of different expertise. Pure decisions over records."""

from collections import defaultdict
from collections.abc import Collection, Iterable

from cosine_protocol.records import NodeRecord


def rank_verifiers(
    records: Iterable[NodeRecord],
    *,
    numerics: str | None = None,
    only: str | None = None,
    trust: Collection[str] = (),
) -> tuple[NodeRecord, ...]:
    """Verifiers that may serve one request, best first: the least loaded, then the fastest.

    All have the numerics of the first, so that failover continues the same text.
    """
    allowed = [
        record
        for record in records
        if (numerics is None or record.numerics == numerics)
        and (only is None or record.peer_id == only)
        and (not trust or record.peer_id in trust)
    ]
    allowed.sort(key=lambda record: (_load(record), record.pass_us, record.peer_id))
    return tuple(record for record in allowed if record.numerics == allowed[0].numerics)


def pick_drafters(
    records: Iterable[NodeRecord], *, tokenizer_digest: bytes, limit: int, trust: Collection[str] = ()
) -> tuple[NodeRecord, ...]:
    """At most `limit` drafters, one of each expertise before a second of any; within one, the least loaded."""
    by_expertise: dict[tuple[str, ...], list[NodeRecord]] = defaultdict(list)
    for record in records:
        if record.tokenizer_digest == tokenizer_digest and (not trust or record.peer_id in trust):
            by_expertise[record.expertise].append(record)
    for group in by_expertise.values():
        group.sort(key=lambda record: (_load(record), record.pass_us, record.peer_id))
    rounds = max(map(len, by_expertise.values()), default=0)
    ordered = [
        group[index] for index in range(rounds) for _, group in sorted(by_expertise.items()) if index < len(group)
    ]
    return tuple(ordered[:limit])


def _load(record: NodeRecord) -> float:
    return record.load_requests / max(1, record.capacity_requests)
