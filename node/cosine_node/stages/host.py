"""A stage's layers as chains use them: each has pages of its own, and activations are bytes."""

from collections.abc import Callable, Collection, Sequence

import torch

from cosine_node.engine.base import OutOfPages, Row, RowResult
from cosine_node.engine.constraints.grammars import Grammars
from cosine_node.engine.kv_pool import PagePool
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.engine import StageEngine, StageModel
from cosine_node.stages.operations import BadActivations


class HostedChain:
    """Sequences of one chain at a stage, for one thread at a time; `close` when none uses them."""

    def __init__(self, model: StageModel, engine: StageEngine, number: int, close: Callable[[], object]) -> None:
        self._model = model
        self.number = number
        self.books = engine
        self.close = close

    def run(self, rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]:
        """`StageEngine.forward` over bytes. Raises what that raises, and `BadActivations` for its own outcome."""
        entering = None
        if activations is not None:
            tokens, width, dtype = count_tokens(rows), self._model.hidden_width, self._model.dtype
            if len(activations) != tokens * width * dtype.itemsize:
                raise BadActivations(f"{len(activations)} bytes of activations came for {tokens} tokens.")
            # Copied into memory of torch's own, for products round by alignment.
            read = torch.frombuffer(bytearray(activations), dtype=dtype)
            entering = read.view(tokens, width).to(self._model.device, copy=True)
        found = self.books.forward(rows, entering)
        if isinstance(found, list):
            return found
        if not bool(torch.isfinite(found).all()):
            raise BadActivations("What the layers gave is not finite.")
        # As plain bytes, for numpy knows no bfloat16.
        return found.contiguous().cpu().view(torch.uint8).numpy().tobytes()


class StageHost:
    """Shares the slots of a `StageModel` out between chains, by ranges that no two of them have in common."""

    def __init__(self, model: StageModel, *, grammars: Grammars | None = None) -> None:
        """`grammars` are the constraints that a last stage chooses under, where it can."""
        self._model = model
        self.grammars = grammars
        self._taken: dict[int, range] = {}
        self._opened = 0
        self.layers = model.layers
        self.numerics = model.numerics
        self.token_bytes = model.hidden_width * model.dtype.itemsize
        """The length of a token's activations."""
        self.pool_tokens = model.slots
        """Tokens of the whole pool."""

    @property
    def chains(self) -> int:
        return len(self._taken)

    def free_tokens(self, *, without: Collection[int] = ()) -> int:
        """Tokens of the largest pool that a new chain can have, without the chains of these numbers."""
        taken = [slots for number, slots in self._taken.items() if number not in without]
        ends = [0, *(slots.stop for slots in taken)]
        begins = sorted([*(slots.start for slots in taken), self._model.slots])
        return max(begin - end for begin, end in zip(begins, sorted(ends), strict=True))

    def open(self, *, pool_tokens: int, first_sequence: int) -> HostedChain:
        """Sequences for a new chain, with a pool of its own. Raises `OutOfPages`."""
        pool = PagePool(tokens=pool_tokens)
        slots = _free_range(list(self._taken.values()), pool.capacity_tokens, self._model.slots)
        engine = StageEngine(self._model, pool, first_slot=slots.start, first_sequence=first_sequence)
        engine.grammars = self.grammars
        number = self._opened
        self._opened += 1
        self._taken[number] = slots
        return HostedChain(self._model, engine, number, lambda: self._taken.pop(number, None))


def _free_range(taken: Sequence[range], slots: int, all_slots: int) -> range:
    """The first gap between ranges with so many slots. Raises `OutOfPages`."""
    start = 0
    for other in sorted(taken, key=lambda each: each.start):
        if other.start - start >= slots:
            break
        start = max(start, other.stop)
    if start + slots > all_slots:
        raise OutOfPages(f"No {slots} of {all_slots} token slots are free together.")
    return range(start, start + slots)
