"""Checks of this machine: packages, key file, ports, disks and GPUs."""

import socket
from collections import namedtuple
from pathlib import Path

import pytest

from cosine_node.doctor import packages
from cosine_node.doctor.finding import CheckStatus
from cosine_node.doctor.machine import Gpus, judge_device, judge_folders, judge_key_file, judge_port
from cosine_node.doctor.packages import judge_extras, look_at_imports
from cosine_p2p.storage.identity_file import claim_identity, load_identity
from cosine_terminal.packages import EXTRAS, missing_packages

CPU = Gpus()
GPU = Gpus(has_nvidia=True, build="13.0", devices=(("H200", 100), ("A100", 50)))
UNUSED = Gpus(has_nvidia=True)
MISMATCH = Gpus(has_nvidia=True, build="13.0", error="the driver is too old")


@pytest.mark.parametrize(
    ("gpus", "device", "status", "part"),
    [
        (CPU, "auto", "ok", "the CPU"),
        (CPU, "cuda", "failure", "supports only the CPU"),
        (UNUSED, "auto", "warning", "supports only the CPU"),
        (MISMATCH, "cuda:0", "failure", "the driver is too old"),
        (GPU, "cuda:1", "ok", "H200, A100"),
        (GPU, "cuda:2", "failure", "no cuda:2"),
        (GPU, "cpu", "ok", "though there is H200"),
    ],
)
def test_a_device_is_there_or_it_is_said_why_not(gpus: Gpus, device: str, status: str, part: str) -> None:
    found = judge_device(gpus, device=device)
    assert (found.status, part in found.found) == (status, True), found
    assert bool(found.fix) == (status in ("warning", "failure"))


def test_only_a_node_needs_the_packages_of_a_node_and_on_llama_no_torch() -> None:
    whole = dict.fromkeys(EXTRAS, ())
    no_torch = {**whole, "node": ("torch",)}
    assert judge_extras(whole, extra="node", needs_node=True).status is CheckStatus.OK
    assert judge_extras(EXTRAS, extra="node", needs_node=False).status is CheckStatus.WARNING
    assert judge_extras(no_torch, extra="llama", needs_node=True).status is CheckStatus.OK
    found = judge_extras(no_torch, extra="node", needs_node=True)
    assert (found.status, "torch" in found.found, "'./node[torch]'" in found.fix) == (
        CheckStatus.FAILURE,
        True,
        True,
    )
    found = judge_extras({**whole, "llama": ("xllamacpp",)}, extra="llama", needs_node=True)
    assert (found.status, "--no-deps hivemind" in found.fix) == (CheckStatus.FAILURE, True)
    assert missing_packages()["node"] == ()


def test_a_package_that_cannot_be_imported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_package.py").write_text("raise OSError('libcudart.so.12')")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(packages, "EXTRAS", {"node": ("numpy", "broken_package"), "light": ("numpy",)})
    (found,) = look_at_imports("node")
    assert (found.status, "OSError: libcudart.so.12" in found.found) == (CheckStatus.FAILURE, True)
    assert found.fix.endswith("--force-reinstall broken_package`.")
    (found,) = look_at_imports("light")
    assert (found.status, found.found.startswith("numpy ")) == (CheckStatus.OK, True)


def test_what_is_written_must_fit_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = namedtuple("free", ["free"])  # as shutil has it
    variables = {"data": "XDG_DATA_HOME", "cache": "XDG_CACHE_HOME", "models": "HF_HOME", "sockets": "TMPDIR"}
    for purpose in ("data", "cache", "models"):
        monkeypatch.setenv(variables[purpose], str(tmp_path / purpose / "new"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    least_bytes = 200 << 20

    def judged(free_bytes: int, download_bytes: int) -> dict[str, str]:
        monkeypatch.setattr("shutil.disk_usage", lambda _: free(free_bytes))
        found = list(judge_folders(download_bytes=download_bytes))
        for finding, (purpose, variable) in zip(found, variables.items(), strict=True):
            assert finding.what == f"disk for {purpose}"
            assert purpose == "sockets" or str(tmp_path / purpose / "new") in finding.found
            assert (variable in finding.fix) == (finding.status is CheckStatus.FAILURE)
        return {finding.what.split()[-1]: finding.status for finding in found}

    assert judged(least_bytes + 1000, 1000) == dict.fromkeys(variables, "ok")
    assert judged(least_bytes + 1000, 1001) == dict.fromkeys(variables, "ok") | {"models": "failure"}
    (tmp_path / "cache").touch()
    assert judged(1 << 40, 0) == dict.fromkeys(variables, "ok") | {"cache": "failure"}


def test_a_key_file_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    found = judge_key_file(tmp_path / "new" / "folder" / "identity")
    assert (found.status, "created at the first start" in found.found) == (CheckStatus.OK, True)
    assert list(tmp_path.iterdir()) == []
    assert judge_key_file(tmp_path).status is CheckStatus.FAILURE
    (tmp_path / "identity").write_bytes(b"no key")
    found = judge_key_file(tmp_path / "identity")
    assert (found.status, "cannot be used as an identity" in found.found) == (CheckStatus.FAILURE, True)
    assert "--identity" in found.fix


def test_a_key_file_tells_its_peer_id_unless_others_may_read_it_or_another_node_uses_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "identity"
    peer_id = load_identity(file).peer_id
    assert judge_key_file(file).found == peer_id
    claimed = claim_identity(file)
    found = judge_key_file(file)
    assert (found.status, "in use by another node" in found.found) == (CheckStatus.FAILURE, True)
    assert "--identity" in found.fix
    # A default one is no fault, since the next one is taken.
    monkeypatch.setattr("cosine_node.doctor.machine.default_identity_file", lambda: file)
    found = judge_key_file(None)
    assert (found.status, "next free identity" in found.found) == (CheckStatus.OK, True)
    claimed.release()
    assert list(tmp_path.iterdir()) == [file]
    file.chmod(0o640)
    found = judge_key_file(file)
    assert (found.status, f"chmod 600 {file}" in found.fix) == (CheckStatus.WARNING, True)


def test_a_port_is_tried_and_left_free() -> None:
    with socket.socket() as own:
        own.bind(("127.0.0.1", 0))
        port = own.getsockname()[1]
        taken = judge_port(f"/ip4/127.0.0.1/tcp/{port}")
        assert (taken.status, "is in use" in taken.found) == (CheckStatus.FAILURE, True)
        assert taken.fix.startswith("Stop the program") and "--host-maddr" in taken.fix
    assert judge_port(f"/ip4/127.0.0.1/tcp/{port}").found == "it is free"
    assert "another one at each start" in judge_port("/ip4/127.0.0.1/tcp/0").found
    assert "cannot be listened on" in judge_port("/ip4/192.0.2.1/tcp/4001").found
    assert "this is not an address" in judge_port("4001").found
