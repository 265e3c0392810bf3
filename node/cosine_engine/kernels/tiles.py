"""Products of a few rows with sixteen outputs of a matrix: the innermost loops, written in LLVM's language.

A tile reads its weights once for all its rows, from one run of memory. A row's sums are in the same order in a tile
of any number of rows. Formats with scales multiply numbers of eight bits and add them exactly, in 32 bits.

Memory of a column of tiles (`LANES` outputs), for each group of inputs:

- `bits` 4: for each eight inputs 64 bytes. Byte 4 * lane + i has the number of input i in its low bits, and that of
  input i + 4 in its high bits. `bits` 8: for each four inputs 64 bytes, byte 4 * lane + i for input i. Then the
  scales of the lanes in float16, and with `has_least` their smallest weights likewise.
- `bits` 16 or 32: for each of `group` inputs the weights of the lanes in float16 or float32.
"""

from functools import cache
from typing import Any, Final, NamedTuple

import llvmlite.binding
import numpy as np
from llvmlite import ir
from numba import cfunc, types
from numba.core import cgutils
from numba.extending import intrinsic

LANES: Final = 16
"""Outputs of a tile, one for each lane of a vector."""
MOST_ROWS: Final = 8
"""Maximum number of rows of a tile: their totals and sums take 16 of the 32 registers of AVX-512."""

AHEAD_BYTES: Final = 1 << 14
"""How far ahead of their use weights are fetched. Processors do not do so by themselves beside the rows' inputs."""


class Format(NamedTuple):
    """The storage format of a matrix. A weight is number * scale of its group + its least weight, if any."""

    bits: int
    group: int
    """Inputs that share a scale; without scales, inputs that are read together."""
    has_least: bool = False
    """With smallest weights numbers are from 0 on, otherwise half of the range lies below 0."""

    @property
    def has_scales(self) -> bool:
        return self.bits < 16

    @property
    def group_bytes(self) -> int:
        """The memory of a group of `LANES` outputs."""
        scales = 2 * LANES * (1 + self.has_least) if self.has_scales else 0
        return self.bits * self.group * LANES // 8 + scales


FORMATS: Final = (
    Format(16, 2),
    Format(32, 2),
    Format(4, 32, True),
    Format(4, 32),
    Format(8, 32, True),
    Format(8, 32),
    Format(8, 16),
)
"""The formats of tiles; their numbers here are in the tables of `products`."""

I8, I16, I32, I64 = (ir.IntType(bits) for bits in (8, 16, 32, 64))
FLOAT, HALF = ir.FloatType(), ir.HalfType()
FLOATS, SUMS, BYTES = ir.VectorType(FLOAT, LANES), ir.VectorType(I32, LANES), ir.VectorType(I8, 4 * LANES)


def processor_features() -> frozenset[str]:
    """Return LLVM's names of this processor's features."""
    return frozenset(name for name, has in llvmlite.binding.get_host_cpu_features().items() if has)


class _Code:
    """Emits the code of a tile. Addresses are integers, vectors need not be aligned."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def load(self, address: Any, offset: Any, kind: Any) -> Any:
        builder = self.builder
        found = builder.load(builder.inttoptr(builder.add(address, offset), kind.as_pointer()))
        found.align = 1
        return found

    def all_lanes(self, value: Any, lanes: int = LANES) -> Any:
        """Return a vector of one value in all lanes."""
        vector = ir.VectorType(value.type, lanes)
        first = self.builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, first, ir.Constant(ir.VectorType(I32, lanes), [0] * lanes))

    def call(self, name: str, result: Any, *arguments: Any) -> Any:
        kind = ir.FunctionType(result, [argument.type for argument in arguments])
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), arguments)

    def prefetch(self, address: Any, size: int) -> None:
        """Begin to fetch the memory `AHEAD_BYTES` after an address."""
        builder = self.builder
        for line in range(0, size, 64):
            place = builder.add(address, ir.Constant(I64, AHEAD_BYTES + line))
            kind = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
            function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
            numbers = [ir.Constant(I32, number) for number in (0, 0, 1)]
            builder.call(function, [builder.inttoptr(place, I8.as_pointer()), *numbers])

    def multiply_add(self, left: Any, right: Any, added: Any) -> Any:
        """Return left * right + added, rounded once."""
        return self.call("llvm.fma.v16f32", FLOATS, left, right, added)

    def part(self, vector: Any, first: int, lanes: int, step: int = 1) -> Any:
        """Return `lanes` elements of a vector from `first` on, each `step`-th."""
        chosen = ir.Constant(ir.VectorType(I32, lanes), [first + step * lane for lane in range(lanes)])
        return self.builder.shuffle_vector(vector, vector, chosen)

    def joined(self, low: Any, high: Any) -> Any:
        lanes = 2 * low.type.count
        return self.builder.shuffle_vector(low, high, ir.Constant(ir.VectorType(I32, lanes), list(range(lanes))))


def _dot_by_vnni(code: _Code, sums: Any, quads: list[Any], inputs: list[Any], bits: int) -> Any:
    """AVX-512 with VNNI: four products of bytes and their sum are one instruction."""
    del bits
    for weights, four in zip(quads, inputs, strict=True):
        weights = code.builder.bitcast(weights, SUMS)
        sums = code.call("llvm.x86.avx512.vpdpbusd.512", SUMS, sums, weights, code.all_lanes(four))
    return sums


def _dot_by_avx_vnni(code: _Code, sums: Any, quads: list[Any], inputs: list[Any], bits: int) -> Any:
    """The same with vectors of 256 bits."""
    del bits
    half = ir.VectorType(I32, LANES // 2)
    halves = [code.part(sums, first, LANES // 2) for first in (0, LANES // 2)]
    for weights, four in zip(quads, inputs, strict=True):
        weights = code.builder.bitcast(weights, SUMS)
        for i, found in enumerate(halves):
            part = code.part(weights, i * LANES // 2, LANES // 2)
            halves[i] = code.call(
                "llvm.x86.avx512.vpdpbusd.256", half, found, part, code.all_lanes(four, LANES // 2)
            )
    return code.joined(*halves)


def _dot_by_avx2(code: _Code, sums: Any, quads: list[Any], inputs: list[Any], bits: int) -> Any:
    """AVX2: pairs of products are added in 16 bits, which hold 2 * 127 * 127 but not 2 * 255 * 127.

    Numbers of eight bits are cut into their upper seven and their lowest bit. Eight sums of pairs of numbers of one
    or four bits still have 16 bits.
    """
    builder = code.builder
    pairs, words = ir.VectorType(I16, LANES), ir.VectorType(I32, LANES // 2)
    halves = []
    for first in (0, 2 * LANES):
        short, long = None, code.part(sums, first // 4, LANES // 2)
        for weights, four in zip(quads, inputs, strict=True):
            low = weights = code.part(weights, first, 2 * LANES)
            vector = builder.bitcast(code.all_lanes(four, LANES // 2), weights.type)
            if bits == 8:
                upper = builder.lshr(weights, ir.Constant(weights.type, [1] * 2 * LANES))
                product = code.call("llvm.x86.avx2.pmadd.ub.sw", pairs, upper, vector)
                twos = ir.Constant(pairs, [2] * LANES)
                long = builder.add(long, code.call("llvm.x86.avx2.pmadd.wd", words, product, twos))
                low = builder.and_(weights, ir.Constant(weights.type, [1] * 2 * LANES))
            product = code.call("llvm.x86.avx2.pmadd.ub.sw", pairs, low, vector)
            short = product if short is None else builder.add(short, product)
        ones = ir.Constant(pairs, [1] * LANES)
        halves.append(builder.add(long, code.call("llvm.x86.avx2.pmadd.wd", words, short, ones)))
    return code.joined(*halves)


def _dot_anywhere(code: _Code, sums: Any, quads: list[Any], inputs: list[Any], bits: int) -> Any:
    """Any processor: one product for each of the four inputs of a lane."""
    del bits
    builder = code.builder
    for weights, four in zip(quads, inputs, strict=True):
        for i in range(4):
            numbers = builder.zext(code.part(weights, i, LANES, 4), SUMS)
            byte = builder.trunc(builder.lshr(four, ir.Constant(I32, 8 * i)), I8)
            sums = builder.add(sums, builder.mul(numbers, code.all_lanes(builder.sext(byte, I32))))
    return sums


WAYS: Final = (
    ({"avx512f", "avx512vnni"}, _dot_by_vnni),
    ({"avxvnni"}, _dot_by_avx_vnni),
    ({"avx2"}, _dot_by_avx2),
    (set[str](), _dot_anywhere),
)
"""What the ways to add products of bytes need, the fastest first."""


def _quads(code: _Code, form: Format, address: Any, offset: Any) -> list[Any]:
    """Load the numbers of a group, four inputs in a vector."""
    builder, quads = code.builder, []
    for i in range(form.bits * form.group * LANES // 8 // 64):
        loaded = code.load(address, builder.add(offset, ir.Constant(I64, 64 * i)), BYTES)
        if form.bits == 8:
            quads.append(loaded)
            continue
        mask, words = ir.Constant(BYTES, [15] * 64), ir.VectorType(I16, 32)
        upper = builder.lshr(builder.bitcast(loaded, words), ir.Constant(words, [4] * 32))
        quads += [builder.and_(loaded, mask), builder.and_(builder.bitcast(upper, BYTES), mask)]
    return quads


def _add_scaled(
    code: _Code, form: Format, way: Any, group: Any, addresses: tuple[Any, ...], totals: list[Any]
) -> None:
    """Add a group's products with all rows to `totals`."""
    builder = code.builder
    weights, inputs, scales, sums, lows, width = addresses

    def number(value: int) -> Any:
        return ir.Constant(I64, value)

    offset = builder.mul(group, number(form.group_bytes))
    quads = _quads(code, form, weights, offset)
    end = builder.add(offset, number(form.bits * form.group * LANES // 8))
    halves = ir.VectorType(HALF, LANES)
    scale = builder.fpext(code.load(weights, end, halves), FLOATS)
    least = None
    if form.has_least:
        least = builder.fpext(code.load(weights, builder.add(end, number(2 * LANES)), halves), FLOATS)
    for row, total in enumerate(totals):
        first = builder.add(builder.mul(width, number(row)), builder.mul(group, number(form.group)))
        # Inputs have a scale and a sum for 32 of them, and an exact sum for 16.
        of_group = builder.mul(builder.lshr(first, number(5)), number(4))
        found = ir.Constant(SUMS, [0] * LANES)
        if not form.has_least:
            of_half = builder.mul(builder.lshr(first, number(4)), number(4))
            below = code.load(sums, of_half, I32)
            if form.group == 32:
                below = builder.add(below, code.load(sums, builder.add(of_half, number(4)), I32))
            found = code.all_lanes(builder.mul(below, ir.Constant(I32, -(1 << form.bits - 1))))
        fours = [code.load(inputs, builder.add(first, number(4 * i)), I32) for i in range(len(quads))]
        found = builder.sitofp(way(code, found, quads, fours, form.bits), FLOATS)
        found = builder.fmul(found, code.all_lanes(code.load(scales, of_group, FLOAT)))
        found = code.multiply_add(found, scale, builder.load(total))
        if least is not None:
            found = code.multiply_add(least, code.all_lanes(code.load(lows, of_group, FLOAT)), found)
        builder.store(found, total)


def _add_pair(code: _Code, form: Format, group: Any, addresses: tuple[Any, ...], totals: list[Any]) -> None:
    """Add the products of two inputs of all rows: the first to each row's first total, the other to its second."""
    builder = code.builder
    weights, inputs, width = addresses
    for i in range(2):
        first = ir.Constant(I64, form.group_bytes // 2 * i)
        offset = builder.add(builder.mul(group, ir.Constant(I64, form.group_bytes)), first)
        columns = code.load(weights, offset, ir.VectorType(HALF, LANES) if form.bits == 16 else FLOATS)
        columns = builder.fpext(columns, FLOATS) if form.bits == 16 else columns
        for row, total in enumerate(totals[i::2]):
            place = builder.add(builder.mul(width, ir.Constant(I64, row)), builder.mul(group, ir.Constant(I64, 2)))
            place = builder.mul(builder.add(place, ir.Constant(I64, i)), ir.Constant(I64, 4))
            value = code.all_lanes(code.load(inputs, place, FLOAT))
            builder.store(code.multiply_add(columns, value, builder.load(total)), total)


def _emit(code: _Code, form: Format, rows: int, dot: Any, factor: Any, operands: tuple[Any, ...]) -> None:
    """Emit a tile of a format and a number of rows."""
    builder = code.builder
    weights, inputs, scales, sums, lows, width, output, stride = operands
    per_row = 1 if form.has_scales else 2
    totals = [cgutils.alloca_once_value(builder, ir.Constant(FLOATS, [0.0] * LANES)) for _ in range(rows * per_row)]
    for total in totals:
        builder.store(ir.Constant(FLOATS, [0.0] * LANES), total)
    with cgutils.for_range(builder, builder.udiv(width, ir.Constant(I64, form.group))) as loop:
        place = builder.mul(loop.index, ir.Constant(I64, form.group_bytes))
        code.prefetch(builder.add(weights, place), form.group_bytes)
        if form.has_scales:
            _add_scaled(code, form, dot, loop.index, (weights, inputs, scales, sums, lows, width), totals)
        else:
            _add_pair(code, form, loop.index, (weights, inputs, width), totals)
    for row in range(rows):
        found = [builder.load(total) for total in totals[row * per_row : (row + 1) * per_row]]
        total = found[0] if per_row == 1 else builder.fadd(*found)
        place = builder.add(output, builder.mul(builder.mul(stride, ir.Constant(I64, row)), ir.Constant(I64, 4)))
        address = builder.inttoptr(place, FLOATS.as_pointer())
        builder.store(builder.fmul(total, code.all_lanes(factor)), address).align = 4


Address = int | np.int64  # Numba takes either.


class Tile(NamedTuple):
    """The operands of a tile: addresses, and numbers of elements. `output` has rows that are `stride` apart.

    Inputs [rows, `width`] are numbers of eight bits with their scales, by 32, exact sums, by 16, and sums times
    scales, by 32; without scales of the weights they are in float32.
    """

    weights: Address
    inputs: Address
    scales: Address
    sums: Address
    lows: Address
    width: int
    output: Address
    stride: int


@intrinsic(prefer_literal=True)  # type: ignore[untyped-decorator]
def tile_by(typing: Any, way: Any, form: Any, rows: Any, factor: Any, given: Any) -> Any:
    """Write the products of `rows` rows, at most `MOST_ROWS`, with `LANES` outputs, times a power of two.

    `way` is a number of `WAYS`, a constant, `form` one of `FORMATS`, and `given` a `Tile`.
    """
    del typing, form, rows, factor
    if not isinstance(way, types.IntegerLiteral):
        return None
    dot = WAYS[way.literal_value][1]

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature
        _, form, rows, factor, given = values
        operands = cgutils.unpack_tuple(builder, given)
        for number, chosen in enumerate(FORMATS):
            with builder.if_then(builder.icmp_signed("==", form, ir.Constant(I64, number))):
                for count in range(1, MOST_ROWS + 1):
                    with builder.if_then(builder.icmp_signed("==", rows, ir.Constant(I64, count))):
                        _emit(_Code(builder), chosen, count, dot, factor, operands)
        return context.get_dummy_value()

    return types.void(way, types.int64, types.int64, types.float32, given), generate


WAY: Final = next(number for number, (needed, _) in enumerate(WAYS) if needed <= processor_features())
OF_TILE: Final = types.void(types.int64, types.int64, types.float32, *(types.int64,) * len(Tile._fields))
"""The arguments of `tile_by` but the first, with the operands one by one."""


def tile_rows(form: Format) -> int:
    """Return the most rows of a tile for which this processor has registers."""
    has_many = "avx512f" in processor_features()
    return MOST_ROWS if has_many or form.has_scales else 3


@cache
def tile() -> int:
    """Return the address of a function that is `tile_by` with the fastest way of this processor.

    It is compiled once: within other kernels, its code would be compiled again with each of them.
    """

    def run(
        form: int,
        rows: int,
        factor: np.float32,
        weights: int,
        inputs: int,
        scales: int,
        sums: int,
        lows: int,
        width: int,
        output: int,
        stride: int,
    ) -> None:
        tile_by(WAY, form, rows, factor, Tile(weights, inputs, scales, sums, lows, width, output, stride))

    return int(cfunc(OF_TILE, cache=True)(run).address)


@intrinsic  # type: ignore[untyped-decorator]
def call_tile(typing: Any, tile: Any, form: Any, rows: Any, factor: Any, given: Any) -> Any:
    """Call `tile_by` at the address `tile`."""
    del typing, tile, form, rows, factor

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        del signature
        address, *others, given = values
        others += cgutils.unpack_tuple(builder, given)
        kind = ir.FunctionType(ir.VoidType(), [each.type for each in others])
        builder.call(builder.inttoptr(address, kind.as_pointer()), others)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64, types.int64, types.float32, given), generate


@intrinsic  # type: ignore[untyped-decorator]
def add_tile(
    typing: Any,
    rows: Any,
    weights: Any,
    apart: Any,
    count: Any,
    inputs: Any,
    width: Any,
    output: Any,
    stride: Any,
) -> Any:
    """Add the products of `count` inputs of `rows` rows, at most `MOST_ROWS`, with `LANES` outputs to the output.

    All is in float32, and all arguments are integers. Addresses: of the weights of the first input, with those of
    the others `apart` elements from each other, of the inputs [rows, `width`], and of the output, whose rows are
    `stride` apart. Inputs are added one by one, so that it does not matter for a sum which of them one call adds.
    """
    del typing, rows, weights, apart, count, inputs, width, output, stride

    def generate(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        del signature
        rows, weights, apart, count, inputs, width, output, stride = given
        code, four = _Code(builder), ir.Constant(I64, 4)
        for number in range(1, MOST_ROWS + 1):
            with builder.if_then(builder.icmp_signed("==", rows, ir.Constant(I64, number))):
                places = [builder.mul(builder.mul(stride, ir.Constant(I64, row)), four) for row in range(number)]
                totals = [cgutils.alloca_once(builder, FLOATS) for _ in range(number)]
                for place, total in zip(places, totals, strict=True):
                    builder.store(code.load(output, place, FLOATS), total)
                with cgutils.for_range(builder, count) as loop:
                    vector = code.load(weights, builder.mul(builder.mul(apart, loop.index), four), FLOATS)
                    for row, total in enumerate(totals):
                        place = builder.add(builder.mul(width, ir.Constant(I64, row)), loop.index)
                        value = code.all_lanes(code.load(inputs, builder.mul(place, four), FLOAT))
                        builder.store(code.multiply_add(vector, value, builder.load(total)), total)
                for place, total in zip(places, totals, strict=True):
                    address = builder.inttoptr(builder.add(output, place), FLOATS.as_pointer())
                    builder.store(builder.load(total), address).align = 4
        return context.get_dummy_value()

    return types.void(*(types.int64,) * 8), generate
