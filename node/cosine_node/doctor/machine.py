"""The machine a model would run on: its device, its memory, and the models its packages know."""

from dataclasses import dataclass, field
from typing import Any, Final

from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_node.pool_size import TokenBytes

WHAT: Final = "device"
"""The name of the check."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """A model as the engine sees it: why it cannot be served, or why its passes cannot be packed, else "".

    `token` is the memory of one in its pool, nothing if not known.
    """

    refusal: str = ""
    obstacle: str = ""
    token: TokenBytes = field(default_factory=lambda: TokenBytes(0))
    context_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineFacts:
    """The facts that `probe_machine` found, and the free memory.

    `errors` are by package, "" for one that loads. `cuda_devices` are names and free bytes. `engines` are by model
    folder. `base_bytes` is the memory of a process that has loaded all that a node loads before its model, and of
    its network daemon.
    """

    errors: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    has_torch: bool = False
    has_nvidia: bool = False
    cuda_build: str = ""
    cuda_error: str = ""
    cuda_devices: tuple[tuple[str, int], ...] = ()
    engines: dict[str, EngineFacts] = field(default_factory=dict)
    base_bytes: int = 0
    free_bytes: int = 0

    @classmethod
    def of_answer(cls, answer: dict[str, Any], *, free_bytes: int) -> "MachineFacts":
        """The facts in the probe's answer, in which tuples have become lists and other facts dictionaries."""
        cuda_devices = tuple((name, free) for name, free in answer["cuda_devices"])
        engines = {
            folder: EngineFacts(**facts | {"token": TokenBytes(**facts["token"])})
            for folder, facts in answer["engines"].items()
        }
        return cls(**answer | {"cuda_devices": cuda_devices, "engines": engines, "free_bytes": free_bytes})

    def runs_on_cpu(self, device: str) -> bool:
        return device == "cpu" or (device == "auto" and not self.cuda_devices)

    def memory_of(self, device: str) -> tuple[int, str]:
        """Free bytes of a device, 0 if not known, and its name."""
        if self.runs_on_cpu(device):
            return self.free_bytes, "this machine"
        number = device.removeprefix("cuda").removeprefix(":")
        index = int(number) if number.isdecimal() else 0
        if device.startswith(("cuda", "auto")) and index < len(self.cuda_devices):
            return self.cuda_devices[index][1], self.cuda_devices[index][0]
        return 0, device


def judge_device(machine: MachineFacts, *, device: str) -> Finding:
    """Judge whether the device asked for is there; with `auto`, whether a GPU goes unused."""
    if not machine.has_torch:
        return skipped(WHAT, "PyTorch is not there to ask")
    if machine.cuda_devices:
        names = ", ".join(name for name, _ in machine.cuda_devices)
        index = device.removeprefix("cuda:")
        if device.startswith("cuda:") and not (index.isdecimal() and int(index) < len(machine.cuda_devices)):
            return failure(WHAT, f"there is no {device}; there is {names}", "Name one that is there with --device.")
        return fine(WHAT, f"the CPU, though there is {names}" if device == "cpu" else names)
    if machine.cuda_build:
        reason = machine.cuda_error or "PyTorch finds no GPU"
        fix = f"Install a driver for CUDA {machine.cuda_build}, or a PyTorch built for the driver that is there."
    else:
        reason = "this PyTorch is built for the CPU alone"
        fix = "Install a PyTorch with CUDA: `pip install --force-reinstall torch`."
    if device.startswith("cuda"):
        return failure(WHAT, f"CUDA is not usable: {reason}", f"{fix} Or use --device cpu.")
    if machine.has_nvidia and device == "auto":
        return warning(WHAT, f"this machine's NVIDIA GPU is not used: {reason}", fix)
    return fine(WHAT, "the CPU" if device in ("auto", "cpu") else device)


def judge_architecture(source: str, engine: EngineFacts | None) -> Finding:
    """Judge whether the engine runs a model's architecture exactly; `engine` is None where nothing could tell."""
    what = f"architecture of {source}"
    if engine is None:
        return skipped(what, "the packages that know architectures are not there")
    if engine.refusal:
        return failure(
            what, engine.refusal, "Choose another model with --model; `cosine-node zoo` lists the embedded ones."
        )
    if engine.obstacle:
        return fine(what, f"supported, with its own attention and slower than packed passes: {engine.obstacle}")
    return fine(what, "supported")
