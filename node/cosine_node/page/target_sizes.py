"""The sizes of a target's parts, found in a child process, for a gateway has no other need of PyTorch."""

import asyncio
import logging
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any, Final

from cosine_node.chains.planning import ModelNeeds
from cosine_node.processes.answer import answer_of
from cosine_node.stages.part_sizes import PartSizes
from cosine_protocol.errors import UsageError

LOG = logging.getLogger(__name__)
POOL_TOKENS: Final = 8192
"""Room for the texts of a few requests, as `cosine-node plan` has it."""
PROBE_S: Final = 45.0
"""Long enough to import PyTorch on a slow disk."""


async def target_sizes(model: str, dtype: str) -> ModelNeeds | None:
    """What the target takes, None where nobody can tell here: PyTorch or the configuration is not there."""
    if find_spec("torch") is None:
        return None
    try:
        answer = await asyncio.to_thread(answer_of, f"{__name__}:needs_of", model, dtype, timeout_s=PROBE_S)
    except (OSError, TimeoutError, ValueError, UsageError) as error:
        LOG.info("the sizes of %s are not known here: %s", model, error)
        return None
    sizes = answer.pop("sizes")
    return ModelNeeds(sizes=PartSizes(**sizes | {"layers_bytes": tuple(sizes["layers_bytes"])}), **answer)


def needs_of(model: str, dtype: str) -> dict[str, Any]:
    """The fields of `ModelNeeds`, for that child process. Raises `UsageError`."""
    from cosine_node.chains.model_needs import model_needs

    return asdict(model_needs(model, dtype, POOL_TOKENS)[0])
