"""`cosine-node identity`: show this machine's peer id, creating its key file if there is none."""

import json
import sys

from cosine_node.cli.options import AsJson, IdentityFile


def identity(identity: IdentityFile = None, as_json: AsJson = False) -> None:
    """Show the peer id of a key file, which is created if it does not exist."""
    from cosine_p2p.identity_file import default_identity_file, load_identity

    file = identity or default_identity_file()
    peer_id = load_identity(file).peer_id
    text = json.dumps({"peer_id": peer_id, "file": str(file)}) if as_json else f"{peer_id}\n  {file}"
    sys.stdout.write(text + "\n")
