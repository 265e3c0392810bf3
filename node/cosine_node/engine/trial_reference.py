"""The model's own logits after the texts of the trial: as `generate` computes them, and without a cache."""

import inspect
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cosine_node.engine.support import UnsupportedModel, cache_parameter
from cosine_node.engine.trial_texts import Text, TrialTexts

Logits = dict[Text, Tensor]
"""Float32 logits [vocab] after each text."""


def cached_logits(model: Any, texts: TrialTexts) -> Logits:
    """Those of `generate`: a prompt fills the model's own cache, then token by token. `far` needs no cache."""
    first, second = texts.branches
    branches = [(*branch, texts.after_branch) for branch in (first, second)]
    deeper = [
        (*path, texts.after_grandchildren)
        for path in zip(texts.siblings, texts.children, texts.grandchildren, strict=True)
    ]
    begin, *rest = texts.far
    # Not every model can be told positions: those from 0 on are its own.
    are_own = texts.far_positions == tuple(range(len(texts.far_positions)))
    return {
        **_stepped(model, texts.long, branches),
        **_stepped(model, texts.short, deeper),
        **_whole(model, [begin + branch for branch in rest], None if are_own else texts.far_positions),
    }


def cacheless_logits(model: Any, texts: TrialTexts) -> Logits:
    """The same after some of the texts by another exact way, whole texts without a cache, and with other rounding.

    Each element of the embeddings is moved to a neighbouring number of the dtype. From there on the two ways round
    independently: their difference is the rounding of the whole model in this dtype.
    """
    paths = zip(texts.siblings, texts.children, texts.grandchildren, strict=True)
    hook = model.get_input_embeddings().register_forward_hook(_to_neighbours)
    try:
        return {
            **_whole(model, [(*texts.long, *texts.branches[0], texts.after_branch)]),
            **_whole(model, [(*texts.short, *path, texts.after_grandchildren) for path in paths]),
        }
    finally:
        hook.remove()


def _to_neighbours(module: nn.Module, inputs: object, embeddings: Tensor) -> Tensor:
    """Move elements up and down in a fixed pattern: a common factor would be lost in the next normalisation."""
    del module, inputs
    generator = torch.Generator().manual_seed(0)
    signs = torch.randint(0, 2, embeddings.shape[-1:], generator=generator) * 2 - 1
    return embeddings * (1 + torch.finfo(embeddings.dtype).eps * signs.to(embeddings))


def _stepped(model: Any, prompt: Text, continuations: Sequence[Text]) -> Logits:
    """A prompt in one pass, then its continuations, equally long, a token of each in one pass."""
    parameters = inspect.signature(type(model).forward).parameters
    name = cache_parameter(type(model))
    output = model(input_ids=_ids(model, [prompt]), use_cache=True)
    found = _by_text([prompt], output.logits)
    cache = getattr(output, name, None) if name else None
    if name is None or cache is None:
        raise UnsupportedModel(model.config.model_type, "it keeps no cache of transformers")
    cache.reorder_cache(torch.zeros(len(continuations), dtype=torch.int64, device=model.device))
    for step in range(len(continuations[0])):
        ids = _ids(model, [(continuation[step],) for continuation in continuations])
        arguments: dict[str, Any] = {name: cache, "use_cache": True}
        # `generate` says the positions, and some models do not count them otherwise.
        if "position_ids" in parameters:
            arguments["position_ids"] = torch.full_like(ids, len(prompt) + step)
        output = model(input_ids=ids, **arguments)
        for continuation, logits in zip(continuations, output.logits[:, -1].float(), strict=True):
            found[prompt + continuation[: step + 1]] = logits
    return found


def _whole(model: Any, texts: Sequence[Text], positions: Sequence[int] | None = None) -> Logits:
    """Equally long texts in one pass without a cache, at the positions from 0 or at others."""
    ids = _ids(model, texts)
    placed = {}
    if positions is not None:
        # With a mask of their own, tokens whose positions do not follow each other still are one text.
        placed = {
            "position_ids": torch.tensor(positions, device=model.device).expand_as(ids),
            "attention_mask": torch.ones_like(ids),
        }
    return _by_text(texts, model(input_ids=ids, use_cache=False, **placed).logits)


def _by_text(texts: Sequence[Text], logits: Tensor) -> Logits:
    """The logits [texts, tokens, vocab] of a pass over equally long texts by what each token ends."""
    rows = logits.float()
    return {text[: i + 1]: rows[number, i] for number, text in enumerate(texts) for i in range(len(text))}


def _ids(model: Any, texts: Sequence[Text]) -> Tensor:
    return torch.tensor(texts, dtype=torch.int64, device=model.device)
