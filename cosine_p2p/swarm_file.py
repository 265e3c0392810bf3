"""A member's swarm file: certificates and lists of revoked ones as the founder sends them, a line of text each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cosine_protocol.errors import NotAMember, UsageError
from cosine_protocol.member_messages import Certificate
from cosine_protocol.membership import (
    CERTIFICATE_LINE,
    REVOCATIONS_LINE,
    from_line,
    read_certificate,
    read_revocations,
)

MAX_FILE_BYTES: Final = 1 << 20
"""A choice: far above a list of the longest and a hundred certificates."""


@dataclass(frozen=True, slots=True)
class SwarmPapers:
    """The certificates and revocation lists of one swarm, encoded; of the lists the newest is last."""

    swarm_id: str
    name: str
    certificates: tuple[bytes, ...]
    revocations: tuple[bytes, ...] = ()

    def certificate_of(self, peer_id: str) -> bytes | None:
        """The latest certificate of a peer, None without any."""
        own = [data for data in self.certificates if read_certificate(data).member == peer_id]
        return max(own, key=lambda data: read_certificate(data).serial, default=None)


def read_swarm_file(file: Path) -> SwarmPapers:
    """The papers in a file; empty lines and those that begin with # are left out.

    Raises `UsageError` for a file that cannot be read, holds something else or no certificate, or is of two swarms.
    """
    try:
        with file.open("rb") as handle:
            lines = handle.read(MAX_FILE_BYTES).decode().splitlines()
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
            raise UsageError(f"Line {number} of {file} is no line of a swarm file: {error}.") from None
    if not found:
        raise UsageError(f"{file} holds no certificate; the founder makes one with `cosine-node swarm admit`.")
    swarm_ids = {certificate.swarm for _, certificate in found} | {swarm for _, swarm, _ in lists}
    if len(swarm_ids) > 1:
        raise UsageError(f"{file} is of {len(swarm_ids)} swarms; keep a file for each.")
    name = max((certificate for _, certificate in found), key=lambda one: one.serial).name
    newest_last = tuple(data for _, _, data in sorted(lists))
    return SwarmPapers(swarm_ids.pop(), name, tuple(data for data, _ in found), newest_last)
