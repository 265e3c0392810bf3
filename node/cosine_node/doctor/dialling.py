"""Dials addresses and tries ports; whoever answers proves its peer id as libp2p over TLS has it.

TLS as in the libp2p specification (tls/tls.md): the certificate carries the node's public key and its signature
over the certificate's own. No p2pd is needed for it, so it works where that is what is broken.
"""

import errno
import socket
import ssl
from dataclasses import replace
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from cosine_node.doctor.addresses import Dialled, DialOutcome, TriedPort, parse_node_address
from cosine_p2p.transport.addresses import parse_address
from cosine_protocol.identity import peer_id_of

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


def dial(text: str, *, timeout_s: float) -> Dialled:
    """Dial somebody's address. Blocks up to `timeout_s` for each of its few steps; never raises for the peer."""
    try:
        address = parse_node_address(text)
    except ValueError as error:
        return Dialled(address=text, answer=DialOutcome.MALFORMED, detail=str(error))
    if address.host_kind == "dnsaddr":
        return Dialled(
            address=text, answer=DialOutcome.UNTESTED, detail="a dnsaddr cannot be tested before a node runs"
        )
    try:
        family = _FAMILIES.get(address.host_kind, socket.AF_UNSPEC)
        found = socket.getaddrinfo(address.host, address.port, family, socket.SOCK_STREAM)
        host, port = found[0][4][:2]
    except (OSError, UnicodeError) as error:
        return Dialled(
            address=text, answer=DialOutcome.UNRESOLVED, detail=getattr(error, "strerror", "") or str(error)
        )
    if not address.is_plain_tcp:
        return Dialled(
            address=text, answer=DialOutcome.UNTESTED, detail="only plain TCP can be tested before a node runs"
        )
    try:
        with socket.create_connection((str(host), int(port)), timeout_s) as connection:
            ends = Dialled(
                address=text,
                answer=DialOutcome.NO_NODE,
                our_ip=connection.getsockname()[0],
                their_ip=connection.getpeername()[0],
            )
            return _greet(connection, ends)
    except TimeoutError:
        return Dialled(address=text, answer=DialOutcome.SILENT)
    except ConnectionRefusedError:
        return Dialled(address=text, answer=DialOutcome.REFUSED)
    except OSError as error:
        return Dialled(address=text, answer=DialOutcome.UNREACHABLE, detail=error.strerror or str(error))


def _greet(connection: socket.socket, ends: Dialled) -> Dialled:
    """Shake hands over a connection with these two ends, and say who answered."""
    try:
        certificate = x509.load_der_x509_certificate(_certificate(connection))
        peer_id = _proved_peer(certificate)
    except TimeoutError:
        return replace(ends, detail="it says nothing")
    except (OSError, ValueError, x509.ExtensionNotFound, InvalidSignature) as error:
        return replace(ends, detail=str(error) or type(error).__name__)
    return replace(
        ends, answer=DialOutcome.NODE, peer_id=peer_id, born_s=certificate.not_valid_before_utc.timestamp()
    )


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


def try_port(maddr: str) -> TriedPort:
    """Try to listen on one of our own addresses. Raises `ValueError` for what is no address."""
    address = parse_address(maddr)
    family, kind = _FAMILIES.get(address.host_kind, socket.AF_INET), _KINDS[address.port_kind]
    with socket.socket(family, kind) as probe:
        if kind == socket.SOCK_STREAM:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            is_taken = error.errno == errno.EADDRINUSE
            return TriedPort(maddr=maddr, is_taken=is_taken, error="" if is_taken else error.strerror or str(error))
    return TriedPort(maddr=maddr)
