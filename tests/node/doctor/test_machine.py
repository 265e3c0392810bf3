"""This machine as the doctor judges it: installation, daemon, disk, key and configuration files, devices."""

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from cosine_node.doctor.finding import CheckStatus
from cosine_node.doctor.machine import (
    EXTRAS,
    LEAST_BYTES,
    EngineFacts,
    Folder,
    MachineFacts,
    find_daemon,
    inspect_folder,
    judge_architecture,
    judge_configuration,
    judge_daemon,
    judge_device,
    judge_extras,
    judge_folder,
    judge_imports,
    judge_key_file,
    judge_python,
    missing_packages,
    written_folders,
)
from cosine_p2p.storage.identity_file import claim_identity, load_identity

CPU = MachineFacts(has_torch=True, free_bytes=8 << 30)
GPU = MachineFacts(has_torch=True, has_nvidia=True, cuda_build="13.0", cuda_devices=(("H200", 100), ("A100", 50)))
UNUSED = MachineFacts(has_torch=True, has_nvidia=True)
MISMATCH = MachineFacts(has_torch=True, has_nvidia=True, cuda_build="13.0", cuda_error="the driver is too old")


@pytest.mark.parametrize(
    ("machine", "device", "status", "part"),
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
def test_a_device_is_there_or_it_is_said_why_not(
    machine: MachineFacts, device: str, status: str, part: str
) -> None:
    found = judge_device(machine, device=device)
    assert (found.status, part in found.found) == (status, True), found
    assert bool(found.fix) == (status in ("warning", "failure"))


@pytest.mark.parametrize(
    ("machine", "device", "memory"),
    [
        (CPU, "auto", (8 << 30, "this machine")),
        (GPU, "auto", (100, "H200")),
        (GPU, "cuda:1", (50, "A100")),
        (GPU, "cuda:7", (0, "cuda:7")),
        (CPU, "mps", (0, "mps")),
    ],
)
def test_memory_is_that_of_the_device(machine: MachineFacts, device: str, memory: tuple[int, str]) -> None:
    assert machine.memory_of(device) == memory


@pytest.mark.parametrize(
    ("refusal", "status"),
    [(None, CheckStatus.SKIPPED), ("", CheckStatus.OK), ("It has state.", CheckStatus.FAILURE)],
)
def test_architectures(refusal: str | None, status: CheckStatus) -> None:
    engine = None if refusal is None else EngineFacts(refusal=refusal)
    assert judge_architecture("m", engine).status is status


def test_an_architecture_that_is_slower_is_told_with_the_reason() -> None:
    found = judge_architecture("m", EngineFacts(obstacle="it keeps a recurrent state"))
    assert found.status is CheckStatus.OK
    assert found.found.endswith("slower than packed passes: it keeps a recurrent state")


@pytest.mark.parametrize(("version", "status"), [((3, 10, 9), "failure"), ((3, 11, 0), "ok"), ((3, 14, 1), "ok")])
def test_python_must_be_new_enough(version: tuple[int, int, int], status: str) -> None:
    assert judge_python(version).status == status


def test_only_a_node_needs_the_packages_of_a_node() -> None:
    whole = dict.fromkeys(EXTRAS, ())
    bare = EXTRAS
    assert judge_extras(whole, extra="node", needs_node=True).status is CheckStatus.OK
    assert judge_extras(bare, extra="node", needs_node=False).status is CheckStatus.WARNING
    found = judge_extras({**whole, "node": ("torch",)}, extra="node", needs_node=True)
    assert (found.status, "torch" in found.found) == (CheckStatus.FAILURE, True)
    assert "'.[node]'" in found.fix


def test_a_node_on_llama_needs_no_torch() -> None:
    whole = dict.fromkeys(EXTRAS, ())
    assert judge_extras({**whole, "node": ("torch",)}, extra="llama", needs_node=True).status is CheckStatus.OK
    found = judge_extras({**whole, "llama": ("xllamacpp",)}, extra="llama", needs_node=True)
    assert (found.status, "[llama] lacks xllamacpp" in found.found) == (CheckStatus.FAILURE, True)
    assert "'.[llama]'" in found.fix and "--no-deps hivemind" in found.fix


def test_what_is_missing_is_found_without_importing() -> None:
    assert missing_packages()["node"] == ()


def test_a_package_that_cannot_be_loaded_is_named() -> None:
    found = judge_imports({"torch": "OSError: libcudart.so.12", "numpy": ""}, {"numpy": "2.0"})
    assert (found.status, "torch" in found.found, "libcudart" in found.found) == (CheckStatus.FAILURE, True, True)
    assert found.fix.endswith("--force-reinstall torch`.")
    assert judge_imports({"numpy": ""}, {"numpy": "2.0"}).found == "numpy 2.0"
    assert judge_imports({}, {}).status is CheckStatus.SKIPPED


def test_the_daemon_of_this_installation_starts() -> None:
    assert asyncio.run(judge_daemon(find_daemon())).status is CheckStatus.OK


@pytest.mark.parametrize(
    ("content", "said"),
    [("#!/bin/sh\nexit 3\n", "code 3"), ("#!/no/such/interpreter\n", "No such file"), ("", "format")],
)
def test_what_a_daemon_says_instead_of_starting_is_passed_on(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "p2pd"
    file.write_text(content)
    file.chmod(0o755)
    found = asyncio.run(judge_daemon(file))
    assert (found.status, said in found.found) == (CheckStatus.FAILURE, True), found


def test_without_hivemind_there_is_no_daemon_to_judge() -> None:
    assert asyncio.run(judge_daemon(None)).status is CheckStatus.SKIPPED


ROOMY = Folder(
    purpose="models", path=Path("m"), free_bytes=LEAST_BYTES + 1000, is_writable=True, variable="HF_HOME"
)


@pytest.mark.parametrize(
    ("folder", "download_bytes", "status"),
    [
        (ROOMY, 1000, "ok"),
        (ROOMY, 1001, "failure"),
        (replace(ROOMY, purpose="cache"), 1001, "ok"),
        (replace(ROOMY, free_bytes=0), 0, "failure"),
        (replace(ROOMY, is_writable=False), 0, "failure"),
    ],
)
def test_what_is_written_must_fit(folder: Folder, download_bytes: int, status: str) -> None:
    found = judge_folder(folder, download_bytes=download_bytes)
    assert (found.status, "HF_HOME" in found.fix) == (status, status == "failure")


def test_a_folder_that_is_not_there_yet_is_where_its_parent_is(tmp_path: Path) -> None:
    folder = inspect_folder("cache", tmp_path / "a" / "b", "XDG_CACHE_HOME")
    assert (folder.is_writable, folder.free_bytes > 0, folder.path) == (True, True, tmp_path / "a" / "b")
    (tmp_path / "file").touch()
    assert not inspect_folder("cache", tmp_path / "file" / "b", "XDG_CACHE_HOME").is_writable


def test_the_folders_follow_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "d"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "c"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "h"))
    monkeypatch.delenv("HF_HUB_CACHE", raising=False)
    paths = {folder.purpose: folder.path for folder in written_folders()}
    assert paths["data"].is_relative_to(tmp_path / "d")
    assert paths["cache"].is_relative_to(tmp_path / "c")
    assert paths["models"] == tmp_path / "h" / "hub"


def test_a_file_that_is_not_there_is_not_created(tmp_path: Path) -> None:
    file = tmp_path / "new" / "folder" / "identity"
    found = judge_key_file(file, is_named=True)
    assert (found.status, "created at the first start" in found.found) == (CheckStatus.OK, True)
    assert list(tmp_path.iterdir()) == []


def test_a_healthy_file_tells_its_peer_id(tmp_path: Path) -> None:
    file = tmp_path / "identity"
    peer_id = load_identity(file).peer_id
    assert judge_key_file(file, is_named=True).found == peer_id


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_a_file_that_others_may_read_or_write_is_a_warning(tmp_path: Path, mode: int) -> None:
    file = tmp_path / "identity"
    load_identity(file)
    file.chmod(mode)
    found = judge_key_file(file, is_named=True)
    assert (found.status, f"{mode:03o}" in found.found) == (CheckStatus.WARNING, True)
    assert f"chmod 600 {file}" in found.fix


def test_a_default_file_in_use_is_no_fault_since_the_next_one_is_taken(tmp_path: Path) -> None:
    claimed = claim_identity(tmp_path / "identity")
    found = judge_key_file(tmp_path / "identity", is_named=False)
    claimed.release()
    assert (found.status, "next free identity" in found.found) == (CheckStatus.OK, True)


def test_a_folder_is_no_key_file(tmp_path: Path) -> None:
    assert judge_key_file(tmp_path, is_named=True).status is CheckStatus.FAILURE


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
def test_a_file_is_judged_by_whether_it_can_be_read(
    tmp_path: Path, content: str | None, is_named: bool, unknown: list[str], status: str, part: str
) -> None:
    file = tmp_path / "config.toml"
    if content is not None:
        file.write_text(content)
    found = judge_configuration(file, is_named=is_named, unknown=unknown)
    assert (found.status, part in found.found, str(file) in found.found + found.fix) == (status, True, True)


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    assert judge_configuration(tmp_path, is_named=True, unknown=[]).status == "failure"
