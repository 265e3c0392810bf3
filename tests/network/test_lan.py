"""A living room: machines of one local network find each other, and nobody types an address.

The log has the seconds from a command to its first text: `pytest --log-cli-level=INFO`.
"""

import json
import logging
import shlex
import sys
import time
from pathlib import Path
from typing import Final

import pytest

from tests.network.home_router import RouterKind
from tests.network.laboratory import Host, Laboratory
from tests.network.nodes import COMMAND, Node
from tests.qr_codes import read_code

pytestmark = [pytest.mark.network, pytest.mark.lab]
LOG = logging.getLogger(__name__)
IN_LAN: Final = {"COSINE_LAN": "1"}
PROMPT: Final = "The old lighthouse keeper"
COMMAND_S: Final = 30.0
"""Bounds the end of a command after its last word."""


def room_of_three(lab: Laboratory) -> tuple[Host, Host, Host]:
    room = lab.router("room", RouterKind.PORT_RESTRICTED)
    return lab.host("first", router=room), lab.host("second", router=room), lab.host("third", router=room)


def start_at_once(*commands: tuple[Host, str]) -> list[Node]:
    """Start nodes at the same moment, and wait until all are ready."""
    nodes = [Node(host, *words.split(), waits=False, **IN_LAN) for host, words in commands]
    assert all(node.ready for node in nodes)
    return nodes


def output_of(host: Host, *command: str) -> str:
    """The output of a command that ends well."""
    began_s = time.monotonic()
    process = host.start(*command, log="command.log", **IN_LAN)
    assert process.stdout is not None
    first = process.stdout.read(1)
    LOG.info("%s: %s: the first letter after %.1f s", host.name, command[-4:], time.monotonic() - began_s)
    told = first + process.stdout.read()
    assert process.wait(COMMAND_S) == 0, (host.home / "command.log").read_text()
    return told


def text_of(host: Host, arguments: str = "") -> str:
    return output_of(host, *COMMAND, "generate", PROMPT, *arguments.split())


def peers_of(host: Host, arguments: str = "") -> set[str]:
    """The nodes that a client finds."""
    status = json.loads(output_of(host, *COMMAND, "status", "--json", *arguments.split()))
    return {node["peer_id"] for node in status["nodes"]}


def invitation_of(host: Host, arguments: str = "") -> str:
    """The link that a camera reads from the code in a terminal."""
    command = shlex.join((*COMMAND, "invite", *arguments.split()))
    return read_code(output_of(host, "script", "-qec", command, "/dev/null").splitlines())


def test_three_laptops_without_an_internet(lab: Laboratory) -> None:
    first, second, third = room_of_three(lab)
    for host in (first, second, third):
        assert host.start("ip", "route", "del", "default", log="route.log").wait() == 0
    _, verifier, drafter = start_at_once((first, "bootstrap"), (first, "verify"), (second, "draft"))
    text = text_of(third)
    assert len(text) > len(PROMPT)
    assert peers_of(third) == {verifier.peer_id, drafter.peer_id}
    assert text_of(third, f"--no-lan --initial-peers {invitation_of(first)}") == text


def test_a_stranger_behind_another_router_joins_with_the_link_of_the_room(lab: Laboratory) -> None:
    relay, (first, second, third) = lab.host("relay"), room_of_three(lab)
    link = invitation_of(relay, f"--initial-peers {Node(relay, 'bootstrap').maddr}")
    verifier, drafter = start_at_once((first, f"verify {link}"), (second, f"draft {link}"))
    assert peers_of(third) == {verifier.peer_id, drafter.peer_id}
    fourth = lab.host("fourth", router=lab.router("elsewhere", RouterKind.PORT_RESTRICTED))
    assert text_of(fourth, f"--initial-peers {link}") == text_of(third)


def test_swarms_in_one_room_stay_apart_by_name_and_by_certificate(lab: Laboratory, tmp_path: Path) -> None:
    first, second, third = room_of_three(lab)
    founder = str(tmp_path / "founder")
    founded = json.loads(output_of(first, *COMMAND, "swarm", "create", "friends", "--out", founder, "--json"))
    files = {}
    for host in (first, third):
        peer_id = json.loads(output_of(host, *COMMAND, "identity", "--json"))["peer_id"]
        files[host.name] = tmp_path / f"{host.name}.swarm"
        files[host.name].write_text(
            output_of(first, *COMMAND, "swarm", "admit", peer_id, "--days", "1", "--folder", founder)
        )
    _, ours, _ = start_at_once(
        (second, f"verify --network {founded['swarm']}"),
        (first, f"verify --swarm {files['first']}"),
        (second, "verify --network theirs"),
    )
    assert peers_of(third, f"--swarm {files['third']}") == {ours.peer_id}


def test_a_node_whose_multicast_is_refused_says_so_once_and_serves(lab: Laboratory) -> None:
    host, *_ = room_of_three(lab)
    holds = (
        "import socket, time; s = socket.socket(type=socket.SOCK_DGRAM); s.bind(('', 5353)); print(1, flush=True)"
    )
    holder = host.start(sys.executable, "-c", f"{holds}; time.sleep(99)", log="holder.log")
    assert holder.stdout is not None and holder.stdout.read(1) == "1"
    node = Node(host, "bootstrap", waits=True, **IN_LAN)
    time.sleep(2.0)
    assert (host.home / "Node.log").read_text().count("in the local network") == 1
    assert node.process.poll() is None
