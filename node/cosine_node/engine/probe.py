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
"""Shorter than every sequence of the trial, so that a model that ignores its window is noticed."""
TRIAL_SLOTS: Final = 64
"""Bounds memory: more than the tokens of the trial, whose sequences lie apart in it."""
FULL_TOLERANCE: Final = 1e-3
"""A choice: largest relative error of a row of float32 logits, far above the rounding of another order of sums."""
SIXTEEN_BIT_TOLERANCE: Final = 0.1
"""Median relative error of rows in 16 bits: rounding moves experts of a mixture, a lost state all rows."""

# The tokens of the trial: any ids that differ.
KEPT: Final = tuple(range(7, 97, 9))
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
    branches = [_eager(model, (*KEPT, *branch))[len(KEPT) :] for branch in (LEFT, RIGHT)]
    expected = torch.cat([*branches, _eager(model, OTHER)])
    found = _packed(model).float()
    # Relative to the spread of the logits: adding a constant to all of them changes no choice.
    spread = (expected - expected.mean(-1, keepdim=True)).norm(dim=-1)
    errors: Tensor = (found - expected).norm(dim=-1) / spread.clamp_min(torch.finfo(torch.float32).tiny)
    return errors


def _eager(model: Any, tokens: Sequence[int]) -> Tensor:
    ids = torch.tensor([_in_vocabulary(model, tokens)], device=model.device)
    logits: Tensor = model(input_ids=ids, use_cache=False).logits[0]
    return logits.float()


def _packed(model: Any) -> Tensor:
    """The same logits from one packed pass: the branches as a tree below a kept prefix, and the other sequence."""
    packed = PackedModel(model, slots=TRIAL_SLOTS)
    forked, other = (SequenceTree(sampling=Sampling(), prompt_tokens=0) for _ in range(2))
    kept = Row.chain(0, _in_vocabulary(model, KEPT))
    forked.add(kept, range(20, 20 + len(KEPT)))
    packed.logits([(forked, kept)], wanted=[0])
    forked.keep(kept.nodes)
    fork = Row(
        sequence=0,
        tokens=_in_vocabulary(model, (*LEFT, *RIGHT)),
        nodes=tuple(range(len(LEFT) + len(RIGHT))),
        parents=(PREFIX, 0, 1, PREFIX, 3, 4),
    )
    forked.add(fork, range(40, 40 + len(fork.tokens)))
    second = Row.chain(0, _in_vocabulary(model, OTHER))
    other.add(second, range(1, 1 + len(OTHER)))
    return packed.logits([(forked, fork), (other, second)], wanted=list(range(len(fork.tokens) + len(OTHER))))


def _in_vocabulary(model: Any, tokens: Sequence[int]) -> tuple[int, ...]:
    size = model.get_input_embeddings().weight.shape[0]
    return tuple(token % size for token in tokens)


@contextmanager
def short_windows(model: Any) -> Iterator[None]:
    """Make every sliding window `TRIAL_WINDOW` tokens long for a while, in configurations and modules."""
    windowed: dict[int, tuple[Any, int]] = {}
    for holder in (model.config, model.config.get_text_config(), *model.modules()):
        window = vars(holder).get("sliding_window")
        # Some configurations have a flag of that name.
        if isinstance(window, int) and not isinstance(window, bool) and window:
            windowed[id(holder)] = (holder, window)
    try:
        for holder, _ in windowed.values():
            holder.sliding_window = TRIAL_WINDOW
        yield
    finally:
        for holder, window in windowed.values():
            holder.sliding_window = window
