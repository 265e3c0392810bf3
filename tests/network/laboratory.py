"""Hosts, home routers and the ways between them, for as long as a test runs (the theory: `tests.network`).

with Laboratory(folder, rtt_s=0.02) as lab:
    server = lab.host("server")                                  # public, over IPv4
    home = lab.router("home", RouterKind.PORT_RESTRICTED)
    node = lab.host("node", router=home)                         # behind it
    lab.way(rtt_s=0.1, loss=0.01)                                # between any two
    server.start("ping", "-c1", other.addresses[0], log="ping.log")
"""

import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from tests.network.home_router import RouterKind

TUN: Final = Path("/dev/net/tun")
# linux/if_tun.h: an interface for IP packets without an additional header.
_TUNSETIFF: Final = 0x400454CA
_IFF_TUN_NO_PI: Final = 0x1001
MTU_BYTES: Final = 1400
PREFIX: Final = "cosine"
"""Namespaces are named after it and the process that made them, which tells whether they are left over."""


def what_is_missing() -> str:
    """Why no laboratory can be built here, in a sentence; "" where one can."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return "A laboratory of network namespaces needs Linux and root."
    if not TUN.exists() or not shutil.which("ip"):
        return "A laboratory of network namespaces needs /dev/net/tun and the command ip."
    if subprocess.run(
        ("ip", "netns", "add", f"{PREFIX}-{os.getpid()}-try"), capture_output=True, check=False
    ).returncode:
        return "A laboratory of network namespaces needs the right to make them."
    _ip("netns", "del", f"{PREFIX}-{os.getpid()}-try")
    return ""


def _ip(*words: str) -> None:
    subprocess.run(("ip", *words), check=True, capture_output=True)


@dataclass(frozen=True, slots=True)
class Router:
    """A home router, by its name and public address."""

    name: str
    public: str


@dataclass(slots=True)
class Host:
    """A machine: a network namespace, a home folder, and the processes in it."""

    lab: "Laboratory"
    name: str
    space: str
    device: str
    home: Path
    addresses: tuple[str, ...] = ()
    router: Router | None = None
    processes: "list[subprocess.Popen[str]]" = field(default_factory=list)

    def move(self, *, router: Router | None = None, is_v4: bool = True, is_v6: bool = False) -> None:
        """Give the host new addresses, in another network; those it had mean nothing any more."""
        _ip("-n", self.space, "addr", "flush", "dev", self.device, "scope", "global")
        v4 = [self.lab.next_address(behind=router)] if is_v4 else []
        self.addresses = (*v4, *([self.lab.next_address(is_v6=True)] if is_v6 else []))
        for address in self.addresses:
            family, bits, more = ("-6", 128, ("nodad",)) if ":" in address else ("-4", 24 if router else 32, ())
            _ip("-n", self.space, "addr", "add", f"{address}/{bits}", "dev", self.device, *more)
            _ip("-n", self.space, family, "route", "replace", "default", "dev", self.device)
        self.router = router
        self._place(self.addresses)

    def suspend(self) -> None:
        """Stop all processes, and let no packet come or go until `wake`, as with a closed lid."""
        self.signal("STOP")
        self._place(())

    def wake(self) -> None:
        self._place(self.addresses)
        self.signal("CONT")

    def signal(self, name: str) -> None:
        """Send a signal to all processes, also those that processes have started."""
        found = subprocess.run(("ip", "netns", "pids", self.space), capture_output=True, text=True, check=False)
        for pid in found.stdout.split():
            subprocess.run(("kill", f"-{name}", pid), capture_output=True, check=False)

    def _place(self, addresses: Sequence[str]) -> None:
        router = self.router.name if self.router else ""
        self.lab.tell(do="place", name=self.name, router=router, addresses=addresses)

    def start(self, *command: str, log: str, **environment: str) -> "subprocess.Popen[str]":
        """A process with pipes for its input and output; its errors go to a file of the home folder."""
        own = {"HOME": str(self.home), "HF_HUB_OFFLINE": "1"}
        own |= {f"XDG_{kind}_HOME": str(self.home / kind.lower()) for kind in ("DATA", "CACHE", "CONFIG", "STATE")}
        # Whatever becomes of the test, nothing that it started outlives it.
        bound = ("setpriv", "--pdeathsig", "KILL", "--") if shutil.which("setpriv") else ()
        with (self.home / log).open("ab") as errors:
            process = subprocess.Popen(
                (*bound, "ip", "netns", "exec", self.space, *command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=os.environ | own | environment,
            )
        self.processes.append(process)
        return process


class Laboratory:
    """Use it with `with`. Any two hosts are `rtt_s` apart. Logs lie below `folder`."""

    def __init__(self, folder: Path, *, rtt_s: float = 0.02) -> None:
        self._folder = folder
        self._rtt_s = rtt_s
        self._hosts: list[Host] = []
        self._numbers = {"public": 0, "v6": 0, "inside": 1}

    def __enter__(self) -> "Laboratory":
        _sweep()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = (sys.executable, "-m", "tests.network.internet", str(theirs.fileno()))
        self._internet = subprocess.Popen(command, pass_fds=[theirs.fileno()])
        theirs.close()
        self.way(rtt_s=self._rtt_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for host in self._hosts:
            host.signal("KILL")
            for process in host.processes:
                process.kill()
                process.wait()
                for pipe in (process.stdin, process.stdout):
                    if pipe is not None:
                        pipe.close()
        self._control.close()
        self._internet.wait()
        for host in self._hosts:
            _ip("netns", "del", host.space)

    def host(
        self,
        name: str,
        *,
        router: Router | None = None,
        is_v4: bool = True,
        is_v6: bool = False,
    ) -> Host:
        """A new host with these addresses; its IPv6 address is public, also behind a router."""
        number = len(self._hosts)
        host = Host(
            self, name, f"{PREFIX}-{os.getpid()}-{number}", f"cl{os.getpid()}n{number}", self._folder / name
        )
        host.home.mkdir(parents=True)
        file = os.open(TUN, os.O_RDWR)
        try:
            fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", host.device.encode(), _IFF_TUN_NO_PI))
            _ip("netns", "add", host.space)
            self._hosts.append(host)
            _ip("link", "set", host.device, "netns", host.space)
            if not is_v6:
                _ip("netns", "exec", host.space, "sysctl", "-qw", "net.ipv6.conf.all.disable_ipv6=1")
            _ip("-n", host.space, "link", "set", "lo", "up")
            _ip("-n", host.space, "link", "set", host.device, "up", "mtu", str(MTU_BYTES))
            if not is_v4:
                _ip("-n", host.space, "addr", "del", "127.0.0.1/8", "dev", "lo")
            self.tell(file, do="host", name=name)
        finally:
            os.close(file)
        host.move(router=router, is_v4=is_v4, is_v6=is_v6)
        return host

    def router(self, name: str, kind: RouterKind) -> Router:
        router = Router(name, self.next_address())
        self.tell(do="router", name=name, public=router.public, kind=kind.name)
        return router

    def way(self, *, rtt_s: float, loss: float = 0.0) -> None:
        """The round trip between any two hosts, and the share of packets that is lost."""
        self.tell(do="way", rtt_s=rtt_s, loss=loss)

    def next_address(self, *, behind: Router | None = None, is_v6: bool = False) -> str:
        """An address that no host has had."""
        kind = "v6" if is_v6 else "inside" if behind else "public"
        self._numbers[kind] += 1
        number = self._numbers[kind]
        # Each public address is in a separate range, as with another provider.
        return {"v6": f"2600:{number:x}::1", "inside": f"192.168.1.{number}", "public": f"45.{10 + number}.0.1"}[
            kind
        ]

    def tell(self, *files: int, **order: object) -> None:
        """Give the internet an order, and wait until it is carried out."""
        socket.send_fds(self._control, [json.dumps(order).encode()], files)
        self._control.recv(16)


def _sweep() -> None:
    """Remove namespaces that a laboratory left whose process was killed."""
    listed = subprocess.run(("ip", "netns", "list"), capture_output=True, text=True, check=True).stdout
    names: Sequence[str] = [line.split()[0] for line in listed.splitlines() if line.strip()]
    for name in names:
        prefix, _, rest = name.partition("-")
        maker = rest.partition("-")[0]
        if prefix == PREFIX and maker.isdecimal() and rest.count("-") == 1 and not Path(f"/proc/{maker}").exists():
            _ip("netns", "del", name)
