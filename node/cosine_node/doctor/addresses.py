"""Addresses: whether a node answers at one, whether ours can be listened on, and whether others could reach us.

Whoever answers proves its peer id over TLS as the libp2p specification has it (tls/tls.md): the certificate carries
the node's public key and its signature over the certificate's own. No p2pd is needed for that, so it works where
p2pd is what is broken.
"""

import errno
import socket
import ssl
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_p2p.transport.addresses import Address, parse_address, split_multiaddr
from cosine_p2p.transport.reach import OBSERVERS
from cosine_protocol.errors import BadSignature
from cosine_protocol.identity import peer_id_of, public_key_of

# As the specification has them: the certificate's extension, what is signed, and the two protocols agreed on first.
_EXTENSION: Final = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
_SIGNED_PREFIX: Final = b"libp2p-tls-handshake:"
_SELECT: Final = b"\x13/multistream/1.0.0\n", b"\x0b/tls/1.0.0\n"
# DER of SEQUENCE { OCTET STRING key protobuf, OCTET STRING signature } around an Ed25519 key and signature.
_KEY_HEADER: Final = b"\x30\x68\x04\x24\x08\x01\x12\x20"
_SIGNATURE_HEADER: Final = b"\x04\x40"
_KEY_BYTES: Final = 32
# The socket for each kind of host and port in a multiaddr.
_FAMILIES: Final = {"ip4": socket.AF_INET, "dns4": socket.AF_INET, "ip6": socket.AF_INET6, "dns6": socket.AF_INET6}
_KINDS: Final = {"tcp": socket.SOCK_STREAM, "udp": socket.SOCK_DGRAM}


def parse_node_address(text: str) -> Address:
    """The address of a node, which says whose it is. Raises `ValueError` with a clause that says what is wrong."""
    address = parse_address(text, needs_peer=True)
    for peer_id in address.peer_ids:
        try:
            public_key_of(peer_id)
        except BadSignature:
            raise ValueError(f"{peer_id!r} is no peer id of a node") from None
    return address


class DialOutcome(Enum):
    """The result of dialling an address."""

    NODE = auto()
    MALFORMED = auto()
    UNRESOLVED = auto()
    REFUSED = auto()
    SILENT = auto()
    UNREACHABLE = auto()
    NO_NODE = auto()
    UNTESTED = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialled:
    """An address of somebody else, dialled. The IPs are those of the two ends of the connection, "" without one.

    `peer_id` is whoever answered; `born_s` the Unix time before which its certificate was not valid.
    """

    address: str
    answer: DialOutcome
    detail: str = ""
    peer_id: str = ""
    our_ip: str = ""
    their_ip: str = ""
    born_s: float | None = None


def dial(text: str, *, timeout_s: float) -> Dialled:
    """Dial somebody's address. Blocks up to `timeout_s` for each of its few steps; never raises for the peer."""

    def unanswered(answer: DialOutcome, detail: str = "") -> Dialled:
        return Dialled(address=text, answer=answer, detail=detail)

    try:
        address = parse_node_address(text)
    except ValueError as error:
        return unanswered(DialOutcome.MALFORMED, str(error))
    if address.host_kind == "dnsaddr":
        return unanswered(DialOutcome.UNTESTED, "a dnsaddr cannot be tested before a node runs")
    try:
        family = _FAMILIES.get(address.host_kind, socket.AF_UNSPEC)
        found = socket.getaddrinfo(address.host, address.port, family, socket.SOCK_STREAM)
        host, port = found[0][4][:2]
    except (OSError, UnicodeError) as error:
        return unanswered(DialOutcome.UNRESOLVED, getattr(error, "strerror", "") or str(error))
    if not address.is_plain_tcp:
        return unanswered(DialOutcome.UNTESTED, "only plain TCP can be tested before a node runs")
    try:
        with socket.create_connection((str(host), int(port)), timeout_s) as connection:
            ours, theirs = connection.getsockname()[0], connection.getpeername()[0]
            return _greet(
                connection, Dialled(address=text, answer=DialOutcome.NO_NODE, our_ip=ours, their_ip=theirs)
            )
    except TimeoutError:
        return unanswered(DialOutcome.SILENT)
    except ConnectionRefusedError:
        return unanswered(DialOutcome.REFUSED)
    except OSError as error:
        return unanswered(DialOutcome.UNREACHABLE, error.strerror or str(error))


def _greet(connection: socket.socket, ends: Dialled) -> Dialled:
    """Shake hands over a connection with these two ends, and say who answered."""
    try:
        certificate = x509.load_der_x509_certificate(_certificate(connection))
        peer_id = _proved_peer(certificate)
    except TimeoutError:
        return replace(ends, detail="it says nothing")
    except (OSError, ValueError, x509.ExtensionNotFound, InvalidSignature) as error:
        return replace(ends, detail=str(error) or type(error).__name__)
    born_s = certificate.not_valid_before_utc.timestamp()
    return replace(ends, answer=DialOutcome.NODE, peer_id=peer_id, born_s=born_s)


def _certificate(connection: socket.socket) -> bytes:
    """The peer's certificate in DER, once both ends have agreed on TLS."""
    connection.sendall(b"".join(_SELECT))
    for expected in _SELECT:
        data = b""
        while len(data) < len(expected):
            piece = connection.recv(len(expected) - len(data))
            if not piece:
                raise ValueError("it hung up")
            data += piece
        if data != expected:
            raise ValueError("it does not speak libp2p over TLS")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # The key inside the certificate is what names the peer; there is no authority to ask.
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["libp2p"])
    with context.wrap_socket(connection.dup()) as secured:
        secured.settimeout(connection.gettimeout())
        return secured.getpeercert(binary_form=True) or b""


def _proved_peer(certificate: x509.Certificate) -> str:
    """The peer id that a certificate proves. Raises `ValueError`, `ExtensionNotFound` or `InvalidSignature`."""
    extension = certificate.extensions.get_extension_for_oid(_EXTENSION).value
    data = extension.value if isinstance(extension, x509.UnrecognizedExtension) else b""
    key_end = len(_KEY_HEADER) + _KEY_BYTES
    if not data.startswith(_KEY_HEADER) or data[key_end : key_end + 2] != _SIGNATURE_HEADER:
        raise ValueError("its key is of another kind than those of nodes")
    key = data[len(_KEY_HEADER) : key_end]
    its_own = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    Ed25519PublicKey.from_public_bytes(key).verify(data[key_end + 2 :], _SIGNED_PREFIX + its_own)
    return peer_id_of(key)


# What each other outcome means, and what to do about it; `option` names the node.
_UNANSWERED: Final = {
    DialOutcome.MALFORMED: (
        "this is no address: {detail}",
        "Write {option} like /ip4/192.0.2.1/tcp/4001/p2p/12D3KooW....",
    ),
    DialOutcome.UNRESOLVED: (
        "the name is not known here: {detail}",
        "Correct the name, or give {option} an IP.",
    ),
    DialOutcome.REFUSED: ("nothing listens there", "Start the node, or correct the port in {option}."),
    DialOutcome.SILENT: (
        "nothing answers there: the machine is off, or a firewall drops what is sent to it",
        "Correct the host in {option}, or open the port in the firewall and router on the other side.",
    ),
    DialOutcome.UNREACHABLE: ("there is no way there: {detail}", "Connect to a network that leads to {option}."),
    DialOutcome.NO_NODE: ("whatever listens there is no node: {detail}", "Correct the port in {option}."),
}


def judge_address(dialled: Dialled, *, option: str) -> Finding:
    """Judge whether the node that `option` names answers at its address."""
    what = f"{option} {dialled.address}"
    if dialled.answer is DialOutcome.UNTESTED:
        return skipped(what, dialled.detail)
    if dialled.answer is not DialOutcome.NODE:
        found, fix = _UNANSWERED[dialled.answer]
        return failure(what, found.format(detail=dialled.detail), fix.format(option=option))
    # Through a relay it is the relay that answers.
    meant = parse_node_address(dialled.address).peer_ids[0]
    if dialled.peer_id == meant:
        return fine(what, "the node answers")
    return failure(
        what,
        f"another node answers there, {dialled.peer_id}",
        f"If that is the node you mean, use {option} {dialled.address.replace(meant, dialled.peer_id)}.",
    )


def judge_port(maddr: str) -> Finding:
    """Judge whether a node could listen at one of our own addresses, by trying it."""
    what = f"port {maddr}"
    try:
        address = parse_address(maddr)
    except ValueError as error:
        fix = "Write --host-maddr like /ip4/0.0.0.0/tcp/4001."
        return failure(what, f"this is no address: {error}", fix)
    family, kind = _FAMILIES.get(address.host_kind, socket.AF_INET), _KINDS[address.port_kind]
    with socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                found, fix = "another program listens there", "Stop it, or choose another port with --host-maddr."
            else:
                found = f"it cannot be listened on: {error.strerror or error}"
                fix = "Choose an address of this machine with --host-maddr."
            return failure(what, found, fix)
    return fine(what, "any free port is taken, another one at each start" if address.port == 0 else "it is free")


REACH: Final = "reachability"
"""The name of the check."""


def judge_reachability(
    *,
    host_maddrs: Sequence[str],
    announce_maddrs: Sequence[str],
    relays: Sequence[str],
    paths: Sequence[tuple[str, str]],
    local: Collection[str] = (),
) -> Finding:
    """Judge whether others could dial a node here, as far as that can be known when none dials back.

    `paths` are the two ends' IPs of connections that came about, `local` this machine's own on its ways out.
    """
    not_tested = "whether a firewall lets others in cannot be tested from this side"
    if relays:
        return fine(REACH, f"others reach this node through {len(relays)} relay(s)")
    if announce_maddrs:
        hidden = [maddr for maddr in announce_maddrs if _is_private(maddr)]
        if hidden:
            found = f"{hidden[0]} is announced, which nobody outside this network can dial"
            return warning(REACH, found, "Name the router's public address with --announce-maddr.")
        return fine(REACH, f"{announce_maddrs[0]} is announced; {not_tested}")
    own = [_ip_of(maddr) for maddr in host_maddrs]
    if own and all(ip is not None and ip.is_loopback for ip in own):
        fix = "To let others in, add --host-maddr /ip4/0.0.0.0/tcp/4001."
        return warning(REACH, "only this machine can reach the node", fix)
    outward = [ours for ours, theirs in paths if not _is_private(theirs)]
    if local and all(":" in place for place in local):
        fix = "Let peers have IPv6, too, or get this machine an IPv4 address; a node with both relays between them."
        return warning(REACH, "this machine has addresses over IPv6 alone, which peers without it cannot dial", fix)
    if any(not _is_private(place) for place in [*outward, *host_maddrs]):
        return fine(REACH, f"this machine has a public address; {not_tested}")
    if outward:
        public = len({theirs for _, theirs in paths if not _is_private(theirs)})
        few = ""
        if public < OBSERVERS:
            few = (
                f"; these are too few public peers, {public} of {OBSERVERS}, for a direct way to others behind NAT"
            )
        return warning(
            REACH,
            f"this machine is behind NAT, as {outward[0]}: unless its router opens a port by itself (UPnP), peers "
            f"reach it through initial peers that relay{few}",
            "Name two `bootstrap` nodes as initial peers, or forward a port and add --announce-maddr. When it is "
            "ready the node says how it is reached.",
        )
    if paths:
        return fine(REACH, f"the initial peers are on this machine's own network; {not_tested}")
    return skipped(REACH, "no initial peer was reached, so nothing is known about the way out")


def _ip_of(place: str) -> IPv4Address | IPv6Address | None:
    """The IP that a place is, or that a multiaddr begins with; None for a name, which may mean anything."""
    try:
        return ip_address(split_multiaddr(place)[0][1] if place.startswith("/") else place)
    except ValueError:
        return None


def _is_private(place: str) -> bool:
    """True if its IP means something on one network only."""
    ip = _ip_of(place)
    return ip is not None and not ip.is_global
