"""What a decoder computes between the attention of two layers: products with weights, norms and a gate.

All functions are over rows. At the row counts of some tiles, a row has the same bits whatever the others are.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from cosine_node.engine.blocks.grouped_matrix import GroupedMatrix, ProductGraph
from cosine_node.engine.blocks.held_linear import HeldLinear
from cosine_node.engine.blocks.held_matrix import Floats
from cosine_node.engine.kernels import add_norm, gate


@dataclass(frozen=True, slots=True)
class Norm:
    """The weights [width] of a root mean square norm."""

    weight: Floats
    eps: np.float32

    @classmethod
    def of(cls, module: Any) -> "Norm":
        return cls(module.weight.detach().numpy(), np.float32(module.variance_epsilon))


@dataclass(frozen=True, slots=True)
class Projections:
    """Linear layers of one input, whose outputs are joined."""

    layers: tuple[HeldLinear, ...]

    @property
    def bias(self) -> Floats | None:
        """The biases; either all layers have one or none."""
        biases = [layer.bias.detach() for layer in self.layers if layer.bias is not None]
        return torch.cat(biases).numpy() if biases else None


@dataclass(frozen=True, slots=True)
class Step:
    """The part of a layer after its attention, and the part of the next one before its attention.

    The first step has only the latter, the last one only the former.
    """

    after: tuple[Projections, Norm, Projections, Projections] | None
    """The output projection of attention, the norm, gate and up, and down."""
    before: tuple[Norm, Projections] | None
    """The norm, and queries, keys and values."""

    @property
    def projections(self) -> list[Projections]:
        return [each for part in (self.after, self.before) for each in part or () if isinstance(each, Projections)]

    @property
    def kind(self) -> tuple[object, ...]:
        """Equal for steps that are the same code."""
        of_weights = [layer.matrix.kind for each in self.projections for layer in each.layers]
        return self.after is None, self.before is None, *of_weights


class Stepping(Protocol):
    """Maps `attended` [rows, heads * width], except in the first step, and activations `x` [rows, hidden].

    Returns the new activations, and queries, keys and values [rows, any], except in the last step.
    """

    def __call__(self, attended: Floats | None, x: Floats) -> tuple[Floats, Floats | None]: ...


def stepping(step: Step, *, releases: bool) -> Stepping:
    """Return the fastest implementation of a step. With `releases`, only it has weights in groups afterwards."""
    matrices = [layer.matrix for each in step.projections for layer in each.layers]
    grouped = [matrix for matrix in matrices if isinstance(matrix, GroupedMatrix)]
    if len(grouped) < len(matrices):
        return _by_kernels(step)
    found = _in_graph(step)
    if releases:
        for matrix in grouped:
            matrix.release()
    return found


def _by_kernels(step: Step) -> Stepping:
    """Compute a step by compiled kernels and a product for each of its projections."""
    attention_output, mlp_norm, gate_and_up, down = step.after or (None, None, None, None)
    norm, query_key_value = step.before or (None, None)
    products = [
        None if each is None else _product(each) for each in (attention_output, gate_and_up, down, query_key_value)
    ]

    def run(attended: Floats | None, x: Floats) -> tuple[Floats, Floats | None]:
        output_of, wide_of, narrow_of, heads_of = products
        normed, added = np.empty_like(x), np.zeros_like(x)
        x = x.copy()
        if output_of is not None and wide_of is not None and narrow_of is not None:
            assert attended is not None and mlp_norm is not None
            add_norm(x, output_of(attended), mlp_norm.weight, mlp_norm.eps, normed)
            wide = wide_of(normed)
            gated = np.empty((len(x), wide.shape[1] // 2), np.float32)
            gate(wide, gated)
            added = narrow_of(gated)
        if heads_of is None or norm is None:
            return x + added, None
        add_norm(x, added, norm.weight, norm.eps, normed)
        return x, heads_of(normed)

    return run


def _product(projections: Projections) -> Callable[[Floats], Floats]:
    matrix, bias = HeldLinear.join(projections.layers), projections.bias

    def times(rows: Floats) -> Floats:
        found = matrix.times(rows)
        return found if bias is None else found + bias

    return times


def _in_graph(step: Step) -> Stepping:
    """Compute a step as one graph of ONNX Runtime, which has its own copy of the weights."""
    graph = ProductGraph()

    def product(rows: str, projections: Projections) -> str:
        parts = [part for layer in projections.layers for part in _grouped(layer).parts]
        return graph.product(rows, parts, projections.bias)

    def normed(x: str, added: str, norm: Norm) -> tuple[str, str]:
        """Return x + added, and its norm."""
        weight, eps = graph.weight(norm.weight), float(norm.eps)
        found, _, _, total = graph.apply(
            "com.microsoft.SkipSimplifiedLayerNormalization", x, added, weight, outputs=4, epsilon=eps
        )
        return total, found

    hidden = step.after[1].weight if step.after is not None else step.before[0].weight if step.before else ()
    x, added = graph.given("x", len(hidden)), None
    if step.after is not None:
        attention_output, norm, gate_and_up, down = step.after
        attended = graph.given("attended", attention_output.layers[0].in_features)
        x, found = normed(x, product(attended, attention_output), norm)
        halves = graph.apply("Split", product(found, gate_and_up), outputs=2, axis=1, num_outputs=2)
        (share,) = graph.apply("Sigmoid", halves[0])
        (gated,) = graph.apply("Mul", halves[0], share)
        added = product(graph.apply("Mul", gated, halves[1])[0], down)
    results = []
    if step.before is None:
        assert added is not None
        results = [graph.apply("Add", x, added)[0]]
    else:
        norm, query_key_value = step.before
        if added is None:
            weight = graph.weight(norm.weight)
            (found,) = graph.apply("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=float(norm.eps))
        else:
            x, found = normed(x, added, norm)
            results = [x]
        results.append(product(found, query_key_value))
    session = graph.session(results)
    is_first, is_last = step.after is None, step.before is None

    def run(attended: Floats | None, x: Floats) -> tuple[Floats, Floats | None]:
        outputs = session.run(None, {"x": x} if is_first else {"x": x, "attended": attended})
        return x if is_first else outputs[0], None if is_last else outputs[-1]

    return run


def _grouped(layer: HeldLinear) -> GroupedMatrix:
    assert isinstance(layer.matrix, GroupedMatrix)
    return layer.matrix
