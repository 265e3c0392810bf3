"""Invitations: a link that holds what someone needs to reach a network.

A link is `cosine:` and parts with commas between: `network=NAME` or `swarm=ID`, `until=DAY`, and addresses of
nodes, which begin with a slash. It has no character that a shell or a URI changes.

A link for one member of a private swarm has `key` and `certificate` in place of `swarm` and `until`: its holder is
that member. All other links hold no secret, and a private swarm still asks for a certificate.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final
from urllib.parse import quote, unquote

from platformdirs import user_data_dir

from cosine_p2p.access import Access
from cosine_p2p.storage.identity_file import load_identity
from cosine_p2p.storage.state_file import replace_text
from cosine_p2p.transport.config import DEFAULT_NETWORK, check_peer_addresses
from cosine_protocol.errors import NotAMember, UsageError
from cosine_protocol.identity import Identity
from cosine_protocol.membership import CERTIFICATE_LINE, as_line, from_line, read_certificate

SCHEME: Final = "cosine:"
INVITED_DAYS: Final = 7.0
PARTS: Final = ("network", "swarm", "until", "key", "certificate")
MAX_INVITATION_ADDRESSES: Final = 4
"""More would make a QR code too wide for a terminal of 80 columns."""


@dataclass(frozen=True, slots=True)
class NewMember:
    """The key and certificate of a new member of a private swarm.

    seed: Seed of the member's key, 32 bytes.
    certificate: Certificate of the swarm's founder for that key.
    """

    seed: bytes
    certificate: bytes

    @classmethod
    def read(cls, seed: str, certificate: str) -> "NewMember":
        """Read the parts of a link. Raises `UsageError`."""
        try:
            admission = cls(*(from_line(text, prefix="") for text in (seed, certificate)))
            is_whole = read_certificate(admission.certificate).member == Identity.from_seed(admission.seed).peer_id
        except (NotAMember, ValueError):
            is_whole = False
        if not is_whole:
            raise UsageError("Its key and its certificate do not belong together.")
        return admission

    @property
    def swarm_file(self) -> Path:
        """The place of the swarm file on this machine."""
        return self._file("swarm")

    @property
    def key_file(self) -> Path:
        """The place of the member's key on this machine."""
        return self._file("key")

    def _file(self, kind: str) -> Path:
        certificate = read_certificate(self.certificate)
        return Path(user_data_dir("cosine-p2p")) / "swarms" / certificate.swarm / f"{certificate.member}.{kind}"

    def accept(self) -> None:
        """Store key and certificate. Raises `UsageError`."""
        load_identity(self.key_file, new=Identity.from_seed(self.seed))
        # The member may have added lines.
        if self.swarm_file.exists():
            return
        try:
            replace_text(self.swarm_file, as_line(self.certificate, prefix=CERTIFICATE_LINE) + "\n")
        except OSError as error:
            raise UsageError(f"{self.swarm_file} cannot be written ({error.strerror}).") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Invitation:
    """The way into a network.

    addresses: Multiaddresses of nodes, each with its peer id.
    network: Name of the network, or id of the private swarm.
    is_private: The network is a private swarm.
    last_day: Last day on which the invitation is valid, in UTC. None: no end.
    admission: What makes the guest a member of the private swarm. None: the guest needs a swarm file.
    """

    addresses: tuple[str, ...]
    network: str = DEFAULT_NETWORK
    is_private: bool = False
    last_day: date | None = None
    admission: NewMember | None = None

    def __post_init__(self) -> None:
        """Raise `UsageError` without addresses, with too many, or for one that cannot be dialled."""
        if not 0 < len(self.addresses) <= MAX_INVITATION_ADDRESSES:
            raise UsageError(
                f"An invitation has 1 to {MAX_INVITATION_ADDRESSES} addresses, not {len(self.addresses)}."
            )
        check_peer_addresses(self.addresses)

    @classmethod
    def admitting(cls, admission: NewMember, addresses: tuple[str, ...]) -> "Invitation":
        """Return the invitation of a new member, which is valid as long as the certificate."""
        certificate = read_certificate(admission.certificate)
        last_day = datetime.fromtimestamp(certificate.ends_at_s, UTC).date()
        return cls(
            addresses=addresses,
            network=certificate.swarm,
            is_private=True,
            last_day=last_day,
            admission=admission,
        )

    @property
    def link(self) -> str:
        if self.admission is not None:
            shown = (as_line(data, prefix="") for data in (self.admission.seed, self.admission.certificate))
            return SCHEME + ",".join((*map("{}={}".format, ("key", "certificate"), shown), *self.addresses))
        parts = []
        if self.is_private or self.network != DEFAULT_NETWORK:
            parts.append(f"{'swarm' if self.is_private else 'network'}={quote(self.network, safe='')}")
        if self.last_day is not None:
            parts.append(f"until={self.last_day.isoformat()}")
        return SCHEME + ",".join((*parts, *self.addresses))

    @classmethod
    def read(cls, link: str) -> "Invitation":
        """Read a link. Raises `UsageError`."""
        try:
            return cls._read(link)
        except UsageError as error:
            raise UsageError(f"The invitation is damaged, or of a later version: {error}") from None

    @classmethod
    def _read(cls, link: str) -> "Invitation":
        addresses, named = [], dict[str, str]()
        for part in link.strip().removeprefix(SCHEME).split(","):
            name, _, value = part.partition("=")
            if part.startswith("/"):
                addresses.append(part)
            elif value and name in PARTS and name not in named:
                named[name] = unquote(value)
            else:
                raise UsageError(f"Nothing is known of {part!r}.")
        if {"key", "certificate"} & named.keys():
            admission = NewMember.read(named.pop("key", ""), named.pop("certificate", ""))
            if named:
                raise UsageError(f"Its certificate says what {min(named)!r} is.")
            return cls.admitting(admission, tuple(addresses))
        if {"network", "swarm"} <= named.keys():
            raise UsageError("It names a network and a private swarm.")
        try:
            last_day = date.fromisoformat(named["until"]) if "until" in named else None
        except ValueError:
            raise UsageError(f"{named['until']!r} is no day.") from None
        return cls(
            addresses=tuple(addresses),
            network=named.get("swarm") or named.get("network") or DEFAULT_NETWORK,
            is_private="swarm" in named,
            last_day=last_day,
        )


def follow_invitations(initial_peers: Sequence[str], access: Access) -> tuple[tuple[str, ...], Access]:
    """Replace the links among initial peers by their addresses; return these and the access to their network.

    Raises `UsageError` for an invitation that is damaged or expired, or leads to another network than `access`.
    """
    peers: list[str] = []
    for peer in initial_peers:
        if not peer.startswith(SCHEME):
            peers.append(peer)
            continue
        invitation = Invitation.read(peer)
        access = _entering(invitation, access)
        peers += invitation.addresses
    return tuple(peers), access


def _entering(invitation: Invitation, access: Access) -> Access:
    """Return the access to the network of an invitation; store its admission, if any. Raises `UsageError`."""
    is_over = invitation.last_day is not None and datetime.now(UTC).date() > invitation.last_day
    admission = invitation.admission
    # An existing swarm file may have a later certificate of the founder.
    if is_over and not (admission is not None and admission.swarm_file.exists()):
        raise UsageError(f"The invitation was valid until {invitation.last_day}; ask for a new one.")
    if invitation.network == access.network:
        return access
    is_free = access.network == DEFAULT_NETWORK and access.swarm_file is None
    if admission is not None and is_free:
        admission.accept()
        return replace(
            access,
            network=invitation.network,
            swarm_file=admission.swarm_file,
            identity_file=access.identity_file or admission.key_file,
        )
    if invitation.is_private:
        raise UsageError(
            f"The invitation is to the private swarm {invitation.network}, which needs --swarm FILE: send its "
            "founder what `cosine-node identity` prints."
        )
    if not is_free:
        raise UsageError(
            f"The invitation is to the network {invitation.network}, and {access.network} is given as well."
        )
    return replace(access, network=invitation.network)
