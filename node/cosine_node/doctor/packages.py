"""The packages of each extra of cosine-p2p: missing and broken ones, and how to install them."""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from typing import Final

from cosine_node.doctor.finding import Finding, failure, fine, warning

EXTRAS: Final[Mapping[str, Sequence[str]]] = {
    "node": (
        *("gguf", "google", "hivemind", "httpx", "huggingface_hub", "llguidance", "llvmlite", "numba"),
        *("numpy", "psutil", "safetensors", "torch", "transformers"),
    ),
    "llama": (
        *("gguf", "hivemind", "httpx", "huggingface_hub", "llguidance", "llvmlite", "numba"),
        *("numpy", "psutil", "safetensors", "xllamacpp"),
    ),
    "light": ("libp2p", "trio"),
    "gateway": ("prometheus_client", "starlette", "uvicorn"),
    "tui": ("numpy", "textual"),
    "quantize": ("accelerate", "torchao"),
}
"""The packages of each extra by import name. hivemind is installed separately for the extra llama."""
INSTALL: Final[Mapping[str, str]] = {
    "node": "To join with a model: `pip install '.[node]'` in the clone of the repository.",
    "llama": "To join with this model: `pip install '.[llama]'` in the clone of the repository, then `pip install "
    "--no-deps hivemind`.",
}
PACKAGES: Final = "packages"


def extra_of(package: str, *, preferred: str) -> str | None:
    """The extra that installs a package, preferably `preferred`. None if no extra does."""
    return next((extra for extra in (preferred, *EXTRAS) if package in EXTRAS[extra]), None)


def missing_packages() -> dict[str, tuple[str, ...]]:
    """The packages of each extra that are not installed. Imports nothing."""
    return {extra: tuple(name for name in names if find_spec(name) is None) for extra, names in EXTRAS.items()}


def judge_extras(missing: Mapping[str, Sequence[str]], *, extra: str, needs_node: bool) -> Finding:
    """Judge whether `extra` is installed, which a node needs."""
    whole = ", ".join(extra for extra, names in missing.items() if not names)
    found = f"complete: {whole}" if whole else "only the client is installed"
    if not missing[extra]:
        return fine("extras", found)
    judge = failure if needs_node else warning
    return judge("extras", f"{found}; [{extra}] lacks {', '.join(missing[extra])}", INSTALL[extra])


def look_at_imports(extra: str) -> Iterator[Finding]:
    """Import all packages of an extra."""
    broken, versions = [], []
    for name in EXTRAS[extra]:
        try:
            # hivemind as a node imports it.
            import_module("cosine_p2p.transport.full.library" if name == "hivemind" else name)
            versions.append(f"{name} {version(name.replace('_', '-'))}")
        except PackageNotFoundError:
            # A distribution of another name.
            continue
        except Exception as error:
            # Broad, because a broken package may raise anything.
            broken.append(name)
            reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
            fix = f"Reinstall it: `pip install --force-reinstall {name}`."
            yield failure(PACKAGES, f"{name} is installed but cannot be imported: {reason}", fix)
    if not broken:
        yield fine(PACKAGES, ", ".join(versions))
