"""A child process that loads what a node loads, and tells of it: packages, device, models."""

import logging
import resource
import sys
from dataclasses import asdict, replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from cosine_node.doctor.machine import EngineFacts, MachineFacts
from cosine_node.doctor.processes import answer_parent
from cosine_node.engine.pool_size import TokenBytes
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)

DAEMON_BYTES: Final = 48 << 20
"""Resident memory of the network daemon of a node without requests (measured: 45 to 50 MiB)."""
WORK_BYTES: Final = 64 << 20
"""A choice: what first passes leave in the allocator. Models of 100 to 190 million parameters held 55 to 195 MiB
more than all else explains, two of them in float32 less (`tests.node.doctor.measure_memory`)."""


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
        facts = _with_cuda(facts)
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
    return asdict(replace(facts, base_bytes=_resident_bytes() + DAEMON_BYTES + WORK_BYTES))


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


def _engine_facts(folder: str, dtype: str, device: str) -> EngineFacts:
    """The engine's own word about the model in a folder."""
    from cosine_node.engine.torch.load_self_test import token_bytes_of
    from cosine_node.engine.torch.loading import read_config, resolve_device, resolve_dtype
    from cosine_node.engine.torch.support import context_tokens, model_class_of, packed_obstacle, refuse_by_config

    try:
        config = read_config(folder)
        refuse_by_config(config)
    except UsageError as error:
        return EngineFacts(refusal=str(error))
    obstacle = packed_obstacle(model_class_of(config), config) or ""
    try:
        kind = resolve_dtype(dtype, device=resolve_device(device), config=config)
        token = token_bytes_of(config, kind) or TokenBytes(0)
    except Exception:
        # Broad, because the configuration of a folder may make a model raise anything.
        LOG.debug("a model of the configuration in %s cannot be made", folder, exc_info=True)
        token = TokenBytes(0)
    return EngineFacts(obstacle=obstacle, token=token, context_tokens=context_tokens(config))


if __name__ == "__main__":
    answer_parent(probe_machine)
