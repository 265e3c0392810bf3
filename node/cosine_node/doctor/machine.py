"""The machine a model would run on: its device, its memory, and the models its packages know."""

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_node.engine.pool_size import TokenBytes
from cosine_p2p.transport.full.sockets import make_socket_folder

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


# --------------------
# The installation: Python, the packages of each extra, and the network daemon p2pd, which must also start.


OLDEST_PYTHON: Final = (3, 11)
"""As pyproject.toml requires it."""

EXTRAS: Final[Mapping[str, Sequence[str]]] = {
    "node": ("hivemind", "huggingface_hub", "numpy", "safetensors", "torch", "transformers"),
    "llama": ("gguf", "hivemind", "huggingface_hub", "numpy", "safetensors", "xllamacpp"),
    "gateway": ("prometheus_client", "starlette", "uvicorn"),
    "tui": ("textual",),
    "quantize": ("accelerate", "torchao"),
}
"""The packages that each extra of cosine-p2p brings, by the names they are imported by; hivemind beside llama."""
INSTALL: Final[Mapping[str, str]] = {
    "node": "To join with a model: `pip install '.[node]'` in the clone of the repository.",
    "llama": "To join with this model: `pip install '.[llama]'` in the clone of the repository, then `pip install "
    "--no-deps hivemind`.",
}
"""What brings the packages of a node."""

# The names of checks, and what always helps a broken hivemind.
DAEMON: Final = "network daemon"
PACKAGES: Final = "packages"
REINSTALL: Final = "Reinstall it: `pip install --force-reinstall --no-deps hivemind`."


def judge_python(version: tuple[int, int, int]) -> Finding:
    """Judge whether Python is new enough."""
    text = ".".join(map(str, version))
    if version[:2] < OLDEST_PYTHON:
        oldest = ".".join(map(str, OLDEST_PYTHON))
        return failure("python", f"this is Python {text}", f"Install cosine-p2p with Python {oldest} or newer.")
    return fine("python", f"Python {text}")


def missing_packages() -> dict[str, tuple[str, ...]]:
    """The packages of each extra that are not there; none is imported."""
    return {extra: tuple(name for name in names if find_spec(name) is None) for extra, names in EXTRAS.items()}


def judge_extras(missing: Mapping[str, Sequence[str]], *, extra: str, needs_node: bool) -> Finding:
    """Judge whether what a node needs of an extra is there; `needs_node` if one shall run here."""
    whole = ", ".join(extra for extra, names in missing.items() if not names)
    there = f"complete: {whole}" if whole else "only the client is installed"
    lacking = missing.get(extra, ())
    if not lacking:
        return fine("extras", there)
    found = f"{there}; [{extra}] lacks {', '.join(lacking)}"
    return (failure if needs_node else warning)("extras", found, INSTALL[extra])


def judge_imports(errors: Mapping[str, str], versions: Mapping[str, str]) -> Finding:
    """Judge whether packages that are there can also be loaded; `errors` by package, "" for none."""
    broken = {name: error for name, error in errors.items() if error}
    if not errors:
        return skipped(PACKAGES, "the packages of a node are not installed")
    if broken:
        name, error = next(iter(broken.items()))
        fix = f"Reinstall: `pip install --force-reinstall {' '.join(broken)}`."
        return failure(PACKAGES, f"{name} is installed but cannot be loaded: {error}", fix)
    return fine(PACKAGES, ", ".join(f"{name} {version}" for name, version in versions.items()))


def find_daemon() -> Path | None:
    """The file of p2pd where hivemind keeps it, whether or not it is there; None without hivemind."""
    spec = find_spec("hivemind")
    folders = spec.submodule_search_locations if spec else None
    return Path(folders[0]) / "hivemind_cli" / "p2pd" if folders else None


async def judge_daemon(file: Path | None) -> Finding:
    """Judge whether p2pd is there and starts."""
    if file is None:
        return skipped(DAEMON, "hivemind is not installed")
    if not os.access(file, os.F_OK):
        return failure(DAEMON, f"{file} is missing: this hivemind has no p2pd for {sys.platform}", REINSTALL)
    if not os.access(file, os.X_OK):
        return failure(DAEMON, f"{file} may not be executed", f"Allow it: `chmod +x {file}`.")
    try:
        error = await _start_error(file)
    except OSError as refused:
        error = refused.strerror or str(refused)
    if error:
        return failure(DAEMON, f"{file} does not start: {error}", REINSTALL)
    return fine(DAEMON, "p2pd starts")


async def _start_error(file: Path) -> str:
    """Start p2pd without a port and end it: the last line it prints instead of its peer id; "" if it starts.

    Raises `OSError`.
    """
    folder = make_socket_folder()
    try:
        process = await asyncio.create_subprocess_exec(
            *(file, f"-listen=/unix{folder}/control.sock", "-noListenAddrs=1"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            assert process.stdout is not None
            last = ""
            while line := (await process.stdout.readline()).decode(errors="replace").strip():
                if line.startswith("Peer ID:"):
                    return ""
                last = line
            return last or f"it ended with code {await process.wait()}"
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
