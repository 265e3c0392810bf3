"""The installation: Python, the packages of each extra, and the network daemon p2pd, which must also start."""

import asyncio
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from cosine_node.doctor.finding import Finding, failure, fine, skipped, warning
from cosine_p2p.transport.socket_folder import make_socket_folder

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
