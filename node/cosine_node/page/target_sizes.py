"""The sizes of a target's parts, found in a child process, so that a gateway need not load PyTorch."""

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
"""Enough for a few requests, as in `cosine-node plan`."""
PROBE_S: Final = 45.0
"""Long enough to import PyTorch on a slow disk."""


async def target_sizes(model: str, dtype: str) -> ModelNeeds | None:
    """Return the memory that the target needs, or None if PyTorch or the model's configuration is missing."""
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
    """Return the fields of `ModelNeeds`; runs in the child process. Raises `UsageError`."""
    from cosine_node.chains.model_needs import model_needs

    return asdict(model_needs(model, dtype, POOL_TOKENS)[0])
