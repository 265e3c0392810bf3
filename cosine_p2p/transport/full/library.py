"""The only module that imports hivemind (without torch). Import it only where a node starts."""

import logging
from pkgutil import iter_modules

from cosine_p2p.transport.partial_library import imported_in_part

with imported_in_part("hivemind"):
    from hivemind.dht.protocol import DHTProtocol
    from hivemind.dht.routing import DHTID, RoutingTable
    from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
    from hivemind.dht.traverse import traverse_dht
    from hivemind.p2p import P2P, PeerID
    from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, read_pbmsg_safe, write_pbmsg
    from hivemind.proto import dht_pb2, p2pd_pb2
    from hivemind.utils import MSGPackSerializer
    from hivemind.utils.logging import use_hivemind_log_handler
    from hivemind.utils.multiaddr import codecs
    from hivemind.utils.timed_storage import ValueWithExpiration

    # A later import, with the first address of its kind, would import the whole library.
    for codec in iter_modules(codecs.__path__):
        codecs.codec_by_name(codec.name)

__all__ = [
    "DHTID", "P2P", "DHTLocalStorage", "DHTProtocol", "DictionaryDHTValue", "MSGPackSerializer",
    "P2PDaemonError", "PeerID", "RoutingTable", "ValueWithExpiration", "dht_pb2",
    "p2pd_pb2", "read_pbmsg_safe", "traverse_dht", "write_pbmsg",
]  # fmt: skip

# Otherwise hivemind writes to stderr, regardless of the application's logging.
use_hivemind_log_handler("nowhere")
logging.getLogger("hivemind").setLevel(logging.WARNING)
