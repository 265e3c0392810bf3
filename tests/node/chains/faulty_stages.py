"""Stages that compute something else than they announce, and say truly what they have computed.

Each fault is one that comes by accident, or to save work: noise on a layer, other weights, fewer bits.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from cosine_node.engine.base import Row, RowResult
from cosine_node.engine.torch.partial_model import decoder_layers
from cosine_node.engine.torch.pass_way import PassWay
from cosine_node.stages.engine import StageModel, load_part
from cosine_node.stages.host import HostedChain, StageHost
from cosine_protocol.stage_messages import LayerRange

INT8: Final = 127


class WrappedHost(StageHost):
    """A stage whose passes go through `wrap`, which is given the true ones."""

    def __init__(self, model: StageModel, wrap: Callable[[HostedChain], Any]) -> None:
        super().__init__(model)
        self._wrap = wrap

    def open(self, **options: Any) -> HostedChain:
        true = super().open(**options)
        true.run = self._wrap(true)  # type: ignore[method-assign]  # the method of this one object
        return true


def with_threads(model: StageModel, threads: int) -> StageHost:
    """An honest stage on a machine with so many threads."""

    def wrap(true: HostedChain) -> Any:
        run = true.run

        def threaded(rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                return run(rows, activations)
            finally:
                torch.set_num_threads(before)

        return threaded

    return WrappedHost(model, wrap)


def _loaded(
    folder: Path, part: LayerRange, dtype: torch.dtype, slots: int, change: Callable[[Any], None]
) -> StageHost:
    model = load_part(str(folder), part, dtype=dtype)
    with torch.no_grad():
        change(model)
    return StageHost(StageModel(model, part, slots=slots, way=PassWay.PACKED))


def _matrices(layer: Any) -> list[Tensor]:
    return [weight for weight in layer.parameters() if weight.dim() == 2]


def noisy(folder: Path, part: LayerRange, dtype: torch.dtype, slots: int, *, size: float) -> StageHost:
    """Noise of so much of a vector's length, another one each time, on what its first layer gives."""
    model = StageModel(load_part(str(folder), part, dtype=dtype), part, slots=slots, way=PassWay.PACKED)
    flat: Any = model.packed.flat
    first, *others = flat._layers
    drawn = torch.Generator().manual_seed(1)

    def with_noise(*args: Any) -> Tensor:
        true: Tensor = first(*args)
        noise = torch.randn(true.shape, generator=drawn) * true.float().square().mean(1, keepdim=True).sqrt()
        return (true.float() + size * noise).to(true.dtype)

    flat._layers = (with_noise, *others)
    return StageHost(model)


def with_a_random_layer(folder: Path, part: LayerRange, dtype: torch.dtype, slots: int) -> StageHost:
    """The weights of its first layer drawn anew, as large as they were."""

    def change(model: Any) -> None:
        drawn = torch.Generator().manual_seed(1)
        for weight in _matrices(decoder_layers(model)[part.first]):
            weight.copy_(torch.randn(weight.shape, generator=drawn) * weight.float().std())

    return _loaded(folder, part, dtype, slots, change)


def with_another_layer(folder: Path, part: LayerRange, dtype: torch.dtype, slots: int) -> StageHost:
    """The weights of its second layer in the place of its first."""

    def change(model: Any) -> None:
        layers = decoder_layers(model)
        layers[part.first].load_state_dict(layers[part.first + 1].state_dict())

    return _loaded(folder, part, dtype, slots, change)


def in_eight_bits(folder: Path, part: LayerRange, dtype: torch.dtype, slots: int) -> StageHost:
    """All matrices of its layers rounded to 255 steps, each row with a scale of its own."""

    def change(model: Any) -> None:
        for layer in decoder_layers(model)[part.first : part.end]:
            for weight in _matrices(layer):
                scale = weight.abs().amax(1, keepdim=True) / INT8
                weight.copy_((weight / scale).round() * scale)

    return _loaded(folder, part, dtype, slots, change)


def in_fewer_bits(
    folder: Path, part: LayerRange, dtype: torch.dtype, slots: int, *, used: torch.dtype
) -> StageHost:
    """It computes in another type than the one that it announces."""
    model = StageModel(load_part(str(folder), part, dtype=used), part, slots=slots, way=PassWay.PACKED)

    def cast(raw: bytes | bytearray, of: torch.dtype, to: torch.dtype) -> bytes:
        return torch.frombuffer(bytearray(raw), dtype=of).to(to).view(torch.uint8).numpy().tobytes()

    def wrap(true: HostedChain) -> Any:
        run = true.run

        def disguised(rows: Sequence[Row], activations: bytes | bytearray | None) -> bytes | list[RowResult]:
            found = run(rows, None if activations is None else cast(activations, dtype, used))
            return found if isinstance(found, list) else cast(found, used, dtype)

        return disguised

    host = WrappedHost(model, wrap)
    host.numerics = str(dtype).removeprefix("torch.")
    host.token_bytes = model.hidden_width * dtype.itemsize
    return host


FAULTS: Final[Mapping[str, Callable[[Path, LayerRange, torch.dtype, int], StageHost]]] = MappingProxyType(
    {
        **{f"noise {size:.0e}": partial(noisy, size=size) for size in (1.0, 1e-1, 1e-2, 1e-3, 1e-4, 1e-5)},
        "random layer": with_a_random_layer,
        "another layer": with_another_layer,
        "8-bit weights": in_eight_bits,
        "bfloat16": partial(in_fewer_bits, used=torch.bfloat16),
        "float16": partial(in_fewer_bits, used=torch.float16),
    }
)
"""By name, what makes such a stage of a folder, layers, the type that it announces, and the slots of its pool."""
