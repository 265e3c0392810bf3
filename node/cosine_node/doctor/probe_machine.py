"""A child process that loads what a node loads, and tells what came of it: packages, device, supported models."""

from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cosine_node.doctor.installation import EXTRAS
from cosine_node.doctor.processes import answer_parent
from cosine_protocol.errors import UsageError


def look(question: dict[str, Any]) -> dict[str, Any]:
    """The error of each package, "" if it loads, and why each of the folders in `question` cannot be served."""
    errors = {name: _import_error(name) for name in EXTRAS["node"]}
    versions = {name: version(name.replace("_", "-")) for name, error in errors.items() if not error}
    can_judge = not (errors["torch"] or errors["transformers"])
    return {
        "errors": errors,
        "versions": versions,
        "cuda": {} if errors["torch"] else _cuda(),
        "nvidia": Path("/proc/driver/nvidia/version").exists(),
        "refusals": {folder: _refusal(folder) for folder in question["folders"]} if can_judge else {},
    }


def _import_error(name: str) -> str:
    try:
        if name == "hivemind":
            # In the one way the node itself does it.
            import_module("cosine_p2p.transport.hivemind_library")
        else:
            import_module(name)
    except Exception as error:
        return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    return ""


def _cuda() -> dict[str, Any]:
    torch: Any = import_module("torch")
    found: dict[str, Any] = {"built_for": torch.version.cuda or "", "error": "", "devices": []}
    if not torch.cuda.is_available():
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            found["error"] = next(iter(str(error).splitlines()), "")
        return found
    names = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    found["devices"] = [[name, torch.cuda.mem_get_info(number)[0]] for number, name in enumerate(names)]
    return found


def _refusal(folder: str) -> str:
    from cosine_node.engine.loading import read_config
    from cosine_node.engine.support import refuse_by_config

    try:
        refuse_by_config(read_config(folder))
    except UsageError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    answer_parent(look)
