"""Nodes as processes on the hosts of a laboratory."""

import sys
from functools import cached_property
from typing import Any, Final

from tests.network.laboratory import Host
from tests.network.process import JsonProcess

COMMAND: Final = (sys.executable, "-m", "cosine_node")
TARGET: Final = "zoo:target"


class Node(JsonProcess):
    """A node. With `waits` it is ready when made, else when `ready`, its event of that, is first read."""

    def __init__(self, host: Host, *arguments: str, waits: bool = True, **environment: str) -> None:
        super().__init__(host, *COMMAND, *arguments, "--log-format", "json", **environment)
        if waits:
            assert self.ready

    @cached_property
    def ready(self) -> dict[str, Any]:
        while (event := self.hear())["event"] != "ready":
            continue
        return event

    @property
    def peer_id(self) -> str:
        return str(self.ready["peer_id"])

    @property
    def maddr(self) -> str:
        """The TCP address of a public node."""
        return next(str(maddr) for maddr in self.ready["maddrs"] if f"/{self.host.addresses[0]}/tcp/" in maddr)
