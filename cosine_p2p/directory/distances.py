"""Round-trip times known to a client: measured, reported by a verifier, or estimated from coordinates. Pure."""

from collections.abc import Sequence
from typing import Final

from cosine_p2p.directory.vivaldi import MAX_RTT_S, Chance, Vivaldi, estimated_rtt_s
from cosine_p2p.storage.memory import Remembered
from cosine_p2p.transport.link import PeerLinks
from cosine_protocol.draft import DRAFT
from cosine_protocol.records import NodeRecord
from cosine_protocol.verify import VERIFY

MAX_PAIRS: Final = 2048  # Bounds memory and the file; the oldest reports are forgotten first.
FORGOTTEN_S: Final = 7 * 24 * 3600.0  # The same as for measured speeds (`PeerSpeeds`).


class Distances:
    """The distances of drafters and verifiers. `chance` returns numbers from 0 to below 1; times are monotonic."""

    def __init__(self, chance: Chance) -> None:
        self.place = Vivaldi(chance)
        # In seconds, by the verifier and the drafter.
        self.told = Remembered[str, float](MAX_PAIRS, forgotten_s=FORGOTTEN_S)
        self._found: dict[str, Sequence[NodeRecord]] = {}

    def measured(self, records: Sequence[NodeRecord], links: PeerLinks, protocol: str) -> dict[str, float]:
        """The round-trip times to nodes with an open link, which also update this client's coordinate."""
        self._found[protocol] = records
        rtts_s = {}
        for record in records:
            link = links.alive(record.peer_id, protocol)
            if link is not None and link.rtt_s:
                rtts_s[record.peer_id] = link.rtt_s
                if record.coordinate is not None:
                    self.place.note_rtt(record.coordinate, link.rtt_s)
        return rtts_s

    def measure_again(self, links: PeerLinks) -> None:
        for protocol, records in self._found.items():
            self.measured(records, links, protocol)

    def by_verifier(
        self, drafters: Sequence[NodeRecord], verifier: NodeRecord, links: PeerLinks, *, now_s: float
    ) -> dict[str, float]:
        """The round-trip times of drafts if the verifier coordinates; those to this client if none is known."""
        measured_s = self.measured(drafters, links, DRAFT)
        rtts_s = {}
        for drafter in drafters:
            rtt_s = self.told.get(f"{verifier.peer_id} {drafter.peer_id}", now_s)
            if rtt_s is None:
                rtt_s = estimated_rtt_s(drafter.coordinate, verifier.coordinate)
            if rtt_s is not None:
                rtts_s[drafter.peer_id] = rtt_s
        return rtts_s or measured_s

    def by_client(self, drafters: Sequence[NodeRecord], verifier: NodeRecord, links: PeerLinks) -> dict[str, float]:
        """The round-trip times of drafts if the client coordinates: from each drafter through the client."""
        rtts_s = self.measured(drafters, links, DRAFT)
        for drafter in drafters:
            rtt_s = estimated_rtt_s(self.place.coordinate, drafter.coordinate)
            if rtt_s is not None:
                rtts_s.setdefault(drafter.peer_id, rtt_s)
        link = links.alive(verifier.peer_id, VERIFY)
        onwards_s = (
            (link.rtt_s if link is not None else 0.0)
            or estimated_rtt_s(self.place.coordinate, verifier.coordinate)
            or 0.0
        )
        return {peer_id: rtt_s + onwards_s for peer_id, rtt_s in rtts_s.items()}

    def note_told(self, verifier: str, drafter: str, rtt_s: float, *, now_s: float) -> None:
        """Note the round-trip time that a verifier reports to a drafter; 0 if it did not measure one."""
        if 0.0 < rtt_s <= MAX_RTT_S:
            self.told.note(f"{verifier} {drafter}", rtt_s, now_s)
