"""The sizes of a target's parts, found in a child process, for a gateway has no other need of PyTorch."""

import asyncio
import logging
from dataclasses import asdict
from importlib.util import find_spec
from typing import Any, Final

from cosine_node.chains.planning import ModelNeeds
from cosine_node.doctor.processes import ProbeFailed, answer_parent, ask_child
from cosine_node.stages.part_sizes import PartSizes

LOG = logging.getLogger(__name__)
POOL_TOKENS: Final = 8192
"""Room for the texts of a few requests, as `cosine-node plan` has it."""
PROBE_S: Final = 45.0
"""As the doctor's checks that load PyTorch."""


async def target_sizes(model: str, dtype: str) -> ModelNeeds | None:
    """What the target takes, None where nobody can tell here: PyTorch or the configuration is not there."""
    if find_spec("torch") is None:
        return None
    try:
        async with asyncio.timeout(PROBE_S):
            answer = await ask_child(__name__, {"model": model, "dtype": dtype})
    except (ProbeFailed, TimeoutError) as error:
        LOG.info("the sizes of %s are not known here: %s", model, error)
        return None
    sizes = answer.pop("sizes")
    return ModelNeeds(sizes=PartSizes(**sizes | {"layers_bytes": tuple(sizes["layers_bytes"])}), **answer)


def _answer(question: dict[str, Any]) -> dict[str, Any]:
    from cosine_node.chains.model_needs import model_needs

    needs, _ = model_needs(question["model"], question["dtype"], POOL_TOKENS)
    return asdict(needs)


if __name__ == "__main__":
    answer_parent(_answer)
