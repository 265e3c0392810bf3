"""The targets that a network serves, as its nodes announce them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from cosine_protocol.discover import MAX_CELL_OWNERS
from cosine_protocol.errors import GenerationFailed, UsageError
from cosine_protocol.records import NodeRecord, Role

WANTED_NODES: Final = 4 * MAX_CELL_OWNERS
"""Bounds a survey of a whole network: the nodes of each role that are looked up; in a large network a sample."""
MAX_NAMED: Final = 8  # Bounds a sentence.


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTarget:
    """A target, the number of its nodes of each role, and the numerics of its verifiers and stages."""

    name: str
    digest: bytes
    verifiers: int
    drafters: int
    stages: int
    numerics: tuple[str, ...]

    def __str__(self) -> str:
        verifiers = f"{self.verifiers} verifier{'' if self.verifiers == 1 else 's'}"
        return f"{self.name} ({verifiers}, {', '.join(self.numerics)})"


def served_targets(records: Iterable[NodeRecord]) -> list[ServedTarget]:
    """The targets of some nodes, those with the most verifiers first; several may have one name."""

    def target_of(record: NodeRecord) -> tuple[str, bytes]:
        return record.target, record.target_digest

    found = []
    for (name, digest), group in groupby(sorted(records, key=target_of), key=target_of):
        nodes = list(group)
        roles = [record.role for record in nodes]
        found.append(
            ServedTarget(
                name=name,
                digest=digest,
                verifiers=roles.count(Role.VERIFIER),
                drafters=roles.count(Role.DRAFTER),
                stages=roles.count(Role.STAGE),
                numerics=tuple(sorted({each.numerics for each in nodes if each.role != Role.DRAFTER})),
            )
        )
    return sorted(found, key=lambda target: -target.verifiers)


def only_target(verifiers: Sequence[NodeRecord]) -> str:
    """The only target served. Raises `GenerationFailed` if there is none, `UsageError` naming several."""
    found = served_targets(verifiers)
    if not found:
        raise GenerationFailed(
            "No verifier of any target is listed in this network: check --initial-peers and --network, name a "
            "target with --target, or start a verifier: `cosine-node verify --model MODEL`."
        )
    if len({target.name for target in found}) > 1 and len({target.digest for target in found}) > 1:
        named = ", ".join(map(str, found[:MAX_NAMED])) + (", and others" if len(found) > MAX_NAMED else "")
        raise UsageError(f"This network serves several targets, {named}: choose one with --target NAME.")
    return found[0].name
