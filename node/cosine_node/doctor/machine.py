"""Checks of this machine: key file, ports, disks and GPU."""

import os
import shutil
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Final

from platformdirs import user_cache_dir, user_data_dir

from cosine_node.doctor.finding import Finding, failure, fine, refusal, warning
from cosine_p2p.storage.identity_file import claim_identity, default_identity_file, load_identity
from cosine_p2p.transport.addresses import parse_address
from cosine_p2p.transport.config import check_ports_free
from cosine_p2p.transport.full.sockets import socket_home
from cosine_protocol.errors import UsageError

SMALLER: Final = "Free memory, or choose a smaller --model, --dtype bfloat16, --quantize int8 or less --kv-memory."

# Names of checks.
IDENTITY: Final = "identity"
DEVICE: Final = "device"


def existing_ancestor(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def is_writable_folder(path: Path) -> bool:
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def models_folder() -> Path:
    """The folder of downloaded models. It may not exist."""
    cache = Path(user_cache_dir())
    return Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or cache / "huggingface") / "hub")


def judge_folders(*, download_bytes: int) -> Iterator[Finding]:
    """Judge the disks for data, cache, sockets, and `download_bytes` of models."""
    # More than keys, digests, sockets and a tokenizer take.
    least_bytes = 200 << 20
    cache = Path(user_cache_dir())
    for purpose, path, variable, needed_bytes in (
        ("data", Path(user_data_dir("cosine-p2p")), "XDG_DATA_HOME", least_bytes),
        ("cache", cache / "cosine-p2p", "XDG_CACHE_HOME", least_bytes),
        ("models", models_folder(), "HF_HOME", least_bytes + download_bytes),
        ("sockets", socket_home(), "TMPDIR", least_bytes),
    ):
        what, existing = f"disk for {purpose}", existing_ancestor(path)
        lacking_bytes = needed_bytes - shutil.disk_usage(existing).free
        found = f"{(needed_bytes - lacking_bytes) / 2**30:.1f} GiB free for {path}"
        if not is_writable_folder(existing):
            fix = f"Make it writable, or set {variable} to another place."
            yield failure(what, f"{path} cannot be written to", fix)
        elif lacking_bytes > 0:
            fix = f"Free {lacking_bytes / 2**30:.1f} GiB, or set {variable} to another disk."
            yield failure(what, found, fix)
        else:
            yield fine(what, found)


def judge_key_file(named: Path | None) -> Finding:
    """Judge a key file, without creating or changing it. Without a name it is the first unused default file."""
    file = named or default_identity_file()
    if not file.exists() and is_writable_folder(existing_ancestor(file.parent)):
        return fine(IDENTITY, f"{file} is created at the first start")
    try:
        identity = load_identity(file)
    except UsageError as error:
        return refusal(IDENTITY, error, "Restore it from a copy, or name another file with --identity.")
    mode, found = stat.S_IMODE(file.stat().st_mode), identity.peer_id
    try:
        claim_identity(file).release()
    except UsageError as error:
        if named is not None:
            return refusal(IDENTITY, error, "Name another file with --identity.")
        found = f"{found} is in use by a running node; another one takes the next free identity"
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        fix = f"Make it private: `chmod 600 {file}`."
        return warning(IDENTITY, f"others on this machine may read or write {file} (mode {mode:03o})", fix)
    return fine(IDENTITY, found)


def judge_port(maddr: str) -> Finding:
    """Judge whether a node can listen at an address, by trying."""
    what = f"port {maddr}"
    try:
        port = parse_address(maddr).port
        check_ports_free([maddr])
    except ValueError as error:
        return failure(what, f"this is not an address: {error}", "Write --host-maddr like /ip4/0.0.0.0/tcp/4001.")
    except UsageError as error:
        return refusal(what, error, "Choose another address with --host-maddr.")
    return fine(what, "it is free" if port else "any free port is taken, another one at each start")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The graphics cards that PyTorch can use.

    build: CUDA version of PyTorch. "" for a CPU build.
    error: Why CUDA cannot be used. "" if it can, or if the reason is unknown.
    devices: Name and free bytes of each card.
    has_nvidia: True if the NVIDIA driver is loaded.
    """

    build: str = ""
    error: str = ""
    devices: tuple[tuple[str, int], ...] = ()
    has_nvidia: bool = False

    @classmethod
    def find(cls) -> "Gpus":
        torch = import_module("torch")
        cuda, error = torch.cuda, ""
        numbers = range(cuda.device_count() if cuda.is_available() else 0)
        devices = tuple((cuda.get_device_name(number), cuda.mem_get_info(number)[0]) for number in numbers)
        if not devices:
            try:
                cuda.init()
            except (RuntimeError, AssertionError) as refused:
                error = next(iter(str(refused).splitlines()), "")
        has_nvidia = Path("/proc/driver/nvidia/version").exists()
        return cls(build=torch.version.cuda or "", error=error, devices=devices, has_nvidia=has_nvidia)


def judge_device(gpus: Gpus, *, device: str) -> Finding:
    """Judge the chosen device; with `auto`, whether a GPU is unused."""
    if gpus.devices:
        names = ", ".join(name for name, _ in gpus.devices)
        index = device.removeprefix("cuda:")
        if device.startswith("cuda:") and not (index.isdecimal() and int(index) < len(gpus.devices)):
            found = f"there is no {device}; there is {names}"
            return failure(DEVICE, found, "Name one that is there with --device.")
        return fine(DEVICE, f"the CPU, though there is {names}" if device == "cpu" else names)
    if gpus.build:
        reason = gpus.error or "PyTorch finds no GPU"
        fix = f"Install a driver for CUDA {gpus.build}, or a PyTorch built for the driver that is there."
    else:
        reason = "this PyTorch supports only the CPU"
        fix = "Install a PyTorch with CUDA: `pip install --force-reinstall torch`."
    if device.startswith("cuda"):
        return failure(DEVICE, f"CUDA is not usable: {reason}", f"{fix} Or use --device cpu.")
    if gpus.has_nvidia and device == "auto":
        return warning(DEVICE, f"this machine's NVIDIA GPU is not used: {reason}", fix)
    return fine(DEVICE, "the CPU" if device in ("auto", "cpu") else device)


def gpu_names_and_bytes() -> Sequence[tuple[str, int]]:
    """The name and the free bytes of each card, for `answer_of`."""
    return Gpus.find().devices
