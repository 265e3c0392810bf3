"""Faults as people have them, planted for real: each is named by its check, with what to do about it."""

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from cosine_node import zoo
from cosine_node.doctor import machine
from cosine_node.doctor.finding import CheckStatus, Finding
from cosine_node.doctor.swarm import judge_clock, judge_swarm, judge_tokenizer
from cosine_p2p.storage.identity_file import claim_identity
from cosine_protocol.records import Role
from tests.node.doctor.examined import (
    OTHER_PEER,
    doctor_options,
    failure_of,
    findings,
    looked_around,
    running_daemon,
    running_greeter,
)

pytestmark = pytest.mark.timeout(120)


def model_folder(folder: Path, *, name: str = "draft-code") -> Path:
    """A copy of an embedded model, to break."""
    return Path(shutil.copytree(zoo.folder(name), folder / "model"))


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        maddr = f"/ip4/127.0.0.1/tcp/{taken.getsockname()[1]}"
        found = failure_of(doctor_options(tmp_path, host_maddrs=(maddr,)), "port")
    assert (found.what, found.found) == (f"port {maddr}", "another program listens there")
    assert "--host-maddr" in found.fix
    assert [finding.status for finding in findings(doctor_options(tmp_path, host_maddrs=(maddr,)), "port")] == [
        "ok"
    ]


def test_an_initial_peer_with_another_peer_id(tmp_path: Path) -> None:
    with running_daemon() as maddr:
        place, peer_id = maddr.rsplit("/", 1)
        wrong = f"{place}/{OTHER_PEER}"
        found = failure_of(doctor_options(tmp_path, initial_peers=(maddr, wrong)), "--initial-peers")
    assert found.what == f"--initial-peers {wrong}"
    assert found.found == f"another node answers there, {peer_id}"
    assert maddr in found.fix


def test_an_initial_peer_that_refuses(tmp_path: Path) -> None:
    with socket.socket() as unheard:
        unheard.bind(("127.0.0.1", 0))
        maddr = f"/ip4/127.0.0.1/tcp/{unheard.getsockname()[1]}/p2p/{OTHER_PEER}"
        found = failure_of(doctor_options(tmp_path, initial_peers=(maddr,)), "--initial-peers")
    assert found.found == "nothing listens there"
    assert "--initial-peers" in found.fix


@pytest.mark.parametrize("maddr", ["192.0.2.1:4001", "/ip4/192.0.2.1/tcp/4001", "/ip4/192.0.2.1/p2p/QmNobody", ""])
def test_an_initial_peer_that_is_no_address(tmp_path: Path, maddr: str) -> None:
    found = failure_of(doctor_options(tmp_path, initial_peers=(maddr,)), "--initial-peers")
    assert found.found.startswith("this is no address")
    assert "/p2p/12D3KooW" in found.fix


def test_a_service_of_another_kind_at_an_initial_peers_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(20)
        maddr = f"/ip4/127.0.0.1/tcp/{server.getsockname()[1]}/p2p/{OTHER_PEER}"
        with running_greeter(server, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
            found = failure_of(doctor_options(tmp_path, initial_peers=(maddr,)), "--initial-peers")
    assert found.found.startswith("whatever listens there is no node")
    assert "--initial-peers" in found.fix


def test_a_damaged_identity(tmp_path: Path) -> None:
    (tmp_path / "identity").write_bytes(b"no key")
    found = failure_of(doctor_options(tmp_path), "identity")
    assert found.what == "identity" and str(tmp_path / "identity") in found.found
    assert "--identity" in found.fix


def test_an_identity_in_use(tmp_path: Path) -> None:
    claimed = claim_identity(tmp_path / "identity")
    found = failure_of(doctor_options(tmp_path), "identity")
    claimed.release()
    assert "in use" in found.found and claimed.identity.peer_id in found.found
    assert "--identity" in found.fix
    assert [finding.status for finding in findings(doctor_options(tmp_path), "identity")] == ["ok"]


def test_a_model_without_weights(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    (folder / "model.safetensors").unlink()
    found = failure_of(doctor_options(tmp_path, models=(str(folder),), role=Role.DRAFTER), "model")
    assert found.what == f"model {folder}" and "no weights" in found.found
    assert "save_pretrained" in found.fix


def test_a_model_that_was_not_fetched_whole(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    os.truncate(folder / "model.safetensors", 100_000)
    found = failure_of(doctor_options(tmp_path, models=(str(folder),), role=Role.DRAFTER), "model")
    assert "model.safetensors is damaged" in found.found
    assert "--model" in found.fix


@pytest.mark.thorough
def test_an_architecture_that_is_not_supported(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    (folder / "config.json").write_text(json.dumps({"model_type": "rwkv", "vocab_size": 64, "hidden_size": 16}))
    found = failure_of(doctor_options(tmp_path, models=(str(folder),), role=Role.DRAFTER), "fit")
    assert found.what == f"architecture of {folder}" and "'rwkv'" in found.found
    assert "--model" in found.fix


@pytest.mark.parametrize("content", ['[join\nrole = "drafter"', "\xff"])
def test_a_configuration_file_that_is_not_toml(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.toml").write_bytes(content.encode("latin-1"))
    found = failure_of(doctor_options(tmp_path), "configuration")
    assert str(tmp_path / "config.toml") in found.found
    assert "--config" in found.fix


def test_a_daemon_that_is_missing_or_may_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "p2pd"
    monkeypatch.setattr(machine, "find_daemon", lambda: file)
    found = failure_of(doctor_options(tmp_path), "network daemon")
    assert "is missing" in found.found and "hivemind" in found.fix
    file.write_text("#!/bin/sh\n")
    found = failure_of(doctor_options(tmp_path), "network daemon")
    assert "may not be executed" in found.found and f"chmod +x {file}" in found.fix


def only(found: list[Finding], status: CheckStatus) -> Finding:
    (one,) = (finding for finding in found if finding.status is status)
    return one


def test_a_network_without_a_verifier() -> None:
    seen = looked_around(roles=(Role.DRAFTER,))
    found = judge_swarm(seen, network="test", target="zoo:target", role=Role.DRAFTER)
    failed = only(found, CheckStatus.FAILURE)
    assert failed.what == "swarm: verifiers" and "'test'" in failed.found
    assert "cosine-node join --role verifier --model zoo:target" in failed.fix and "--network" in failed.fix


def test_a_verifier_of_a_name_that_means_another_model() -> None:
    seen = looked_around(roles=(Role.VERIFIER,))
    found = judge_tokenizer("mine", "ff" * 32, seen, role=Role.VERIFIER)
    assert (found.status, "--target" in found.fix) == (CheckStatus.FAILURE, True)
    found = judge_tokenizer("mine", "ff" * 32, seen, role=Role.DRAFTER)
    assert (found.status, "--model" in found.fix) == (CheckStatus.WARNING, True)


@pytest.mark.parametrize(("off_s", "found"), [(-7200.0, "at least 2 h behind"), (1000.0, "at least 12 min ahead")])
def test_a_clock_that_is_off(off_s: float, found: str) -> None:
    """Records of five minutes, issued just now by peers whose clock is right."""
    seen = looked_around(roles=(Role.VERIFIER,), clock_off_s=off_s)
    failed = judge_clock(seen)
    assert (failed.what, failed.status) == ("clock", CheckStatus.FAILURE)
    assert found in failed.found and "timedatectl" in failed.fix
