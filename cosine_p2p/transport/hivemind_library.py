"""The one place that imports hivemind (and with it torch). Import this module only where a node starts.

hivemind and py-libp2p both register `crypto.proto`; a private protobuf pool during the first import of hivemind
lets them share a process, in either order.
"""

import logging
import warnings

from google.protobuf import descriptor_pool

_default_pool, _private_pool = descriptor_pool.Default, descriptor_pool.DescriptorPool()
descriptor_pool.Default = lambda: _private_pool
try:
    with warnings.catch_warnings():
        # torch and others warn about themselves while they are imported.
        warnings.simplefilter("ignore")
        from hivemind.dht.node import DHTNode
        from hivemind.dht.routing import DHTID
        from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue
        from hivemind.dht.validation import DHTRecord, RecordValidatorBase
        from hivemind.p2p import P2P, PeerID
        from hivemind.p2p.p2p_daemon_bindings.utils import P2PDaemonError, read_pbmsg_safe, write_pbmsg
        from hivemind.proto import p2pd_pb2
        from hivemind.utils import MSGPackSerializer
        from hivemind.utils.logging import use_hivemind_log_handler
        from hivemind.utils.multiaddr import Multiaddr
        from hivemind.utils.timed_storage import ValueWithExpiration
finally:
    descriptor_pool.Default = _default_pool

__all__ = [
    "DHTID",
    "P2P",
    "DHTLocalStorage",
    "DHTNode",
    "DHTRecord",
    "DictionaryDHTValue",
    "MSGPackSerializer",
    "Multiaddr",
    "P2PDaemonError",
    "PeerID",
    "RecordValidatorBase",
    "ValueWithExpiration",
    "p2pd_pb2",
    "read_pbmsg_safe",
    "write_pbmsg",
]

# Without this hivemind formats its own lines on stderr, whatever logging the application chose.
use_hivemind_log_handler("nowhere")
logging.getLogger("hivemind").setLevel(logging.WARNING)
