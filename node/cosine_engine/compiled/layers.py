"""Layers with converted weights as tables of kernels, the slots that tokens attend to, and the arrays of passes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Final
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from cosine_engine.blocks.held_linear import HeldLinear
from cosine_engine.forward.kv_store import KvStore
from cosine_engine.kernels.attention import attention_room
from cosine_engine.kernels.compilation import Integers
from cosine_engine.kernels.crew import run, threads_for
from cosine_engine.kernels.passes import DecoderShape, KernelPass, Layers
from cosine_engine.kernels.products import inputs_of
from cosine_engine.kernels.tiles import tile
from cosine_engine.tree import Feeds
from cosine_p2p.strategy.moving_average import moving_average


@dataclass(frozen=True, slots=True)
class Paths:
    """Token t attends to the slots `slots[first[t] : first[t] + count[t]]`: its path from the first token on.

    Tokens on one path share the slots.
    """

    slots: Integers
    first: Integers
    count: Integers

    @classmethod
    def of(cls, feeds: Feeds) -> "Paths":
        """Return the paths of rows that are already in their trees."""
        slots: list[int] = []
        first: list[int] = []
        count: list[int] = []
        for tree, row in feeds:
            if row.is_chain:
                before = [*tree.slots, *(node.slot for node in tree.path(row.parents[0]))]
                first += [len(slots)] * len(row.nodes)
                count += range(len(before) + 1, len(before) + len(row.nodes) + 1)
                slots += [*before, *(tree.nodes[name].slot for name in row.nodes)]
                continue
            found: dict[int, tuple[int, int]] = {}
            inner = set(row.parents)
            for leaf in (name for name in row.nodes if name not in inner):
                path = [node.slot for node in tree.path(leaf)]
                for i, slot in enumerate(path):
                    found.setdefault(slot, (len(slots), len(tree.slots) + i + 1))
                slots += [*tree.slots, *path]
            places = [found[tree.nodes[name].slot] for name in row.nodes]
            first += [place for place, _ in places]
            count += [number for _, number in places]
        return cls(*(np.array(numbers, dtype=np.int64) for numbers in (slots, first, count)))

    def within(self, window: int | None, store: KvStore) -> "Paths":
        """Return the paths in layers with a sliding window, or the same without one."""
        if window is None:
            return self
        hidden = np.maximum(self.count - window, 0)
        return Paths(store.window_slots(self.slots), self.first + hidden, self.count - hidden)


WEIGHT: Final = 0.1
"""Weight of the last pass of a length and a way: about ten count."""
FIRST_PASSES: Final = 6
"""Passes of a length that take turns at first."""
TRIED_EVERY: Final = 64
"""One pass in so many takes the slower way, since the machine's load changes."""


class ThreadTrial:
    """Chooses the number of threads of passes: all `threads`, or one.

    Threads wait for each other hundreds of times in a pass. Where another process takes the core of one, passes
    take longer than in a single thread.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._passes: dict[int, int] = {}
        self._seconds: dict[tuple[int, int], float] = {}

    def threads(self, tokens: int) -> int:
        """Return the number of threads of the next pass over this number of tokens."""
        if self._threads == 1:
            return 1
        length = tokens.bit_length()
        passes = self._passes[length] = self._passes.get(length, 0) + 1
        if passes <= FIRST_PASSES:
            return self._threads if passes % 2 else 1
        several, one = self._seconds[length, self._threads], self._seconds[length, 1]
        return self._threads if (several <= one) == bool(passes % TRIED_EVERY) else 1

    def note(self, tokens: int, threads: int, *, elapsed_s: float) -> None:
        """Note a pass in this number of threads."""
        key = tokens.bit_length(), threads
        # The first pass of a kind may compile kernels or wake threads.
        before_s = min(self._seconds.get(key, elapsed_s), 2 * elapsed_s)
        self._seconds[key] = moving_average(before_s, elapsed_s, weight=WEIGHT)


OFFSET_NORMS: Final = frozenset({"Gemma3RMSNorm"})
"""Norms whose factors are their weights plus one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerModules:
    """The modules of one layer."""

    index: int
    window: int | None
    """Tokens that attention sees. Default: all."""
    norms: tuple[Any, ...]
    """The norms before attention, before the feed-forward, of query heads, of key heads, of the output of attention
    and of that of the feed-forward; None for one that it does not have."""
    matrices: tuple[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]]
    """Linear layers: of queries, keys and values; of the output of attention; of gate, up and down."""

    @classmethod
    def of(
        cls,
        attention: Any,
        mlp: Any,
        *,
        norms: Sequence[Any],
        of_outputs: Sequence[Any] = (None, None),
        index: int = 0,
        window: int | None = None,
    ) -> "LayerModules":
        """Return the modules of a layer with usual names.

        `norms` are those before attention and the feed-forward, `of_outputs` those of their outputs.
        """
        of_heads = getattr(attention, "q_norm", None), getattr(attention, "k_norm", None)
        return cls(
            index=index,
            window=window,
            norms=(*norms, *of_heads, *of_outputs),
            matrices=(
                (attention.q_proj, attention.k_proj, attention.v_proj),
                (attention.o_proj,),
                (mlp.gate_proj,),
                (mlp.up_proj,),
                (mlp.down_proj,),
            ),
        )


@dataclass(frozen=True, slots=True)
class PassTokens:
    """The tokens of a pass: their slots in a pool, and their paths."""

    slots: Integers
    paths: Paths
    store: KvStore
    stop: Integers
    """Two numbers: not 0 to stop before the next layer, and room."""


_THREADS = [1]


def kernel_threads() -> int:
    """Return the number of threads of kernels: PyTorch's, before kernels left one to it."""
    _THREADS[0] = max(_THREADS[0], torch.get_num_threads())
    return _THREADS[0]


class CompiledLayers:
    """Runs kernels over some layers and an output layer, if any."""

    def __init__(
        self,
        shape: DecoderShape,
        layers: Sequence[LayerModules],
        *,
        last_norms: tuple[nn.Module | None, nn.Module | None],
        output: HeldLinear | None,
    ) -> None:
        """`last_norms` are the norm before the output layer and another one for the kernel, if any."""
        self.vocab_tokens = 0 if output is None else output.out_features
        self._shape, self._modules, self._output = shape, layers, output
        self._windows = list(dict.fromkeys(layer.window for layer in layers))
        matrices: list[Sequence[Any]] = [linears for layer in layers for linears in layer.matrices]
        matrices += [() if output is None else (output,), (), (), (), ()]
        ends = np.cumsum([len(linears) for linears in matrices])
        norms = [*(layer.norms for layer in layers), (*last_norms, None, None, None, None)]
        self._norms = [[None if norm is None else factors_of(norm) for norm in each] for each in norms]
        self._layers = Layers(
            shape,
            tile(),
            np.array([[0 if one is None else one.data_ptr() for one in each] for each in self._norms], np.int64),
            np.array([linear.matrix.entry(linear.bias) for linears in matrices for linear in linears], np.int64),
            np.stack([np.concatenate([[0], ends[:-1]]), ends], 1).reshape(-1, 5, 2).astype(np.int64),
            np.array([self._windows.index(layer.window) for layer in layers], np.int64),
        )
        weights = sum(linear.in_features * linear.out_features for each in matrices for linear in each)
        self._threads = threads_for(weights, kernel_threads())
        self._trial = ThreadTrial(self._threads)
        self._pages: WeakKeyDictionary[KvStore, tuple[Integers, Integers]] = WeakKeyDictionary()

    def prepare(
        self,
        tokens: PassTokens,
        x: Tensor,
        angles_of: Callable[[int | None], Sequence[Tensor]],
        wanted: Sequence[int],
        kept: Sequence[int] = (),
    ) -> KernelPass:
        """Return the arrays of a pass from activations `x` [tokens, hidden].

        `angles_of` returns the cosines and sines [..., tokens, width] of layers with a window.
        Logits are for the tokens `wanted`, features for the inputs of the layers `kept`.
        """
        shape, count = self._shape, len(x)
        room = np.empty((2, count, shape.hidden), np.float32)
        room[0] = x.numpy()
        places = np.full(len(self._modules) + 1, -1)
        places[list(kept)] = range(len(kept))
        widest = max(shape.hidden, 2 * shape.wide, (shape.query_heads + 2 * shape.key_heads) * shape.width)
        outputs = np.empty(count * (shape.hidden + widest), np.float32)
        # What the first layer adds to its input.
        outputs[: count * shape.hidden] = 0
        chosen = np.array(wanted if self.vocab_tokens else (), np.int64)
        pages, page_slots = self._pages_of(tokens.store)
        rows, threads = max(count, len(chosen)), self._threads
        width = max(shape.entering, shape.wide, shape.query_heads * shape.width)
        group = shape.query_heads // shape.key_heads
        by_window = [
            (
                tokens.slots if window is None else tokens.store.window_slots(tokens.slots),
                tokens.paths.within(window, tokens.store),
            )
            for window in self._windows
        ]
        return KernelPass(
            x=room,
            angles=np.array([[each.reshape(count, -1) for each in angles_of(one)] for one in self._windows]),
            slots=np.stack([slots for slots, _ in by_window]),
            paths=np.stack([paths.slots for _, paths in by_window]),
            spans=np.stack([[paths.first, paths.count] for _, paths in by_window]),
            pages=pages,
            page_slots=page_slots,
            wanted=chosen,
            kept=places,
            features=np.empty((len(kept), count, shape.hidden), np.float32),
            logits=np.empty((len(chosen), self.vocab_tokens), np.float32),
            inputs=(inputs_of(rows, width, threads), inputs_of(rows, width, threads)),
            room=attention_room(threads, group, shape.width, int(tokens.paths.count.max())),
            outputs=outputs,
            stop=tokens.stop,
        )

    def run(self, kernel: Callable[..., int], given: KernelPass, *others: Any) -> int:
        """Run a kernel over the layers, with the arrays `given` and `others`; return its result."""
        # OpenMP's workers keep their cores for milliseconds after each operator of PyTorch.
        if torch.get_num_threads() > 1:
            torch.set_num_threads(1)
        tokens = given.x.shape[1]
        threads, began_s = self._trial.threads(tokens), perf_counter()
        found = int(run(kernel, threads, self._layers, given, *others))
        self._trial.note(tokens, threads, elapsed_s=perf_counter() - began_s)
        return found

    def _pages_of(self, store: KvStore) -> tuple[Integers, Integers]:
        """Return the addresses [layers, 2] of a pool's keys and values, and the slots of each window."""
        found = self._pages.get(store)
        if found is None:
            # Only its shape is read.
            like = torch.empty(1, self._shape.key_heads, 1, self._shape.width)
            pages = [store.layer(layer.index, like, like.clone(), window=layer.window) for layer in self._modules]
            slots = {layer.window: each.keys.shape[2] for layer, each in zip(self._modules, pages, strict=True)}
            found = self._pages[store] = (
                np.array([[each.keys.data_ptr(), each.values.data_ptr()] for each in pages], np.int64),
                np.array([slots[window] for window in self._windows], np.int64),
            )
        return found


def factors_of(norm: Any) -> Tensor:
    """Return the factors of a norm of the root mean square."""
    weight: Tensor = norm.weight.detach()
    return 1 + weight if type(norm).__name__ in OFFSET_NORMS else weight
