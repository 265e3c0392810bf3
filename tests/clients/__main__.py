"""Installs third-party clients and runs the jobs of each at a gateway over a local swarm.

It needs PyPI, the npm registry, Node.js and some gigabytes of disk.
"""

import argparse
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from cosine_engine import zoo
from tests.clients.catalogue import CLIENTS, Client
from tests.clients.installation import Installation, NotInstalled, Outcome
from tests.e2e.conftest import swarm_in
from tests.e2e.nodes import Node

LOG: Final = logging.getLogger(__name__)
MODEL: Final = "cosine"
KEY: Final = "sesame"
SMOL: Final = ("zoo:smol-target", "zoo:smol-general")
TOY: Final = ("zoo:target", "zoo:draft-general")


def main() -> int:
    """Return 0 if every job succeeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.clients", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="CLIENT", help="; ".join(client.name for client in CLIENTS))
    parser.add_argument("--cache", type=Path, help="where clients are installed and stay, by default a new folder")
    options = parser.parse_args()
    if unknown := set(options.names) - {client.name for client in CLIENTS}:
        parser.error(f"there is no client {', '.join(sorted(unknown))}")
    logging.basicConfig(format="%(message)s")
    LOG.setLevel(logging.INFO)
    chosen = [client for client in CLIENTS if client.name in options.names or not options.names]
    target = SMOL if "smol-target" in zoo.names(zoo.Family.SMOL) else TOY
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with gateway(target, folder) as url:
            cache = options.cache or folder / "installed"
            return sum(failures(client, url, cache, folder) for client in chosen)


@contextmanager
def gateway(target: Sequence[str], folder: Path) -> Iterator[str]:
    """Yield the address of a gateway over a verifier and a drafter, isolated from the user's settings."""
    name, drafter = target
    homes = {f"XDG_{kind}_HOME": str(folder / kind.lower()) for kind in ("DATA", "CACHE", "CONFIG", "STATE")}
    os.environ |= {**homes, "HF_HUB_OFFLINE": "1"}
    with swarm_in(folder, target=name, dtype=None, drafters={"general": drafter}) as swarm:
        serve = ("serve", "--port", "0", "--target", name, "--api-key", KEY, "--timeout", "600", *swarm.peers)
        node = Node.start("gateway", serve, folder).wait_ready()
        try:
            yield str(node.ready["url"])
        finally:
            node.close()


def failures(client: Client, url: str, cache: Path, folder: Path) -> int:
    """Install a client, run and report its jobs, and return the number of failures."""
    try:
        installed = Installation.make(client, cache.absolute())
        version = installed.version
        outcomes = installed.jobs_done((url, MODEL, KEY), folder / "homes" / client.folder)
    except NotInstalled as error:
        version, outcomes = "none", [Outcome("installation", failed=str(error))]
    for outcome in outcomes:
        LOG.info("%s %s, %s: %s", client.name, version, outcome.job, outcome.failed or outcome.shown)
    return sum(bool(outcome.failed) for outcome in outcomes)


if __name__ == "__main__":
    sys.exit(main())
