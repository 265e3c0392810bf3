"""A child process that loads what a node loads, and tells of it: packages, device, supported models."""

from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cosine_node.doctor.installation import EXTRAS
from cosine_node.doctor.processes import answer_parent
from cosine_protocol.errors import UsageError


def probe_machine(question: dict[str, Any]) -> dict[str, Any]:
    """The error of each package, "" if it loads, and why each of the folders in `question` cannot be served."""
    errors = dict.fromkeys(EXTRAS["node"], "")
    for name in errors:
        try:
            # hivemind in the one way the node itself loads it.
            import_module("cosine_p2p.transport.hivemind_library" if name == "hivemind" else name)
        except Exception as error:
            # Broad, because a package that is broken may raise anything while it is loaded.
            errors[name] = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    versions = {name: version(name.replace("_", "-")) for name, error in errors.items() if not error}
    can_judge = not (errors["torch"] or errors["transformers"])
    return {
        "errors": errors,
        "versions": versions,
        "cuda": {} if errors["torch"] else _cuda(),
        "nvidia": Path("/proc/driver/nvidia/version").exists(),
        "refusals": {folder: _refusal(folder) for folder in question["folders"]} if can_judge else {},
    }


def _cuda() -> dict[str, Any]:
    """The CUDA that PyTorch is built for, its devices with free bytes, and its error."""
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
    """The reason why the engine does not run the model in a folder; "" if it does."""
    from cosine_node.engine.loading import read_config
    from cosine_node.engine.support import refuse_by_config

    try:
        refuse_by_config(read_config(folder))
    except UsageError as error:
        return str(error)
    return ""


if __name__ == "__main__":
    answer_parent(probe_machine)
