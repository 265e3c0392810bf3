"""A stage's layers for several chains, each with pages of its own; activations are bytes."""

from collections.abc import Callable, Collection, Sequence

import torch

from cosine_node.engine.base import OutOfPages, Row, RowResult
from cosine_node.engine.constraints.grammars import Grammars
from cosine_node.engine.kv_pool import PagePool
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.engine import StageEngine, StageModel
from cosine_node.stages.operations import BadActivations


class HostedChain:
    """Sequences of one chain at a stage, for one thread at a time; call `close` at the end."""

    def __init__(self, model: StageModel, engine: StageEngine, number: int, close: Callable[[], object]) -> None:
        self._model = model
        self.number = number
        self.books = engine
        self.close = close

    def run(self, rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]:
        """`StageEngine.forward` over bytes. Raises its errors, and `BadActivations` if the output is not finite."""
        entering = None
        if activations is not None:
            tokens, width, dtype = count_tokens(rows), self._model.hidden_width, self._model.dtype
            if len(activations) != tokens * width * dtype.itemsize:
                raise BadActivations(f"{len(activations)} bytes of activations came for {tokens} tokens.")
            # Copied into torch's own memory, since the rounding of products depends on alignment.
            read = torch.frombuffer(bytearray(activations), dtype=dtype)
            entering = read.view(tokens, width).to(self._model.device, copy=True)
        found = self.books.forward(rows, entering)
        if isinstance(found, list):
            return found
        if not bool(torch.isfinite(found).all()):
            raise BadActivations("What the layers gave is not finite.")
        # As plain bytes, since numpy has no bfloat16.
        return found.contiguous().cpu().view(torch.uint8).numpy().tobytes()


class StageHost:
    """Divides the slots of a `StageModel` between chains, in disjoint ranges."""

    def __init__(self, model: StageModel, *, grammars: Grammars | None = None) -> None:
        """`grammars` compile the constraints that a last stage applies, if it can."""
        self._model = model
        self.grammars = grammars
        self._taken: dict[int, range] = {}
        self._opened = 0
        self.layers = model.layers
        self.numerics = model.numerics
        self.token_bytes = model.hidden_width * model.dtype.itemsize
        """The size of a token's activations."""
        self.pool_tokens = model.slots
        """The tokens of the whole pool."""

    @property
    def chains(self) -> int:
        return len(self._taken)

    def free_tokens(self, *, without: Collection[int] = ()) -> int:
        """The tokens of the largest pool that a new chain can have, without the chains of these numbers."""
        return max(map(len, self._gaps(without)))

    def _gaps(self, without: Collection[int] = ()) -> list[range]:
        """The free ranges of slots, in order; some may be empty."""
        taken = sorted((one.start, one.stop) for number, one in self._taken.items() if number not in without)
        starts, ends = [0, *(stop for _, stop in taken)], [*(start for start, _ in taken), self.pool_tokens]
        return list(map(range, starts, ends))

    def open(self, *, pool_tokens: int, first_sequence: int) -> HostedChain:
        """Open a chain with a pool of its own. Raises `OutOfPages`."""
        pool = PagePool(tokens=pool_tokens)
        wanted = pool.capacity_tokens
        slots = next((gap[:wanted] for gap in self._gaps() if len(gap) >= wanted), None)
        if slots is None:
            raise OutOfPages(f"No {wanted} of {self.pool_tokens} token slots are free together.")
        engine = StageEngine(self._model, pool, first_slot=slots.start, first_sequence=first_sequence)
        engine.grammars = self.grammars
        number = self._opened
        self._opened += 1
        self._taken[number] = slots
        return HostedChain(self._model, engine, number, lambda: self._taken.pop(number, None))
