"""The packages of each extra of this project: which are missing, and how to install them."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Final

EXTRAS: Final[Mapping[str, Sequence[str]]] = {
    "node": (
        *("cosine_engine", "cosine_node", "gguf", "google", "hivemind", "httpx", "huggingface_hub", "llguidance"),
        *("llvmlite", "numba", "numpy", "psutil", "safetensors", "torch", "transformers"),
    ),
    "llama": (
        *("cosine_engine", "cosine_node", "gguf", "hivemind", "httpx", "huggingface_hub", "llguidance"),
        *("llvmlite", "numba", "numpy", "psutil", "safetensors", "xllamacpp"),
    ),
    "light": ("libp2p", "trio"),
    "gateway": ("prometheus_client", "starlette", "uvicorn"),
    "tui": ("numpy", "textual"),
    "quantize": ("accelerate", "torchao"),
}
"""The packages of each extra by import name. hivemind is installed separately for the extra llama."""
PIP: Final[Mapping[str, str]] = {
    **{extra: f"pip install '.[{extra}]'" for extra in ("light", "gateway", "tui")},
    **{extra: f"pip install . './node[{extra}]'" for extra in ("llama", "quantize")},
    "node": "pip install . './node[torch]'",
}
"""The command that installs each, in the clone of the repository."""
INSTALL: Final[Mapping[str, str]] = {
    "node": f"To join with a model: `{PIP['node']}` in the clone of the repository.",
    "llama": f"To join with this model: `{PIP['llama']}` in the clone of the repository, then `pip install "
    "--no-deps hivemind`.",
}
HOMELESS: Final = "This user has no home folder: set HOME to a writable folder."


def extra_of(package: str, *, preferred: str) -> str | None:
    """The extra that installs a package, preferably `preferred`. None if no extra does."""
    return next((extra for extra in (preferred, *EXTRAS) if package in EXTRAS[extra]), None)


def missing_packages() -> dict[str, tuple[str, ...]]:
    """The packages of each extra that are not installed. Imports nothing."""
    return {extra: tuple(name for name in names if find_spec(name) is None) for extra, names in EXTRAS.items()}


def missing_text(missing: ModuleNotFoundError | RuntimeError, *, extra: str = "node") -> str:
    """The sentence that says how to install a missing module or to set a home folder. "" for other errors.

    If several extras install the module, `extra` is preferred.
    """
    if isinstance(missing, RuntimeError):
        # The message of both pathlib and platformdirs.
        return HOMELESS if "home directory" in str(missing) else ""
    package = (missing.name or "").partition(".")[0]
    named = extra_of(package, preferred=extra)
    if named is None:
        return ""
    return f"This command needs {package}: `{PIP[named]}` in the clone of the repository."
