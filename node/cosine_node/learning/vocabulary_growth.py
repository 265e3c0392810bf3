"""A drafter of a reduced vocabulary learns words: tokens of the texts that it does not know yet become its own."""

import copy
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from cosine_node.distillation.new_drafter import adopt, tables_by_token
from cosine_node.engine.draft_vocabulary import DraftVocabulary

LEAST_TIMES: Final = 2
"""Tuned: what was said once may never be said again, and one saying teaches little."""
MOST_KNOWN: Final = 16_384
"""A choice that bounds a pass: at width 576 the output of so many tokens costs as much as two to three layers."""


@dataclass(frozen=True, slots=True, eq=False)
class Grown:
    """A model with more tokens than before."""

    model: Any
    vocabulary: DraftVocabulary


def grown(model: Any, vocabulary: DraftVocabulary, texts: Iterable[tuple[int, ...]]) -> Grown | None:
    """The model with the tokens that texts have often and it does not know; None where there are none.

    New tokens begin as the reserved id, which stood for them so far.
    """
    known = set(vocabulary.target_ids)
    counts = Counter(token for text in texts for token in text if token not in known)
    often = [token for token, times in counts.most_common() if times >= LEAST_TIMES]
    often = often[: max(0, MOST_KNOWN - len(known))]
    if not often:
        return None
    larger = DraftVocabulary(tuple(sorted((*vocabulary.target_ids, *often))))
    config = copy.deepcopy(model.config)
    config.vocab_size = larger.reserved_id + 1
    taught: Any = AutoModelForCausalLM.from_config(
        config, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
    )
    weights = model.state_dict()
    with torch.no_grad():
        for name, weight in taught.state_dict().items():
            if name in tables_by_token(taught):
                weight[:] = weights[name][vocabulary.reserved_id]
    adopt(taught, model, larger, vocabulary)
    return Grown(taught, larger)


def in_earlier_ids(logs: Tensor, places: Tensor) -> Tensor:
    """Log-probabilities [..., earlier tokens and the reserved id]: what a model has learned since joins that id.

    `places` are the ids by now of the earlier tokens.
    """
    is_new = torch.ones(logs.shape[-1], dtype=torch.bool)
    is_new[places] = False
    return torch.cat([logs[..., places], logs[..., is_new].logsumexp(-1, keepdim=True)], -1)
