"""`cosine-node bootstrap`: a node that serves the DHT and relays, but no model. `cosine-node identity`."""

import json
import sys

from cosine_node.cli.options import AsJson, DeniedPeers, IdentityFile, LogFormat, Place, takes_options
from cosine_node.terminal.events import telling
from cosine_node.terminal.interrupts import run_until_stopped
from cosine_p2p.storage.identity_file import default_identity_file, load_identity


@takes_options
def bootstrap(
    place: Place,
    deny: DeniedPeers = None,
    log_format: LogFormat = "pretty",
    as_json: AsJson = False,
) -> None:
    """Keep the DHT and relay for others until interrupted."""
    from cosine_node.serving.node import run_bootstrap

    options = place.network_options(deny)
    with telling(log_format, as_json=as_json) as emit:
        run_until_stopped(lambda stop: run_bootstrap(options, emit, stop))


def identity(identity: IdentityFile = None, as_json: AsJson = False) -> None:
    """Show the peer id of a key file, which is created if it does not exist."""
    file = identity or default_identity_file()
    peer_id = load_identity(file).peer_id
    text = json.dumps({"peer_id": peer_id, "file": str(file)}) if as_json else f"{peer_id}\n  {file}"
    sys.stdout.write(text + "\n")
