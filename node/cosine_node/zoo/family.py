"""The models that ship with the node: one target and its drafters, all with the target's tokenizer."""

import json
from importlib import resources
from pathlib import Path
from typing import Any

from cosine_protocol.errors import UsageError

# Names of the models, as on the command line and in the folder `models`.
DOMAINS = ("code", "math", "medical", "dialogue", "literature")
TARGET = "target"
GENERAL = "general"
SCHEME = "zoo:"
_DRAFTER = "draft-"
_NAMES = (TARGET, *(f"{_DRAFTER}{expertise}" for expertise in (*DOMAINS, GENERAL)))
_MODELS = Path(str(resources.files(__package__))) / "models"


def names() -> tuple[str, ...]:
    """Every model of the family, the target first."""
    return _NAMES


def folder(name: str) -> Path:
    """The Hugging Face folder of one model; `UsageError` for a name the family does not have."""
    if name not in _NAMES:
        raise UsageError(f"no embedded model is called {name!r}; choose one of {', '.join(_NAMES)}")
    return _MODELS / name


def tokenizer_folder() -> Path:
    """The folder with the tokenizer and chat template that every model of the family shares."""
    return folder(TARGET)


def expertise(name: str) -> tuple[str, ...]:
    """The domains a drafter is trained for; the target, which drafts for nobody, has none."""
    folder(name)
    return () if name == TARGET else (name.removeprefix(_DRAFTER),)


def resolve(source: str) -> Path | str:
    """The model that `--model` names: `zoo:NAME` and existing folders give a path, anything else stays a hub id."""
    if source.startswith(SCHEME):
        return folder(source.removeprefix(SCHEME))
    path = Path(source).expanduser()
    if path.is_dir():
        return path
    if source.startswith(("/", "./", "../", "~")):
        raise UsageError(f"no model folder at {source}; give a folder, zoo:NAME or a Hugging Face id")
    return source


def acceptance() -> dict[str, Any]:
    """The measured acceptance of every drafter in every domain, as `training.evaluate` wrote it."""
    measured: dict[str, Any] = json.loads((_MODELS / "eval.json").read_text("utf-8"))
    return measured
