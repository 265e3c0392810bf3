"""A trial at load time: does a packed token tree give what separate eager forwards give?

Configurations cannot be trusted to say everything, so a few tokens are run both ways. Sliding windows are
shortened meanwhile, for a window longer than the trial would test nothing.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch import Tensor

from cosine_node.engine.base import PREFIX, Row
from cosine_node.engine.packed_model import PackedModel
from cosine_node.engine.support import UnsupportedModel, is_sixteen_bit
from cosine_node.engine.tree import SequenceTree
from cosine_protocol.request import Sampling

TRIAL_WINDOW: Final = 4
TRIAL_SLOTS: Final = 64
FULL_TOLERANCE: Final = 1e-3
"""Largest relative error of a row of float32 logits."""
SIXTEEN_BIT_TOLERANCE: Final = 0.1
"""Median relative error of rows in 16 bits: rounding moves experts of a mixture, a lost state all rows."""

TRUNK: Final = tuple(range(7, 97, 9))
LEFT: Final = (11, 23, 31)
RIGHT: Final = (13, 29, 37)
OTHER: Final = (41, 5, 17, 3, 59, 61)

FAILURES: Final = (TypeError, ValueError, AttributeError, LookupError, NotImplementedError, RuntimeError)
"""What models raise that do not follow transformers' attention interface."""


def check_exactness(model: Any) -> None:
    """Raise `UnsupportedModel` unless packed passes equal separate forwards. Leaves packed attention on."""
    model_type: str = model.config.model_type
    try:
        with short_windows(model), torch.inference_mode():
            errors = trial_errors(model)
    except torch.OutOfMemoryError:
        raise
    except FAILURES as failure:
        raise UnsupportedModel(model_type, f"a trial pass failed ({failure})") from failure
    is_wrong = (
        errors.median() > SIXTEEN_BIT_TOLERANCE if is_sixteen_bit(model.dtype) else errors.max() > FULL_TOLERANCE
    )
    if is_wrong or not errors.isfinite().all():
        raise UnsupportedModel(
            model_type, f"a trial token tree was off by {float(errors.max()):.2g} of the logits' spread"
        )


def trial_errors(model: Any) -> Tensor:
    """Relative error [rows] of a forked tree and a second sequence in one pass, against eager forwards."""
    model.eval().set_attn_implementation("eager")
    branches = [_eager(model, (*TRUNK, *branch))[len(TRUNK) :] for branch in (LEFT, RIGHT)]
    expected = torch.cat([*branches, _eager(model, OTHER)])
    found = _packed(model).float()
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    errors: Tensor = (found - expected).norm(dim=-1) / spread.clamp_min(torch.finfo(torch.float32).tiny)
    return errors


def _eager(model: Any, tokens: Sequence[int]) -> Tensor:
    ids = torch.tensor([_in_vocabulary(model, tokens)], device=model.device)
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits.float()


def _packed(model: Any) -> Tensor:
    packed = PackedModel(model, slots=TRIAL_SLOTS)
    trunk, other = (SequenceTree(sampling=Sampling(), prompt_tokens=0) for _ in range(2))
    first = _add(trunk, _row(_in_vocabulary(model, TRUNK)), first_slot=20)
    packed.logits([(trunk, first)], wanted=[0])
    trunk.keep(first.nodes)
    forked = Row(
        sequence=0,
        tokens=_in_vocabulary(model, (*LEFT, *RIGHT)),
        nodes=tuple(range(len(LEFT) + len(RIGHT))),
        parents=(PREFIX, 0, 1, PREFIX, 3, 4),
    )
    second = _row(_in_vocabulary(model, OTHER))
    feeds = [(trunk, _add(trunk, forked, first_slot=40)), (other, _add(other, second, first_slot=1))]
    return packed.logits(feeds, wanted=list(range(len(forked.tokens) + len(second.tokens))))


def _row(tokens: tuple[int, ...]) -> Row:
    nodes = tuple(range(len(tokens)))
    return Row(sequence=0, tokens=tokens, nodes=nodes, parents=(PREFIX, *nodes[:-1]))


def _add(tree: SequenceTree, row: Row, *, first_slot: int) -> Row:
    tree.add(row, range(first_slot, first_slot + len(row.tokens)))
    return row


def _in_vocabulary(model: Any, tokens: Sequence[int]) -> tuple[int, ...]:
    size = model.get_input_embeddings().weight.shape[0]
    return tuple(token % size for token in tokens)


@contextmanager
def short_windows(model: Any) -> Iterator[None]:
    """Make every sliding window `TRIAL_WINDOW` tokens long for a while, in configurations and modules."""
    holders = [model.config, model.config.get_text_config(), *model.modules()]
    found = {id(holder): (holder, _own_window(holder)) for holder in holders}
    windowed = [(holder, window) for holder, window in found.values() if window]
    try:
        for holder, _ in windowed:
            holder.sliding_window = TRIAL_WINDOW
        yield
    finally:
        for holder, window in windowed:
            holder.sliding_window = window


def _own_window(holder: Any) -> int | None:
    window = vars(holder).get("sliding_window")
    return window if isinstance(window, int) and not isinstance(window, bool) else None
