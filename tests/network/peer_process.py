"""A transport in a host of a laboratory (`tests.network.peer`), as a test asks it."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from tests.network.laboratory import Host

COMMAND: Final = (sys.executable, "-m", "tests.network.peer")


@dataclass(slots=True)
class PeerProcess:
    """Started by `start`; `peer_id` and `maddrs` are known once it is ready."""

    host: Host
    process: Any
    peer_id: str = ""
    maddrs: tuple[str, ...] = ()

    @classmethod
    def start(cls, host: Host, **config: Any) -> "PeerProcess":
        """A transport with that config, once it is ready."""
        peer = cls(host, host.start(*COMMAND, json.dumps(config), log="peer.log"))
        line = peer.process.stdout.readline()
        assert line, (host.home / "peer.log").read_text()
        hello = json.loads(line)
        peer.peer_id, peer.maddrs = hello["peer"], tuple(hello["maddrs"])
        return peer

    @property
    def maddr(self) -> str:
        """Where others dial it, over TCP."""
        return next(maddr for maddr in self.maddrs if f"/{self.host.addresses[0]}/tcp/" in maddr)

    def ask(self, **order: Any) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, (self.host.home / "peer.log").read_text()
        answer: dict[str, Any] = json.loads(line)
        return answer

    def reach(self) -> dict[str, Any]:
        return self.ask(do="reach")

    def dial(self, other: "PeerProcess", **more: Any) -> dict[str, Any]:
        """Open a stream by the addresses that the other announces, and measure it."""
        return self.ask(do="dial", peer=other.peer_id, maddrs=other.reach()["maddrs"], **more)

    def end(self) -> None:
        """As a machine that is switched off, except that the system hangs up."""
        self.process.kill()
        self.process.wait()


def wait_until(is_so: Callable[[], bool], *, within_s: float) -> float:
    """The seconds until it is so; fails after `within_s`."""
    began_s = time.monotonic()
    while not is_so():
        assert time.monotonic() - began_s < within_s, f"it was not so within {within_s:g} s"
        time.sleep(0.1)
    return time.monotonic() - began_s
