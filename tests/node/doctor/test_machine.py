"""Devices, memory and architectures, judged by what a probe of the machine told."""

import pytest

from cosine_node.doctor.finding import CheckStatus
from cosine_node.doctor.machine import EngineFacts, MachineFacts, judge_architecture, judge_device

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
