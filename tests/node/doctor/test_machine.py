"""This machine as the doctor judges it: installation, daemon, disk, key and configuration files, devices."""

import asyncio
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from cosine_node.doctor.finding import CheckStatus
from cosine_node.doctor.machine import (
    EXTRAS,
    EngineFacts,
    MachineFacts,
    find_daemon,
    judge_architecture,
    judge_configuration,
    judge_daemon,
    judge_device,
    judge_extras,
    judge_folders,
    judge_imports,
    judge_key_file,
    judge_python,
    missing_packages,
    probe_machine,
)
from cosine_node.gguf.unfolding import unfold
from cosine_p2p.storage.identity_file import claim_identity, load_identity
from tests.node.engine.gguf_models import changed_gguf, tiny_gguf

CPU = MachineFacts(has_torch=True, free_bytes=8 << 30)
GPU = MachineFacts(has_torch=True, has_nvidia=True, cuda_build="13.0", cuda_devices=(("H200", 100), ("A100", 50)))
UNUSED = MachineFacts(has_torch=True, has_nvidia=True)
MISMATCH = MachineFacts(has_torch=True, has_nvidia=True, cuda_build="13.0", cuda_error="the driver is too old")


@pytest.mark.parametrize(
    ("facts", "device", "status", "part"),
    [
        (MachineFacts(), "auto", "skipped", "PyTorch"),
        (CPU, "auto", "ok", "the CPU"),
        (CPU, "cpu", "ok", "the CPU"),
        (CPU, "mps", "ok", "mps"),
        (CPU, "cuda", "failure", "built for the CPU alone"),
        (UNUSED, "auto", "warning", "built for the CPU alone"),
        (UNUSED, "cpu", "ok", "the CPU"),
        (MISMATCH, "auto", "warning", "the driver is too old"),
        (MISMATCH, "cuda:0", "failure", "the driver is too old"),
        (GPU, "auto", "ok", "H200, A100"),
        (GPU, "cuda:1", "ok", "H200, A100"),
        (GPU, "cuda:2", "failure", "no cuda:2"),
        (GPU, "cpu", "ok", "though there is H200"),
    ],
)
def test_a_device_is_there_or_it_is_said_why_not(facts: MachineFacts, device: str, status: str, part: str) -> None:
    found = judge_device(facts, device=device)
    assert (found.status, part in found.found) == (status, True), found
    assert bool(found.fix) == (status in ("warning", "failure"))


def test_memory_is_that_of_the_device() -> None:
    assert CPU.memory_of("auto") == (8 << 30, "this machine")
    assert CPU.memory_of("mps") == (0, "mps")
    devices = {"auto": (100, "H200"), "cuda:1": (50, "A100"), "cuda:7": (0, "cuda:7")}
    assert {device: GPU.memory_of(device) for device in devices} == devices


def test_the_engine_is_asked_for_a_files_tensors(tmp_path: Path) -> None:
    tensor = {"blk.0.mystery.weight": np.ones((4, 4), dtype=np.float32)}
    folders = [
        str(unfold(changed_gguf(tiny_gguf(), tmp_path / f"{len(more)}.gguf", {}, more), cache_folder=tmp_path))
        for more in ({}, tensor)
    ]
    asked = {"packages": ["torch", "transformers"], "folders": folders, "dtype": "auto", "device": "cpu"}
    engines = probe_machine(asked)["engines"]
    assert [engines[folder]["refusal"].partition(" has a ")[2] for folder in folders] == [
        "",
        "tensor blk.0.mystery.weight, which is not known in a llama model.",
    ]


def test_architectures() -> None:
    assert judge_architecture("m", None).status is CheckStatus.SKIPPED
    assert judge_architecture("m", EngineFacts()).status is CheckStatus.OK
    assert judge_architecture("m", EngineFacts(refusal="It has state.")).status is CheckStatus.FAILURE
    found = judge_architecture("m", EngineFacts(obstacle="it keeps a recurrent state"))
    assert found.status is CheckStatus.OK
    assert found.found.endswith("slower than packed passes: it keeps a recurrent state")


def test_python_must_be_new_enough() -> None:
    versions = ((3, 10, 9), (3, 11, 0), (3, 14, 1))
    assert [judge_python(version).status for version in versions] == ["failure", "ok", "ok"]


def test_only_a_node_needs_the_packages_of_a_node_and_on_llama_no_torch() -> None:
    whole = dict.fromkeys(EXTRAS, ())
    no_torch = {**whole, "node": ("torch",)}
    assert judge_extras(whole, extra="node", needs_node=True).status is CheckStatus.OK
    assert judge_extras(EXTRAS, extra="node", needs_node=False).status is CheckStatus.WARNING
    assert judge_extras(no_torch, extra="llama", needs_node=True).status is CheckStatus.OK
    found = judge_extras(no_torch, extra="node", needs_node=True)
    assert (found.status, "torch" in found.found, "'.[node]'" in found.fix) == (CheckStatus.FAILURE, True, True)
    found = judge_extras({**whole, "llama": ("xllamacpp",)}, extra="llama", needs_node=True)
    assert (found.status, "[llama] lacks xllamacpp" in found.found) == (CheckStatus.FAILURE, True)
    assert "'.[llama]'" in found.fix and "--no-deps hivemind" in found.fix
    assert missing_packages()["node"] == ()


def test_a_package_that_cannot_be_loaded_is_named() -> None:
    found = judge_imports({"torch": "OSError: libcudart.so.12", "numpy": ""}, {"numpy": "2.0"})
    assert (found.status, "torch" in found.found, "libcudart" in found.found) == (CheckStatus.FAILURE, True, True)
    assert found.fix.endswith("--force-reinstall torch`.")
    assert judge_imports({"numpy": ""}, {"numpy": "2.0"}).found == "numpy 2.0"
    assert judge_imports({}, {}).status is CheckStatus.SKIPPED


def test_the_daemon_of_this_installation_starts_and_without_hivemind_there_is_none() -> None:
    assert asyncio.run(judge_daemon(find_daemon())).status is CheckStatus.OK
    assert asyncio.run(judge_daemon(None)).status is CheckStatus.SKIPPED


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("#!/bin/sh\nexit 3\n", "code 3"),
        ("#!/bin/sh\necho built for another machine\nexit 1\n", "built for another machine"),
        ("#!/no/such/interpreter\n", "No such file"),
        ("", "format"),
    ],
)
def test_what_a_daemon_says_instead_of_starting_is_passed_on(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "p2pd"
    file.write_text(content)
    file.chmod(0o755)
    found = asyncio.run(judge_daemon(file))
    assert (found.status, said in found.found) == (CheckStatus.FAILURE, True), found


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
        found = judge_folders(download_bytes=download_bytes)
        for finding, (purpose, variable) in zip(found, variables.items(), strict=True):
            assert finding.what == f"disk for {purpose}"
            assert purpose == "sockets" or str(tmp_path / purpose / "new") in finding.found
            assert (variable in finding.fix) == (finding.status is CheckStatus.FAILURE)
        return {finding.what.split()[-1]: finding.status for finding in found}

    assert judged(least_bytes + 1000, 1000) == dict.fromkeys(variables, "ok")
    assert judged(least_bytes + 1000, 1001) == dict.fromkeys(variables, "ok") | {"models": "failure"}
    assert judged(0, 0) == dict.fromkeys(variables, "failure")
    (tmp_path / "cache").touch()
    assert judged(1 << 40, 0) == dict.fromkeys(variables, "ok") | {"cache": "failure"}


def test_a_key_file_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "identity"
    found = judge_key_file(file, is_named=True)
    assert (found.status, "created at the first start" in found.found) == (CheckStatus.OK, True)
    assert list(tmp_path.iterdir()) == []
    assert judge_key_file(tmp_path, is_named=True).status is CheckStatus.FAILURE


def test_a_healthy_key_file_tells_its_peer_id_and_one_that_others_may_read_or_write_is_a_warning(
    tmp_path: Path,
) -> None:
    file = tmp_path / "identity"
    peer_id = load_identity(file).peer_id
    assert judge_key_file(file, is_named=True).found == peer_id
    for mode in (0o644, 0o640, 0o602):
        file.chmod(mode)
        found = judge_key_file(file, is_named=True)
        assert (found.status, f"{mode:03o}" in found.found) == (CheckStatus.WARNING, True)
        assert f"chmod 600 {file}" in found.fix


def test_a_default_key_file_in_use_is_no_fault_since_the_next_one_is_taken(tmp_path: Path) -> None:
    claimed = claim_identity(tmp_path / "identity")
    found = judge_key_file(tmp_path / "identity", is_named=False)
    claimed.release()
    assert (found.status, "next free identity" in found.found) == (CheckStatus.OK, True)


@pytest.mark.parametrize(
    ("content", "is_named", "unknown", "status", "part"),
    [
        ("[join]\n", True, [], "ok", "is read"),
        ("[join]\nmodle = 1\n", False, ["join.modle"], "warning", "join.modle"),
        ("[join\n", False, [], "failure", "line 1"),
        (None, True, [], "failure", "there is no file"),
        (None, False, [], "ok", "the command line"),
    ],
)
def test_a_configuration_file_is_judged_by_whether_it_can_be_read(
    tmp_path: Path, content: str | None, is_named: bool, unknown: list[str], status: str, part: str
) -> None:
    file = tmp_path / "config.toml"
    if content is not None:
        file.write_text(content)
    found = judge_configuration(file, is_named=is_named, unknown=unknown)
    assert (found.status, part in found.found, str(file) in found.found + found.fix) == (status, True, True)
    assert judge_configuration(tmp_path, is_named=True, unknown=[]).status == "failure"
