"""Weights in four or eight bits, in groups that share a scale, with products by ONNX Runtime.

These are the groups of GGUF's blocks, whose weights are not rounded again. The products (`MatMulNBits`) round each
group of a row's inputs to eight bits, as llama.cpp does, and add integers, so that a row depends on no other one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnxruntime
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor

from cosine_node.engine.blocks.held_matrix import Floats, HeldMatrix
from cosine_node.engine.blocks.kinds import KINDS
from cosine_node.engine.blocks.matrix import BlockMatrix

GROUP: Final = 32
"""Weights of a group, except in formats of GGUF with other groups."""
FOUR_BITS: Final = {"Q4_0": 0, "Q4_1": 8, "Q4_K": 8}
"""The formats with four bits, and what is subtracted from their numbers, to be in -8 to 7. Others have eight."""
ROWS_AT_ONCE: Final = 4096
"""Rows of a matrix that are unpacked at once, since numbers take four bytes until they are packed."""
THREAD_WEIGHTS: Final = 1 << 24
"""Least number of weights of a graph for each of its threads: about a millisecond of work."""
EIGHT_BIT_INPUTS: Final = 4
"""The accuracy level of `MatMulNBits` that rounds inputs to eight bits."""


@dataclass(frozen=True, slots=True)
class Groups:
    """A matrix [outputs, inputs] with weights `numbers` * `scales` + `least` of their group.

    `numbers` are of `bits` bits, `scales` and `least`, if any, are [outputs, groups of a row].
    """

    bits: int
    numbers: npt.NDArray[np.int8]
    scales: Floats
    least: Floats | None = None

    @classmethod
    def of_weights(cls, weights: Tensor, bits: int) -> "Groups":
        """Round weights [outputs, inputs] in float32; `inputs` is a multiple of `GROUP`."""
        grouped = weights.reshape(len(weights), -1, GROUP)
        tiny = torch.finfo(torch.float32).tiny
        if bits == 4:
            low, high = grouped.aminmax(dim=2)
            scales = ((high - low) / 15).clamp_min(tiny)
            least = low + 8 * scales
        else:
            # In eight bits, a smallest weight is not worth another product.
            scales, least = (grouped.abs().amax(2) / 127).clamp_min(tiny), None
        centre = grouped if least is None else grouped - least[..., None]
        most = 1 << bits - 1
        numbers = (centre / scales[..., None]).round_().clamp_(-most, most - 1).to(torch.int8)
        return cls(
            bits, numbers.view(weights.shape).numpy(), scales.numpy(), None if least is None else least.numpy()
        )

    @classmethod
    def of_blocks(cls, matrix: BlockMatrix) -> "Groups | None":
        """Return the weights of a GGUF file as they are; None for a format without scales."""
        kind, rows = matrix.layout.kind, matrix.layout.rows
        found = [
            _of_planes(kind, matrix.planes_of(part), matrix.layout.block_weights, len(part))
            for part in torch.split(torch.arange(rows), ROWS_AT_ONCE)
        ]
        return None if None in found else cls.stacked([part for part in found if part is not None])

    @classmethod
    def stacked(cls, parts: "Sequence[Groups]") -> "Groups":
        """Join the outputs of matrices of one format."""
        smallest = [part.least for part in parts if part.least is not None]
        return cls(
            parts[0].bits,
            np.concatenate([part.numbers for part in parts]),
            np.concatenate([part.scales for part in parts]),
            np.concatenate(smallest) if smallest else None,
        )

    @property
    def format(self) -> tuple[int, int, bool]:
        """The bits, the weights of a group, and whether there are smallest weights."""
        return self.bits, self.numbers.shape[1] // self.scales.shape[1], self.least is not None

    @property
    def nbytes(self) -> int:
        least_bytes = 0 if self.least is None else self.least.nbytes
        return self.numbers.size * self.bits // 8 + self.scales.nbytes + least_bytes


def _of_planes(kind: str, planes: Tensor, block_weights: int, rows: int) -> Groups | None:
    """Return the groups of the transposed blocks [bytes of a block, blocks] of some rows."""
    parts = KINDS[kind](planes)
    if parts.scale is None:
        return None

    def by_row(values: Tensor) -> Tensor:
        """Map [of a block, blocks] to [rows, of a row]."""
        values = values.reshape(-1, rows, planes.shape[1] // rows)
        return values.permute(1, 2, 0).reshape(rows, -1)

    shift = FOUR_BITS.get(kind)
    least = parts.least if not shift else parts.scale * shift + (0 if parts.least is None else parts.least)
    return Groups(
        8 if shift is None else 4,
        by_row(parts.numbers - (shift or 0)).to(torch.int8).numpy(),
        by_row(parts.scale).contiguous().numpy(),
        None if least is None else by_row(least).contiguous().numpy(),
    )


class GroupedMatrix(HeldMatrix):
    """A matrix of groups; parts with different outputs may have different formats."""

    def __init__(self, *parts: Groups) -> None:
        self.inputs, self.nbytes = parts[0].numbers.shape[1], sum(part.nbytes for part in parts)
        self.formats = tuple(dict.fromkeys(part.format for part in parts))
        self._parts = parts
        self._session: Any = None

    @property
    def parts(self) -> tuple[Groups, ...]:
        """The groups. Raises `RuntimeError` after `release`."""
        if not self._parts:
            raise RuntimeError("These weights were released, since a graph has its own copy.")
        return self._parts

    def release(self) -> None:
        """Free the memory of the weights, which a graph has copied."""
        self._parts, self._session = (), None

    @classmethod
    def joined(cls, matrices: "Sequence[GroupedMatrix]") -> "GroupedMatrix":
        return cls(*(part for matrix in matrices for part in matrix.parts))

    @property
    def kind(self) -> tuple[object, ...]:
        return GroupedMatrix, *self.formats

    def times(self, rows: Floats) -> Floats:
        if self._session is None:
            graph = ProductGraph()
            rows_name = graph.given("rows", self.inputs)
            self._session = graph.session([graph.product(rows_name, self.parts)])
        found: Floats = self._session.run(None, {"rows": rows})[0]
        return found


class ProductGraph:
    """A graph of ONNX Runtime over rows in float32. Names are of values [rows, width]."""

    def __init__(self) -> None:
        self._nodes: list[Any] = []
        self._weights: dict[str, Any] = {}
        self._given: dict[str, int] = {}
        self._number = 0

    def given(self, name: str, width: int) -> str:
        """Add an input and return its name."""
        self._given[name] = width
        return name

    def weight(self, values: npt.NDArray[Any], name: str | None = None) -> str:
        """Add a constant and return its name. One with a given name is added once."""
        name = name or f"weight{len(self._weights)}"
        if name not in self._weights:
            self._weights[name] = numpy_helper.from_array(np.ascontiguousarray(values), name)
        return name

    def apply(self, operator: str, *inputs: str, outputs: int = 1, **attributes: Any) -> tuple[str, ...]:
        """Add an operator, `com.microsoft.` for those of ONNX Runtime; return the names of its outputs."""
        domain, _, operator = operator.rpartition(".")
        names = tuple(f"value{len(self._nodes)}_{i}" for i in range(outputs))
        self._nodes.append(helper.make_node(operator, inputs, names, domain=domain, **attributes))
        return names

    def product(self, rows: str, parts: Sequence[Groups], bias: Floats | None = None) -> str:
        """Add the product of rows with the matrices of `parts`, whose outputs are joined."""
        (name, *others) = [self._product(rows, part) for part in _merged(parts)]
        if others:
            (name,) = self.apply("Concat", name, *others, axis=1)
        if bias is not None:
            (name,) = self.apply("Add", name, self.weight(bias))
        return name

    def _product(self, rows: str, part: Groups) -> str:
        (bits, size, _), (outputs, inputs) = part.format, part.numbers.shape
        self._number += part.numbers.size
        numbers = part.numbers.view(np.uint8) + np.uint8(1 << bits - 1)
        if bits == 4:
            numbers = np.bitwise_or(numbers[:, ::2] & 15, numbers[:, 1::2] << 4)
        packed = self.weight(numbers.reshape(outputs, inputs // size, -1))
        scales = self.weight(part.scales.reshape(-1))
        shape = {"K": inputs, "N": outputs, "bits": bits, "block_size": size, "accuracy_level": EIGHT_BIT_INPUTS}
        (name,) = self.apply("com.microsoft.MatMulNBits", rows, packed, scales, **shape)
        if part.least is not None:
            ones = np.repeat(np.eye(inputs // size, dtype=np.float32), size, 0)
            (sums,) = self.apply("MatMul", rows, self.weight(ones, f"ones{inputs}"))
            (name,) = self.apply("Gemm", sums, self.weight(part.least.T), name)
        return name

    def session(self, results: Sequence[str]) -> Any:
        """Return a session that computes `results` from the inputs."""
        inputs, outputs = (
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", width]) for name, width in named]
            for named in (self._given.items(), ((result, None) for result in results))
        )
        graph = helper.make_graph(self._nodes, "products", inputs, outputs, list(self._weights.values()))
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnxruntime.InferenceSession(
            model.SerializeToString(), _options(self._number), providers=["CPUExecutionProvider"]
        )


def _merged(parts: Sequence[Groups]) -> Iterator[Groups]:
    """Join adjacent parts of one format."""
    for _, alike in groupby(parts, key=lambda part: part.format):
        yield Groups.stacked(list(alike))


def _options(weights: int) -> Any:
    """Return the options of a session with this number of weights.

    Its threads sleep between products: spinning ones made passes twice as slow beside any other work. Waking them
    takes longer than small products.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = max(1, min(torch.get_num_threads(), weights // THREAD_WEIGHTS))
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return options
