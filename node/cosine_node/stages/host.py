"""A part of a model at a stage, the engine of one chain's sequences over it, and the slots of several chains.

`load_part` reads the tensors of some layers. `StageModel` runs passes over them and has one KV pool, whose slots
`StageHost` divides between chains in disjoint ranges. Each chain has a separate `StageEngine` with the same pages
and trees as its head; activations enter and leave it as tensors, and its `HostedChain` as bytes.
"""

import json
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers.utils.hub import cached_file

from cosine_engine.base import OutOfPages, Row, RowResult
from cosine_engine.blocks.held_linear import HeldLinear
from cosine_engine.compiled.model import CompiledModel
from cosine_engine.constraints.grammars import Grammars
from cosine_engine.forward.packed_model import PackedModel
from cosine_engine.forward.partial_model import AbsentOutput, StandInEmbedding, decoder_layers, part_class
from cosine_engine.forward.pass_plan import separate_feed
from cosine_engine.forward.support import (
    UnsupportedModel,
    context_tokens,
    first_line,
    model_class_of,
    numerics,
    quantisation_of,
    refuse_by_config,
)
from cosine_engine.gguf.file import GgufFile
from cosine_engine.gguf.transformers_model import stored_names
from cosine_engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_engine.paged import PagedEngine
from cosine_engine.pool_size import TokenBytes
from cosine_engine.torch.engine import row_results
from cosine_engine.torch.loading import (
    StoredBlocks,
    hide_progress_in_logs,
    load_gguf_model,
    read_config,
)
from cosine_engine.torch.pass_way import PassWay
from cosine_node.passes.runner import count_tokens
from cosine_node.stages.frames import BadActivations
from cosine_protocol.errors import UsageError
from cosine_protocol.stage import LayerRange

WEIGHTS: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
"""The file names of transformers for weights in one file, and for the index of several."""


def load_part(source: str, layers: LayerRange, *, dtype: torch.dtype) -> Any:
    """Load some layers of the model in a folder, or by a Hugging Face id, as a transformers model.

    Only their tensors are read. The first layer brings the embedding, the last one the output layer. The matrices
    of a GGUF file keep their stored format. Raises `UsageError`, `UnsupportedModel` if the model cannot be divided.
    """
    config = read_config(source)
    refuse_by_config(config)
    stored = quantisation_of(config)
    if stored is not None:
        raise UsageError(f"'{source}' is stored in {stored} and cannot be loaded in parts; choose its own weights.")
    hide_progress_in_logs()
    file = GgufFile.in_folder(Path(source))
    if file is not None:
        return load_gguf_model(
            file, config, dtype=dtype, blocks=StoredBlocks.ALL, layers=layers, attn_implementation="eager"
        )
    cls = part_class(model_class_of(config), layers)
    try:
        with _tensors(source, wanted_tensors(source, layers)) as tensors:
            model, loaded = cls.from_pretrained(
                None,
                config=config,
                state_dict=tensors,
                dtype=dtype,
                attn_implementation="eager",
                output_loading_info=True,
            )
    except torch.OutOfMemoryError:
        raise
    except (OSError, ValueError, ImportError, RuntimeError, SafetensorError) as error:
        raise UsageError(f"The weights of '{source}' cannot be read: {first_line(error)}") from error
    if lacking := set(loaded["missing_keys"]) - set(model.all_tied_weights_keys):
        raise UsageError(f"'{source}' lacks {min(lacking)}, for layers {layers} of its model.")
    return model


def wanted_tensors(source: str, layers: LayerRange) -> Callable[[str], bool]:
    """Return a predicate over tensor names, true if a part may need the tensor. Raises `UsageError`."""
    config = read_config(source)
    with torch.device("meta"):
        part = part_class(model_class_of(config), layers)(config)
    file = GgufFile.in_folder(Path(source))
    if file is not None:
        return stored_names(file, part.state_dict()).__contains__
    held = decoder_layers(part)
    lists = {name: module for name, module in part.named_modules() if isinstance(module, torch.nn.ModuleList)}
    above, _, name = next(name for name, module in lists.items() if module is held).rpartition(".")
    number = re.compile(rf"(?:^|\.){re.escape(name)}\.([0-9]+)\.")
    # The equally named lists of other modalities.
    others = {other.removesuffix(f".{name}").rpartition(".")[2] for other in lists if other.endswith(f".{name}")}
    foreign = tuple(f"{other}.{name}." for other in others - {above.rpartition(".")[2]})
    absent = tuple(
        f"{name.rpartition('.')[2]}.{weight}"
        for name, module in part.named_modules()
        if isinstance(module, StandInEmbedding | AbsentOutput)
        for weight in ("weight", "bias")
    )

    def is_wanted(key: str) -> bool:
        found = None if any(other in key for other in foreign) else number.search(key)
        return not key.endswith(absent) if found is None else int(found[1]) in layers

    return is_wanted


@contextmanager
def _tensors(source: str, is_wanted: Callable[[str], bool]) -> Iterator[dict[str, Any]]:
    """The wanted tensors, read lazily; files without any are not opened."""
    names = [WEIGHTS]
    if _file(source, WEIGHTS) is None:
        index = _file(source, INDEX)
        if index is None:
            raise UsageError(f"'{source}' has no file {WEIGHTS}, nor {INDEX}.")
        file_of: dict[str, str] = json.loads(Path(index).read_text(encoding="utf-8"))["weight_map"]
        names = sorted({file for key, file in file_of.items() if is_wanted(key)})
    with ExitStack() as opened:
        tensors: dict[str, Any] = {}
        for name in names:
            path = _file(source, name)
            if path is None:
                raise UsageError(f"'{source}' has no file {name}.")
            # A memory-mapped file would take address space for all of its tensors.
            file = opened.enter_context(safe_open(path, framework="pt", backend="pread"))
            tensors.update({key: file.get_slice(key) for key in file.keys() if is_wanted(key)})  # noqa: SIM118  # it cannot be iterated
        yield tensors


def _file(source: str, name: str) -> str | None:
    """The path of a file in a folder, or of a model by its id, downloaded if necessary; None if there is none."""
    found: str | None = cached_file(source, name, _raise_exceptions_for_missing_entries=False)
    return found


class StageModel:
    """Consecutive layers of a model, and a KV pool that chains share.

    Passes of `packed` return the activations of all tokens [tokens, hidden] unless the last layer is here. Not
    thread-safe, except `abandon`.
    """

    def __init__(self, model: Any, layers: LayerRange, *, slots: int, way: PassWay) -> None:
        """Wrap a model of `load_part`, with `slots` rounded up to pages. Raises `UnsupportedModel`."""
        self.slots = -(-slots // PAGE_TOKENS) * PAGE_TOKENS
        passes = way.pass_model(model, slots=self.slots)
        assert isinstance(passes, PackedModel | CompiledModel)
        self.packed = passes
        self.layers = layers
        self.dtype: torch.dtype = model.dtype
        self.device: torch.device = model.device
        self.numerics = numerics(model)
        self.vocab_tokens = self.packed.vocab_tokens
        self.context_tokens = context_tokens(model.config)
        self.hidden_width: int = model.config.get_text_config().hidden_size
        self.token_bytes: TokenBytes = self.packed.token_bytes
        held = (module for module in model.modules() if isinstance(module, HeldLinear))
        self.weights_bytes = sum(each.nbytes for each in (*model.parameters(), *model.buffers(), *held))
        leaving = self.packed.logits([separate_feed([0])], wanted=[0])
        if not layers.is_last and leaving.shape != (1, self.hidden_width):
            raise UnsupportedModel(model.config.model_type, "more than one vector a token goes from layer to layer")


class StageEngine(PagedEngine):
    """One chain's sequences at a stage; several share a `StageModel` by ranges of its slots. Not thread-safe.

    Its pool stays equal to those of the head and the other stages, so rows without finite logits stay fed until the
    head prunes them.
    """

    def __init__(
        self,
        model: StageModel,
        pool: PagePool,
        *,
        first_slot: int = 0,
        first_sequence: int = 0,
        grammars: Grammars | None = None,
    ) -> None:
        self.model = model
        self._store = model.packed.store.part(first_slot=first_slot, slots=pool.capacity_tokens)
        super().__init__(
            pool,
            vocab_tokens=model.vocab_tokens,
            context_tokens=min(model.context_tokens, pool.capacity_tokens),
            numerics=model.numerics,
            first_sequence=first_sequence,
            grammars=grammars,
        )

    def abandon(self) -> None:
        self.model.packed.abandon()

    def forward(self, rows: Sequence[Row], activations: Tensor | None) -> Tensor | list[RowResult]:
        """Run one pass over at least one row; return results at the last stage, else activations [tokens, hidden].

        `activations` [tokens, hidden] are those of the stage before, None at the first. Raises `BadActivations` if
        they are not finite, `LocalProtocolError`, `OutOfPages`, `OutOfMemory` or `PassAbandoned`, and then feeds
        nothing.
        """
        if activations is not None and not bool(torch.isfinite(activations).all()):
            raise BadActivations(f"Activations are not finite numbers in {self.model.numerics}.")
        with self.feeding(rows) as feeds, torch.inference_mode():

            def run(wanted: list[int]) -> Tensor:
                return self.model.packed.logits(feeds, wanted=wanted, entering=activations, store=self._store)

            is_last = self.model.layers.is_last
            return row_results(feeds, run) if is_last else run(list(range(count_tokens(rows))))


class HostedChain:
    """Sequences of one chain at a stage, for one thread at a time; call `close` at the end."""

    def __init__(self, engine: StageEngine, number: int, close: Callable[[], object]) -> None:
        self._engine = engine
        self.number = number
        self.books: PagedEngine = engine
        self.close = close

    def run(self, rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]:
        """`StageEngine.forward` over bytes, whose number is right. Raises its errors.

        Raises `BadActivations` if the output is not finite, too.
        """
        entering = None
        if activations is not None:
            # Copied into torch's own memory, since the rounding of products depends on alignment.
            model = self._engine.model
            read = torch.frombuffer(bytearray(activations), dtype=model.dtype)
            entering = read.view(-1, model.hidden_width).to(model.device, copy=True)
        found = self._engine.forward(rows, entering)
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
        self._numbers = count()
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
        """Open a chain with a separate pool. Raises `OutOfPages`."""
        pool = PagePool(tokens=pool_tokens)
        wanted = pool.capacity_tokens
        slots = next((gap[:wanted] for gap in self._gaps() if len(gap) >= wanted), None)
        if slots is None:
            raise OutOfPages(f"No {wanted} of {self.pool_tokens} token slots are free together.")
        engine = StageEngine(
            self._model, pool, first_slot=slots.start, first_sequence=first_sequence, grammars=self.grammars
        )
        number = next(self._numbers)
        self._taken[number] = slots
        return HostedChain(engine, number, lambda: self._taken.pop(number, None))
