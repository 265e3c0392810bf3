"""Membership in a private swarm: a peer's certificate, checks of others, revocations, and swarm files."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from cosine_p2p.storage.memory import Remembered
from cosine_p2p.storage.state_file import StateFile
from cosine_protocol.errors import NotAMember, UsageError
from cosine_protocol.membership import (
    CERTIFICATE_LINE,
    REVOCATIONS_LINE,
    Certificate,
    as_line,
    check_certificate,
    from_line,
    read_certificate,
    read_revocations,
)

logger = logging.getLogger(__name__)

LOOK_AGAIN_S: Final = 10.0  # The interval at which a running node reads the swarm file.
WARN_S: Final = 3 * 86_400.0  # Enough time to ask the founder for a new certificate, even over a weekend.
MAX_MET: Final = 16_384  # Bounds memory: members whose certificates are remembered, as many as records.


@dataclass(frozen=True, slots=True)
class SwarmPapers:
    """The encoded certificates and revocation lists of one swarm, the newest list last."""

    swarm_id: str
    name: str
    certificates: tuple[bytes, ...]
    revocations: tuple[bytes, ...] = ()

    def certificate_of(self, peer_id: str) -> bytes | None:
        """The latest certificate of a peer; None without one."""
        own = [data for data in self.certificates if read_certificate(data).member == peer_id]
        return max(own, key=lambda data: read_certificate(data).serial, default=None)


def read_swarm_file(file: Path) -> SwarmPapers:
    """Read a swarm file: a certificate or list a line, blank lines and # comments. Raises `UsageError`."""
    try:
        with file.open("rb") as handle:
            # Much more than the longest list and a hundred certificates.
            lines = handle.read(1 << 20).decode().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text"
        raise UsageError(f"The swarm file {file} cannot be read ({reason}).") from None
    found: list[tuple[bytes, Certificate]] = []
    lists: list[tuple[int, str, bytes]] = []
    for number, line in enumerate(map(str.strip, lines), start=1):
        try:
            if line.startswith(CERTIFICATE_LINE):
                data = from_line(line, prefix=CERTIFICATE_LINE)
                found.append((data, read_certificate(data)))
            elif line.startswith(REVOCATIONS_LINE):
                data = from_line(line, prefix=REVOCATIONS_LINE)
                revocations = read_revocations(data)
                lists.append((revocations.sequence, revocations.swarm, data))
            elif line and not line.startswith("#"):
                raise NotAMember(f"it must begin with {CERTIFICATE_LINE} or {REVOCATIONS_LINE}")
        except NotAMember as error:
            raise UsageError(f"Line {number} of {file} is not a line of a swarm file: {error}.") from None
    if not found:
        raise UsageError(f"{file} holds no certificate; the founder makes one with `cosine-node swarm admit`.")
    swarm_ids = {certificate.swarm for _, certificate in found} | {swarm for _, swarm, _ in lists}
    if len(swarm_ids) > 1:
        raise UsageError(f"{file} is of {len(swarm_ids)} swarms; keep a file for each.")
    name = max((certificate for _, certificate in found), key=lambda one: one.serial).name
    newest_last = tuple(data for _, _, data in sorted(lists))
    return SwarmPapers(swarm_ids.pop(), name, tuple(data for data, _ in found), newest_last)


class Membership:
    """The membership of `peer_id` in the swarm of `papers`.

    `reread` returns later papers; `state` keeps the newest list of revoked certificates between runs. Raises
    `UsageError` if the papers have no certificate for the peer.
    """

    def __init__(
        self,
        peer_id: str,
        papers: SwarmPapers,
        *,
        reread: Callable[[], SwarmPapers] | None = None,
        state: StateFile | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        certificate = papers.certificate_of(peer_id)
        if certificate is None:
            raise UsageError(
                f"There is no certificate for {peer_id} of the swarm {papers.name}; its founder makes one with "
                f"`cosine-node swarm admit {peer_id}`."
            )
        self.peer_id = peer_id
        self.swarm_id = papers.swarm_id
        self.name = papers.name
        self.certificate = certificate
        self.sequence = 0
        self.revocations = b""
        self._serials: dict[str, int] = {}
        self._met = Remembered[str, Certificate](MAX_MET)
        self._read = Remembered[bytes, Certificate](MAX_MET)
        self._reread = reread
        self._state = state
        self._clock = clock
        self._looked_at_s = clock()
        self._warned_of = b""
        kept = state.read().get("revoked") if state is not None else None
        if isinstance(kept, str):
            try:
                self.take_revocations(from_line(kept, prefix=REVOCATIONS_LINE))
            except NotAMember as error:
                logger.warning("the list of revoked certificates that was kept cannot be used: %s", error)
        for data in papers.revocations:
            self.take_revocations(data)

    @classmethod
    def load(cls, file: Path, peer_id: str, *, clock: Callable[[], float] = time.time) -> "Membership":
        papers = read_swarm_file(file)
        # More than the longest list as a line of text.
        state = StateFile(f"revoked-{papers.swarm_id}.json", max_bytes=256 << 10)
        return cls(peer_id, papers, reread=lambda: read_swarm_file(file), state=state, clock=clock)

    @property
    def ends_at_s(self) -> float:
        return read_certificate(self.certificate).ends_at_s

    def check_own(self) -> None:
        """Raise `UsageError` unless our certificate is valid now."""
        try:
            self.check(self.certificate, peer_id=self.peer_id)
        except NotAMember as reason:
            raise UsageError(
                f"{self.peer_id} is not a member of the swarm {self.name} now: {reason}; its founder makes a new "
                f"certificate with `cosine-node swarm admit {self.peer_id}`."
            ) from None

    def check(self, certificate: bytes, *, peer_id: str) -> None:
        """Remember a valid certificate of a peer. Raises `NotAMember` for an invalid one."""
        if not certificate:
            raise NotAMember("no certificate was shown")
        known = self._read.get(certificate) or read_certificate(certificate)
        self._read.note(certificate, known)
        self._check(known, peer_id)
        met = self._met.get(peer_id) or known
        self._met.note(peer_id, max(met, known, key=lambda one: one.serial))

    def check_met(self, peer_id: str) -> None:
        """Raise `NotAMember` unless a peer has shown a certificate that is valid now."""
        known = self._met.get(peer_id)
        if known is None:
            raise NotAMember("no certificate was shown")
        self._met.note(peer_id, known)
        self._check(known, peer_id)

    def take_revocations(self, data: bytes) -> bool:
        """Use a list of revoked certificates if it is newer, and return True. Raises `NotAMember`."""
        revocations = read_revocations(data)
        if revocations.swarm != self.swarm_id:
            raise NotAMember("the list of revoked certificates is of another swarm")
        if revocations.sequence <= self.sequence:
            return False
        self.sequence, self.revocations = revocations.sequence, data
        self._serials = {one.member: one.serial for one in revocations.revoked}
        if self._state is not None:
            self._state.write({"revoked": as_line(data, prefix=REVOCATIONS_LINE)})
        return True

    def _check(self, certificate: Certificate, peer_id: str) -> None:
        now_s = self._clock()
        # Also after the clock was set back.
        if not 0.0 <= now_s - self._looked_at_s < LOOK_AGAIN_S:
            self._looked_at_s = now_s
            self._look_again()
        check_certificate(certificate, swarm=self.swarm_id, member=peer_id, now_s=now_s, revoked=self._serials)

    def _look_again(self) -> None:
        """Read the swarm file again, and warn before our certificate ends."""
        if self._warned_of != self.certificate and self._clock() > self.ends_at_s - WARN_S:
            self._warned_of = self.certificate
            ends = datetime.fromtimestamp(self.ends_at_s, UTC).isoformat(timespec="minutes")
            sentence = "the certificate of %s in the swarm %s ends at %s; its founder makes a new one with `%s`"
            logger.warning(sentence, self.peer_id, self.name, ends, f"cosine-node swarm admit {self.peer_id}")
        if self._reread is None:
            return
        try:
            papers = self._reread()
            if papers.swarm_id == self.swarm_id:
                self.certificate = papers.certificate_of(self.peer_id) or self.certificate
                for data in papers.revocations:
                    self.take_revocations(data)
        except (UsageError, NotAMember) as error:
            logger.warning("what is in the swarm file now cannot be used: %s", error)
