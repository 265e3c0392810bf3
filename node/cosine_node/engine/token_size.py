"""The memory that a token takes in a model's pool, before any weights are read."""

import logging
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from cosine_node.engine.kv_pool import PAGE_TOKENS
from cosine_node.engine.load_trial import FAILURES, possible_ways
from cosine_node.engine.support import UnsupportedModel
from cosine_node.pool_size import TokenBytes

LOG = logging.getLogger(__name__)


def token_bytes_of(config: Any, dtype: torch.dtype) -> TokenBytes | None:
    """The memory of a token slot, from a pass over one token of a model without weights (PyTorch's meta device).

    The fastest way that can be run so is taken to be exact. None if there is none.
    """
    # PyTorch has the products of a mixture's experts without weights in bfloat16 alone; the rest of such a model is
    # then as large as in this dtype but for states that are kept in float32 in any case.
    for run_as in dict.fromkeys((dtype, torch.bfloat16)):
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(
                config, dtype=run_as, attn_implementation="eager", trust_remote_code=False
            )
        for way in possible_ways(model):
            try:
                token = way.pass_model(model, slots=PAGE_TOKENS).token_bytes
            except (UnsupportedModel, *FAILURES):
                LOG.debug("%s models have no %s without weights", config.model_type, way.value, exc_info=True)
            else:
                times = dtype.itemsize / run_as.itemsize
                return replace(token, total=round(times * token.total), windowed=round(times * token.windowed))
    return None
