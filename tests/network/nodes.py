"""Nodes as processes on the hosts of a laboratory."""

import sys
from typing import Final

from tests.network.laboratory import Host
from tests.network.process import JsonProcess

COMMAND: Final = (sys.executable, "-m", "cosine_node")
TARGET: Final = "zoo:target"


class Node(JsonProcess):
    """A node that is ready. `ready` is its event of that."""

    def __init__(self, host: Host, *arguments: str) -> None:
        super().__init__(host, *COMMAND, *arguments, "--log-format", "json")
        while (event := self.hear())["event"] != "ready":
            continue
        self.ready = event

    @property
    def peer_id(self) -> str:
        return str(self.ready["peer_id"])

    @property
    def maddr(self) -> str:
        """The TCP address of a public node."""
        return next(str(maddr) for maddr in self.ready["maddrs"] if f"/{self.host.addresses[0]}/tcp/" in maddr)
