"""A private swarm for tests."""

from dataclasses import dataclass

from cosine_p2p.trust.membership import Membership, SwarmPapers
from cosine_protocol.identity import Identity
from cosine_protocol.membership import sign_certificate, sign_revocations

NOW_S = 1_700_000_000.0
DAY_S = 86_400.0


@dataclass(slots=True)
class Clock:
    now_s: float = NOW_S

    def __call__(self) -> float:
        return self.now_s


class PrivateSwarm:
    def __init__(self, seed: int = 77) -> None:
        self.identity = Identity.from_seed(seed.to_bytes(32, "big"))
        self.clock = Clock()
        self._serial = 0

    @property
    def swarm_id(self) -> str:
        return self.identity.peer_id

    def admit(self, peer_id: str, *, lifetime_s: float = DAY_S) -> bytes:
        self._serial += 1
        return sign_certificate(
            self.identity,
            name="friends",
            member=peer_id,
            serial=self._serial,
            starts_at_s=self.clock(),
            lifetime_s=lifetime_s,
        )

    def revoke(self, *peer_ids: str, sequence: int = 1) -> bytes:
        return sign_revocations(self.identity, sequence=sequence, serials=dict.fromkeys(peer_ids, self._serial))

    def papers(self, *certificates: bytes, revocations: bytes = b"") -> SwarmPapers:
        return SwarmPapers(self.swarm_id, "friends", certificates, (revocations,) if revocations else ())

    def member(self, peer_id: str, *, lifetime_s: float = DAY_S, revocations: bytes = b"") -> Membership:
        papers = self.papers(self.admit(peer_id, lifetime_s=lifetime_s), revocations=revocations)
        return Membership(peer_id, papers, clock=self.clock)
