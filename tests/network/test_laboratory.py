"""The laboratory itself: ways are as long as they are said to be, homes are closed, and nothing is left behind."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.network.home_router import RouterKind
from tests.network.laboratory import Laboratory, what_is_missing

pytestmark = pytest.mark.network

SERVE = """
import socket, sys
family, host = (socket.AF_INET6, "::") if sys.argv[1:] else (socket.AF_INET, "")
server = socket.create_server((host, 7000), family=family)
print("listening", flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"here")
    connection.close()
"""
ASK = """
import socket, sys, time
began = time.monotonic()
connection = socket.create_connection((sys.argv[1], 7000), 1.0)
print(connection.recv(4).decode(), time.monotonic() - began)
"""


def test_a_home_is_left_and_not_entered_and_a_way_takes_its_time(lab: Laboratory) -> None:
    server = lab.host("server")
    home = lab.router("home", RouterKind.PORT_RESTRICTED)
    inside = lab.host("inside", router=home)
    lab.way("server", "inside", rtt_s=0.1)
    for host in (server, inside):
        out = host.start(sys.executable, "-c", SERVE, log="serve.log").stdout
        assert out is not None and out.readline() == "listening\n"
    answer, took_s = inside.run(sys.executable, "-c", ASK, server.addresses[0]).split()
    # The handshake's round trip, and that of the first data.
    assert (answer, float(took_s) >= 0.15) == ("here", True)
    asking = server.start(sys.executable, "-c", ASK, home.public, log="ask.log")
    assert asking.wait(10) != 0
    assert lab.carried_bytes()["inside server"] > 0


def test_hosts_have_the_versions_of_ip_that_they_were_given(lab: Laboratory) -> None:
    one, two = (lab.host(name, is_v4=False, is_v6=True) for name in ("one", "two"))
    out = two.start(sys.executable, "-c", SERVE, "v6", log="serve.log").stdout
    assert out is not None and out.readline() == "listening\n"
    assert one.run(sys.executable, "-c", ASK, two.addresses[0]).split()[0] == "here"
    assert [":" in address for address in one.addresses] == [True]


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    if reason := what_is_missing():
        pytest.skip(reason)

    def seen() -> list[str]:
        commands = (("ip", "netns", "list"), ("ip", "-o", "link"), ("ip", "route"))
        return [subprocess.run(each, capture_output=True, text=True, check=True).stdout for each in commands]

    before = seen()
    with Laboratory(tmp_path) as lab:
        sleeping = lab.host("one").start("sleep", "1000", log="sleep.log")
    assert sleeping.poll() is not None
    # Others may have laboratories of their own meanwhile; ours are gone.
    assert f"cosine-{Path('/proc/self').resolve().name}-" not in seen()[0]
    assert seen()[1:] == before[1:]
