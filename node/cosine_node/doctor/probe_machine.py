"""A child process that loads what a node loads, and tells of it: packages, device, supported models."""

import resource
import sys
from dataclasses import asdict, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

from cosine_node.doctor.installation import EXTRAS
from cosine_node.doctor.machine import MachineFacts
from cosine_node.doctor.processes import answer_parent
from cosine_protocol.errors import UsageError


def probe_machine(question: dict[str, Any]) -> dict[str, Any]:
    """The fields of `MachineFacts`, as far as they need the packages; `question` has the `folders` of models."""
    errors = dict.fromkeys(EXTRAS["node"], "")
    for name in errors:
        try:
            # hivemind in the one way the node itself loads it.
            import_module("cosine_p2p.transport.hivemind_library" if name == "hivemind" else name)
        except Exception as error:
            # Broad, because a package that is broken may raise anything while it is loaded.
            errors[name] = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
    facts = MachineFacts(
        errors=errors,
        versions={name: version(name.replace("_", "-")) for name, error in errors.items() if not error},
        has_torch=not errors["torch"],
        has_nvidia=Path("/proc/driver/nvidia/version").exists(),
    )
    if not errors["torch"]:
        facts = _with_cuda(facts)
    if not (errors["torch"] or errors["transformers"]):
        found = {folder: _refusal_and_obstacle(folder) for folder in question["folders"]}
        facts = replace(
            facts,
            refusals={folder: refusal for folder, (refusal, _) in found.items()},
            obstacles={folder: obstacle for folder, (_, obstacle) in found.items()},
        )
    if not any(errors.values()):
        import_module("cosine_node.node")
        import_module("cosine_node.engine.loading")
    return asdict(replace(facts, base_bytes=_resident_bytes()))


def _with_cuda(facts: MachineFacts) -> MachineFacts:
    """Facts with the CUDA that PyTorch is built for, and its devices or its error."""
    torch: Any = import_module("torch")
    facts = replace(facts, cuda_build=torch.version.cuda or "")
    if not torch.cuda.is_available():
        try:
            torch.cuda.init()
        except (RuntimeError, AssertionError) as error:
            return replace(facts, cuda_error=next(iter(str(error).splitlines()), ""))
        return facts
    devices = range(torch.cuda.device_count())
    found = [(torch.cuda.get_device_name(number), torch.cuda.mem_get_info(number)[0]) for number in devices]
    return replace(facts, cuda_devices=tuple(found))


def _resident_bytes() -> int:
    """The memory that this process has now (proc(5)); where that is not told, the most that it has had.

    On Linux the latter may be its parent's; macOS tells it in bytes (getrusage(2)).
    """
    try:
        status = Path("/proc/self/status").read_text("ascii").splitlines()
        return 1024 * int(next(line.split()[1] for line in status if line.startswith("VmRSS:")))
    except (OSError, ValueError, StopIteration):
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else 1024 * peak


def _refusal_and_obstacle(folder: str) -> tuple[str, str]:
    """The reasons why the engine does not run the model in a folder, and not in packed passes; "" if it does."""
    from cosine_node.engine.loading import read_config
    from cosine_node.engine.support import model_class_of, packed_obstacle, refuse_by_config

    try:
        config = read_config(folder)
        refuse_by_config(config)
    except UsageError as error:
        return str(error), ""
    return "", packed_obstacle(model_class_of(config), config) or ""


if __name__ == "__main__":
    answer_parent(probe_machine)
