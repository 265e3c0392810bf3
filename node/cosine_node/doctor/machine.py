"""This machine: its Python, packages and daemon, its files and disks, its device and memory.

Facts about packages and devices are gathered in a child process, which may crash or hang: `probe_machine`.
"""

import asyncio
import logging
import os
import shutil
import stat
import sys
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from platformdirs import user_cache_dir, user_data_dir

from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_node.doctor.processes import answer_parent
from cosine_node.engine.pool_size import TokenBytes
from cosine_p2p.transport.full.sockets import make_socket_folder, socket_home
from cosine_protocol.errors import UsageError
from cosine_protocol.identity import Identity

LOG = logging.getLogger(__name__)

EXTRAS: Final[Mapping[str, Sequence[str]]] = {
    "node": ("hivemind", "huggingface_hub", "numpy", "safetensors", "torch", "transformers"),
    "llama": ("gguf", "hivemind", "huggingface_hub", "numpy", "safetensors", "xllamacpp"),
    "light": ("libp2p",),
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
    # As pyproject.toml requires it.
    if version[:2] < (3, 11):
        return failure("python", f"this is Python {text}", "Install cosine-p2p with Python 3.11 or newer.")
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


def existing_ancestor(path: Path) -> Path:
    """The nearest folder to `path` that exists: itself, or where it would be made."""
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def is_writable_folder(path: Path) -> bool:
    """True if a file can be put there."""
    return path.is_dir() and os.access(path, os.W_OK | os.X_OK)


def models_folder() -> Path:
    """The folder of models that are fetched, which need not exist yet."""
    cache = Path(user_cache_dir())
    return Path(os.environ.get("HF_HUB_CACHE") or Path(os.environ.get("HF_HOME") or cache / "huggingface") / "hub")


def judge_folders(*, download_bytes: int) -> list[Finding]:
    """Judge whether identities, digests, models and sockets can be written, with `download_bytes` of models."""
    # Far more than keys, digests and sockets take, with room for the files of a tokenizer.
    least_bytes = 200 << 20
    cache = Path(user_cache_dir())
    return [
        _judge_folder("data", Path(user_data_dir("cosine-p2p")), "XDG_DATA_HOME", least_bytes),
        _judge_folder("cache", cache / "cosine-p2p", "XDG_CACHE_HOME", least_bytes),
        _judge_folder("models", models_folder(), "HF_HOME", least_bytes + download_bytes),
        _judge_folder("sockets", socket_home(), "TMPDIR", least_bytes),
    ]


def _judge_folder(purpose: str, path: Path, variable: str, least_bytes: int) -> Finding:
    """Judge a folder, which need not exist yet; `variable` of the environment moves it."""
    what, existing = f"disk for {purpose}", existing_ancestor(path)
    free_bytes = shutil.disk_usage(existing).free
    if not is_writable_folder(existing):
        fix = f"Make it writable, or set {variable} to another place."
        return failure(what, f"{path} cannot be written to", fix)
    found = f"{free_bytes / 2**30:.1f} GiB free for {path}"
    if free_bytes < least_bytes:
        lacking = (least_bytes - free_bytes) / 2**30
        return failure(what, found, f"Free {lacking:.1f} GiB, or set {variable} to another disk.")
    return fine(what, found)


def judge_key_file(file: Path, *, is_named: bool) -> Finding:
    """Judge whether a node can use a key file, and only that node. Creates and changes nothing.

    A file that the user did not name may be in use: then a node takes the next free one. A node that starts in the
    same instant may find the file in use.
    """
    what = "identity"
    other_file = "name another file with --identity"
    try:
        mode = stat.S_IMODE(file.stat().st_mode)
        peer_id = Identity.from_file_bytes(file.read_bytes()).peer_id
    except FileNotFoundError:
        if is_writable_folder(existing_ancestor(file.parent)):
            return fine(what, f"{file} is created at the first start")
        return failure(what, f"{file} cannot be created there", f"Make its folder writable, or {other_file}.")
    except OSError as error:
        fix = f"Allow it: `chmod 600 {file}`, or {other_file}."
        return failure(what, f"{file} cannot be read: {error.strerror or error}", fix)
    except UsageError as error:
        fix = f"Restore it from a copy, or {other_file}; a new one is another peer id."
        return failure(what, f"{file}: {error}", fix)
    is_in_use = _is_locked(file)
    if is_in_use and is_named:
        fix = "Stop the other node, or give this one a key file of its own with --identity."
        return failure(what, f"{file} is in use by a running node, {peer_id}", fix)
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        fix = f"Keep it to yourself: `chmod 600 {file}`."
        return warning(what, f"others on this machine may read or write {file} (mode {mode:03o})", fix)
    if is_in_use:
        return fine(what, f"{peer_id} is in use by a running node; another one takes the next free identity")
    return fine(what, peer_id)


def _is_locked(file: Path) -> bool:
    """True if a running node holds the lock of its key file."""
    try:
        import fcntl
    except ModuleNotFoundError:
        # Windows: no node runs there.
        return False
    with file.open("rb") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def judge_configuration(file: Path, *, is_named: bool, unknown: Sequence[str]) -> Finding:
    """Judge a configuration file, which has to be there if the user named it.

    `unknown` are the names in the file that no command has.
    """
    what = "configuration"
    try:
        tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        if is_named:
            return failure(what, f"there is no file {file}", "Correct --config, or drop it to use no file.")
        return fine(what, f"no {file}; options come from the command line and the environment")
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or str(error)
        return failure(what, f"{file} cannot be read: {reason}", "Correct it, or name another with --config.")
    if unknown:
        fix = f"Correct or remove it in {file}; `cosine-node COMMAND --help` lists the options."
        return warning(what, f"{', '.join(unknown)} means nothing to any command", fix)
    return fine(what, f"{file} is read")


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """A model as the engine sees it: why it cannot be served, or why its passes cannot be packed, else "".

    `token` is the memory of one in its pool, nothing if not known; `half_bytes` that of its weights where they are
    held in float16 unless something else is asked for, else 0.
    """

    refusal: str = ""
    obstacle: str = ""
    token: TokenBytes = field(default_factory=lambda: TokenBytes(0))
    context_tokens: int = 0
    half_bytes: int = 0


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
        return skipped("device", "PyTorch is not there to ask")
    if machine.cuda_devices:
        names = ", ".join(name for name, _ in machine.cuda_devices)
        index = device.removeprefix("cuda:")
        if device.startswith("cuda:") and not (index.isdecimal() and int(index) < len(machine.cuda_devices)):
            found = f"there is no {device}; there is {names}"
            return failure("device", found, "Name one that is there with --device.")
        return fine("device", f"the CPU, though there is {names}" if device == "cpu" else names)
    if machine.cuda_build:
        reason = machine.cuda_error or "PyTorch finds no GPU"
        fix = f"Install a driver for CUDA {machine.cuda_build}, or a PyTorch built for the driver that is there."
    else:
        reason = "this PyTorch is built for the CPU alone"
        fix = "Install a PyTorch with CUDA: `pip install --force-reinstall torch`."
    if device.startswith("cuda"):
        return failure("device", f"CUDA is not usable: {reason}", f"{fix} Or use --device cpu.")
    if machine.has_nvidia and device == "auto":
        return warning("device", f"this machine's NVIDIA GPU is not used: {reason}", fix)
    return fine("device", "the CPU" if device in ("auto", "cpu") else device)


def judge_architecture(source: str, engine: EngineFacts | None) -> Finding:
    """Judge whether the engine runs a model's architecture exactly; `engine` is None where nothing could tell."""
    what = f"architecture of {source}"
    if engine is None:
        return skipped(what, "the packages that know architectures are not there")
    if engine.refusal:
        fix = "Choose another model with --model; `cosine-node zoo` lists the embedded ones."
        return failure(what, engine.refusal, fix)
    if engine.obstacle:
        return fine(what, f"supported, with its own attention and slower than packed passes: {engine.obstacle}")
    return fine(what, "supported")


def probe_machine(question: dict[str, Any]) -> dict[str, Any]:
    """The fields of `MachineFacts`, as far as they need the packages.

    `question` has the `packages` that a node would load, the `folders` of models, and the `dtype` and `device` that
    they are to have in PyTorch, if it is among the packages.
    """
    errors = dict.fromkeys(question["packages"], "")
    for name in errors:
        try:
            # hivemind in the one way the node itself loads it.
            import_module("cosine_p2p.transport.full.library" if name == "hivemind" else name)
        except Exception as error:
            # Broad, because a package that is broken may raise anything while it is loaded.
            errors[name] = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    facts = MachineFacts(
        errors=errors,
        versions={name: version(name.replace("_", "-")) for name, error in errors.items() if not error},
        has_torch=errors.get("torch") == "",
        has_nvidia=Path("/proc/driver/nvidia/version").exists(),
    )
    if facts.has_torch:
        cuda = import_module("torch").cuda
        facts = replace(facts, cuda_build=import_module("torch").version.cuda or "")
        if cuda.is_available():
            numbers = range(cuda.device_count())
            devices = tuple((cuda.get_device_name(number), cuda.mem_get_info(number)[0]) for number in numbers)
            facts = replace(facts, cuda_devices=devices)
        else:
            try:
                cuda.init()
            except (RuntimeError, AssertionError) as error:
                facts = replace(facts, cuda_error=next(iter(str(error).splitlines()), ""))
    if facts.has_torch and not errors["transformers"]:
        found = {
            folder: _engine_facts(folder, question["dtype"], question["device"]) for folder in question["folders"]
        }
        facts = replace(facts, engines=found)
    if not any(errors.values()):
        import_module("cosine_node.serving.node")
        if facts.has_torch:
            import_module("cosine_node.engine.torch.loading")
        else:
            import_module("cosine_node.engine.llama.loading").llama_library()
    # Resident memory of the network daemon of a node without requests (measured: 45 to 50 MiB).
    daemon_bytes = 48 << 20
    # What first passes leave in the allocator. Models of 100 to 190 million parameters held 55 to 195 MiB more than
    # all else explains, two of them in float32 less (`tests.node.doctor.measure_memory`).
    work_bytes = 64 << 20
    return asdict(replace(facts, base_bytes=_resident_bytes() + daemon_bytes + work_bytes))


def _resident_bytes() -> int:
    """The memory that this process has now (proc(5)); where that is not told, the most that it has had.

    On Linux the latter may be its parent's; macOS tells it in bytes (getrusage(2)).
    """
    try:
        status = Path("/proc/self/status").read_text("ascii").splitlines()
        return 1024 * int(next(line.split()[1] for line in status if line.startswith("VmRSS:")))
    except (OSError, ValueError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def _engine_facts(folder: str, dtype: str, device: str) -> EngineFacts:
    """The engine's own word about the model in a folder."""
    from cosine_node.engine.torch.gguf_trial import check_names
    from cosine_node.engine.torch.load_self_test import token_bytes_of
    from cosine_node.engine.torch.loading import default_half_bytes, read_config, resolve_device, resolve_dtype
    from cosine_node.engine.torch.support import context_tokens, model_class_of, packed_obstacle, refuse_by_config
    from cosine_node.gguf.file import GgufFile

    try:
        config = read_config(folder)
        refuse_by_config(config)
        if (file := GgufFile.in_folder(Path(folder))) is not None:
            check_names(file, config)
    except UsageError as error:
        return EngineFacts(refusal=str(error))
    obstacle = packed_obstacle(model_class_of(config), config) or ""
    half_bytes = 0
    try:
        where = resolve_device(device)
        kind = resolve_dtype(dtype, device=where, config=config)
        token = token_bytes_of(config, kind) or TokenBytes(0)
        half_bytes = default_half_bytes(config, file, dtype=dtype, device=where)
    except Exception:
        # Broad, because the configuration of a folder may make a model raise anything.
        LOG.debug("a model of the configuration in %s cannot be made", folder, exc_info=True)
        token = TokenBytes(0)
    return EngineFacts(obstacle=obstacle, token=token, context_tokens=context_tokens(config), half_bytes=half_bytes)


if __name__ == "__main__":
    answer_parent(probe_machine)
