"""The only module that imports py-libp2p (and with it trio). Import it only where a light client starts."""

import logging

from cosine_p2p.transport.partial_library import imported_in_part

# Only the name of QUIC's stream type is used; QUIC is a tenth of all loaded code.
with imported_in_part("libp2p", without=["libp2p.transport.quic.stream"]):
    from libp2p.crypto.ed25519 import Ed25519PrivateKey
    from libp2p.crypto.keys import KeyPair
    from libp2p.crypto.x25519 import create_new_key_pair as new_noise_keys
    from libp2p.exceptions import BaseLibp2pError
    from libp2p.io.abc import Reader
    from libp2p.io.trio import TrioTCPStream
    from libp2p.network.connection.exceptions import RawConnError
    from libp2p.network.connection.raw_connection import RawConnection
    from libp2p.peer.id import ID
    from libp2p.relay.circuit_v2.pb.circuit_pb2 import HopMessage, Status
    from libp2p.security.noise.transport import Transport as NoiseTransport
    from libp2p.stream_muxer.yamux.yamux import MAX_WINDOW_SIZE, Yamux
    from libp2p.utils.varint import encode_delim, encode_varint_prefixed, read_varint_prefixed_bytes_limited

__all__ = [
    "ID", "MAX_WINDOW_SIZE", "BaseLibp2pError", "Ed25519PrivateKey", "HopMessage", "KeyPair", "NoiseTransport",
    "RawConnError", "RawConnection", "Reader", "Status", "TrioTCPStream", "Yamux", "encode_delim",
    "encode_varint_prefixed", "new_noise_keys", "read_varint_prefixed_bytes_limited",
]  # fmt: skip

# Without a handler its messages go to stderr, where every peer that leaves counts as an error.
logging.getLogger("libp2p").addHandler(logging.NullHandler())
