"""A pass through the layers of a decoder of the Llama or Gemma kind, as one kernel."""

from typing import Final, NamedTuple

import numpy as np

from cosine_engine.kernels.attention import attend
from cosine_engine.kernels.compilation import Floats, Integers, compiled, floats_at, inlined, shaped
from cosine_engine.kernels.crew import Thread, columns_of, meet, share
from cosine_engine.kernels.elements import (
    PAGE,
    add,
    add_norm,
    copy,
    gate,
    norm,
    norm_head,
    rotate_and_store,
)
from cosine_engine.kernels.products import FIRST_SCALED, GROUP, Inputs, round_inputs, times

NONE: Final[int] = np.int64(0)  # type: ignore[assignment]  # Numba takes either.
"""Zero as all other numbers are. For a literal, Numba would compile what is called with it once more."""


class DecoderShape(NamedTuple):
    """The sizes of all layers."""

    hidden: int
    entering: int
    """Elements that queries, keys and values are computed from."""
    wide: int
    """Elements of the feed-forward."""
    query_heads: int
    key_heads: int
    width: int
    """Elements of a head."""
    scale: np.float32
    """The factor of queries."""
    eps: np.float32
    """What norms add to squares."""
    steepness: tuple[np.float32, np.float32]
    """Those of the feed-forward's gate: `elements.SILU` or `GELU`."""


class Layers(NamedTuple):
    """The weights of a decoder. Addresses are of arrays in float32 and int64."""

    shape: DecoderShape
    tile: int
    """The address of `tiles.tile`, for `products`."""
    norms: Integers
    """The addresses [layers + 1, 6] of the weights of norms: before attention (in the last row before the output
    layer), before the feed-forward, of query heads, of key heads, of the output of attention and of that of the
    feed-forward, or 0 without such norms."""
    matrices: Integers
    """The parts of all matrices, as `products` has them."""
    bounds: Integers
    """The parts [layers + 1, 5, 2] from the first up to another: of queries, keys and values; of the output of
    attention; of gate, up and down. In the last row the first are the output layer's."""
    windows: Integers
    """The number of each layer's window among those of the passes."""


class KernelPass(NamedTuple):
    """The arrays of a pass over `tokens` tokens."""

    x: Floats
    """Two arrays [tokens, hidden]: the embedded tokens, and room."""
    angles: Floats
    """For each window the cosines and sines [windows, 2, tokens, width]."""
    slots: Integers
    """For each window the slots [windows, tokens] of the tokens."""
    paths: Integers
    """For each window the slots [windows, any] of the paths."""
    spans: Integers
    """For each window and token where its path begins and how long it is, [windows, 2, tokens]."""
    pages: Integers
    """The addresses [layers, 2] of keys and values."""
    page_slots: Integers
    """The slots [windows] of a layer's keys and values."""
    wanted: Integers
    """The tokens whose logits are wanted, none without an output layer."""
    kept: Integers
    """Where the input of a layer [layers + 1] is kept in `features`, or -1. The last is the output of all."""
    features: Floats
    """The kept inputs [any, tokens, hidden]."""
    logits: Floats
    """The logits [wanted, vocab]."""
    inputs: tuple[Inputs, Inputs]
    """Room for inputs of products, used in turns."""
    room: tuple[Floats, Floats, Floats]
    """The `attention_room`."""
    outputs: Floats
    """Room for outputs of products."""
    stop: Integers
    """Two numbers: not 0 to stop before the next layer, and room."""


@inlined
def _matrix(layers: Layers, number: int, which: int) -> Integers:
    """Return the parts of a layer's matrix."""
    found: Integers = layers.matrices[layers.bounds[number, which, 0] : layers.bounds[number, which, 1]]
    return found


@compiled
def _round(given: Inputs, matrix: Integers, rows: int, width: int, thread: Thread) -> None:
    """Round a thread's share of the inputs of a product, if its weights have scales."""
    rounds = False
    for part in range(len(matrix)):
        rounds = rounds or matrix[part, 1] >= FIRST_SCALED
    if rounds:
        first, last = columns_of(width, thread)
        round_inputs(given, rows, width, first // GROUP, last // GROUP)


@compiled
def _add_and_norm(layers: Layers, given: KernelPass, norms: tuple[int, int], place: int, thread: Thread) -> None:
    """Add the last product to the activations at `place`, which takes them to the other one, and norm the sum.

    `norms` are those of the product, if any, and of the sum.
    """
    (tokens, hidden), (first, last) = given.x.shape[1:], columns_of(layers.shape.hidden, thread)
    x, total, eps = given.x[place], given.x[1 - place], layers.shape.eps
    added = shaped(given.outputs, (tokens, hidden))
    of_product, of_sum = norms
    if of_product:
        room = shaped(given.outputs[tokens * hidden : 2 * tokens * hidden], (tokens, hidden))
        norm(added, floats_at(of_product, (hidden,)), eps, room, first, last)
        meet(thread)
        added = room
    if of_sum:
        normed = shaped(given.inputs[0].rows, (tokens, hidden))
        add_norm(x, added, floats_at(of_sum, (hidden,)), eps, total, normed, first, last)
    else:
        add(x, added, total, first, last)


@compiled
def _attention(layers: Layers, given: KernelPass, number: int, thread: Thread) -> None:
    """Write the output of a layer's attention, from its normed input."""
    shape, tokens, (left, right) = layers.shape, given.x.shape[1], given.inputs
    width, key_heads, rotated = shape.width, shape.key_heads, shape.query_heads + shape.key_heads
    columns, attended_width = (rotated + key_heads) * width, shape.query_heads * width
    flat_heads = given.outputs[tokens * shape.hidden : tokens * (shape.hidden + columns)]
    times(layers.tile, _matrix(layers, number, 0), left, tokens, shape.entering, flat_heads, columns, thread)
    meet(thread)
    heads = shaped(flat_heads, (tokens, rotated + key_heads, width))
    of_queries, of_keys = layers.norms[number, 2], layers.norms[number, 3]
    if of_queries:
        first, last = share(tokens * rotated, thread)
        for unit in range(first, last):
            weight = floats_at(of_queries if unit % rotated < shape.query_heads else of_keys, (width,))
            norm_head(heads[unit // rotated, unit % rotated], weight, shape.eps)
        meet(thread)
    window = layers.windows[number]
    slots = given.page_slots[window]
    # No token takes the spare slot, nor whole pages less.
    pages = slots // PAGE
    turned = floats_at(given.pages[number, 0], (pages, key_heads, width, PAGE))
    values = floats_at(given.pages[number, 1], (slots, key_heads, width))
    rotate_and_store(heads, given.angles[window], given.slots[window], turned, values, thread)
    meet(thread)
    attended = shaped(right.rows, (tokens, shape.query_heads, width))
    paths = given.paths[window], given.spans[window, 0], given.spans[window, 1]
    room = given.room[0][thread.number], given.room[1][thread.number], given.room[2][thread.number]
    attend(heads, turned, values, paths, shape.scale, room, attended, thread)
    meet(thread)
    output = _matrix(layers, number, 1)
    _round(right, output, tokens, attended_width, thread)
    meet(thread)
    times(layers.tile, output, right, tokens, attended_width, given.outputs, shape.hidden, thread)
    meet(thread)


@compiled
def _feed_forward(layers: Layers, given: KernelPass, number: int, thread: Thread) -> None:
    """Write the output of a layer's gated feed-forward, from its normed input."""
    tokens, hidden, wide = given.x.shape[1], layers.shape.hidden, layers.shape.wide
    (left, right), start, size = given.inputs, tokens * hidden, tokens * wide
    gates, ups = given.outputs[start : start + size], given.outputs[start + size : start + 2 * size]
    times(layers.tile, _matrix(layers, number, 2), left, tokens, hidden, gates, wide, thread)
    times(layers.tile, _matrix(layers, number, 3), left, tokens, hidden, ups, wide, thread)
    first, last = columns_of(wide, thread)
    gated = shaped(right.rows, (tokens, wide))
    gate(shaped(gates, (tokens, wide)), shaped(ups, (tokens, wide)), layers.shape.steepness, gated, first, last)
    down = _matrix(layers, number, 4)
    _round(right, down, tokens, wide, thread)
    meet(thread)
    times(layers.tile, down, right, tokens, wide, given.outputs, hidden, thread)
    meet(thread)


@inlined
def _layer(layers: Layers, given: KernelPass, number: int, place: int, thread: Thread) -> None:
    """Write the last product of a layer, from its normed input. The activations at `place` go to the other one."""
    _attention(layers, given, number, thread)
    _add_and_norm(layers, given, (layers.norms[number, 4], layers.norms[number, 1]), place, thread)
    _round(given.inputs[0], _matrix(layers, number, 2), given.x.shape[1], layers.shape.hidden, thread)
    meet(thread)
    _feed_forward(layers, given, number, thread)


@compiled
def _logits(layers: Layers, given: KernelPass, thread: Thread) -> None:
    """Write the logits of the wanted tokens, from the normed output of the last layer."""
    hidden, wanted, (left, right) = layers.shape.hidden, len(given.wanted), given.inputs
    first, last = columns_of(hidden, thread)
    for i in range(wanted):
        chosen = given.wanted[i] * hidden
        for j in range(first, last):
            right.rows[i * hidden + j] = left.rows[chosen + j]
    matrix = _matrix(layers, len(layers.windows), 0)
    _round(right, matrix, wanted, hidden, thread)
    meet(thread)
    vocab = given.logits.shape[1]
    times(layers.tile, matrix, right, wanted, hidden, shaped(given.logits, (wanted * vocab,)), vocab, thread)
    meet(thread)


@compiled
def run_layers(layers: Layers, given: KernelPass, thread: Thread) -> int:
    """Run the layers, and the output layer for the wanted tokens, in one of some threads.

    Returns the place in `given.x` of the output of the last layer, or -1 if the pass was stopped.
    """
    tokens, hidden, place = given.x.shape[1], layers.shape.hidden, NONE
    first, last = columns_of(hidden, thread)
    for layer in range(len(layers.norms)):
        if thread.number == 0:
            # All threads read it after a barrier, so they agree.
            given.stop[1] = given.stop[0]
        of_product = layers.norms[layer - 1, 5] if layer else 0
        _add_and_norm(layers, given, (of_product, layers.norms[layer, 0]), place, thread)
        place = 1 - place
        kept = given.kept[layer]
        if kept >= 0:
            copy(given.x[place], given.features[kept], first, last)
        if layer < len(layers.windows):
            _round(given.inputs[0], _matrix(layers, layer, 0), tokens, hidden, thread)
        meet(thread)
        if given.stop[1]:
            return -1
        if layer < len(layers.windows):
            _layer(layers, given, layer, place, thread)
            place = 1 - place
    if len(given.wanted):
        _logits(layers, given, thread)
    return place


@compiled
def run_head(layers: Layers, given: KernelPass, embedded: Floats, thread: Thread) -> int:
    """Run the layer of a draft head (`cosine_engine.eagle.draft_head`) and its output layer.

    `given.x[0]` are features, and `embedded` [tokens, hidden] the tokens that they precede. The second norm in the
    last row of `layers.norms` is that of embedded tokens. Returns the place in `given.x` of the output.
    """
    tokens, hidden, (left, right) = given.x.shape[1], layers.shape.hidden, given.inputs
    first, last = columns_of(hidden, thread)
    # What is added to the embedded tokens, and the room for the sum, which is not read.
    nothing, total = shaped(given.outputs, (tokens, hidden)), given.x[1]
    normed = shaped(right.rows, (tokens, hidden))
    weight = floats_at(layers.norms[1, 1], (hidden,))
    add_norm(embedded, nothing, weight, layers.shape.eps, total, normed, first, last)
    _add_and_norm(layers, given, (NONE, layers.norms[0, 0]), NONE, thread)
    meet(thread)
    if thread.number == 0:
        # From the last token to the first, so that none is overwritten before it has moved.
        for token in range(tokens - 1, -1, -1):
            for i in range(hidden - 1, -1, -1):
                left.rows[(2 * token + 1) * hidden + i] = left.rows[token * hidden + i]
            for i in range(hidden):
                left.rows[2 * token * hidden + i] = normed[token, i]
    meet(thread)
    _round(left, _matrix(layers, 0, 0), tokens, 2 * hidden, thread)
    meet(thread)
    _layer(layers, given, NONE, NONE + 1, thread)
    _add_and_norm(layers, given, (NONE, layers.norms[1, 0]), NONE, thread)
    meet(thread)
    if len(given.wanted):
        _logits(layers, given, thread)
    return 1
