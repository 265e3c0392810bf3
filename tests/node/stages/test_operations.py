"""A head and stages that apply its operations late, but in order, have the same pages, trees and prefixes."""

from array import array
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cosine_node.chains.engine import ChainEngine
from cosine_node.engine.base import PREFIX, OutOfPages, Row, RowResult
from cosine_node.engine.kv_pool import PAGE_TOKENS, PagePool
from cosine_node.engine.paged import PagedEngine
from cosine_node.stages.operations import FeedRows, Operation, apply_to_books
from cosine_protocol.errors import LocalProtocolError
from cosine_protocol.request import Sampling

VOCAB = 3
PAGES = 8
CONTEXT = 90
SIZES: dict[str, Any] = {"vocab_tokens": VOCAB, "context_tokens": CONTEXT, "numerics": "none"}


def new_pool() -> PagePool:
    return PagePool(tokens=PAGES * PAGE_TOKENS)


HEADS_OWN = ("_chain", "witness", "_scopes")
"""What a head has beside its books; stages know its texts' scopes by their hashes alone."""


def state_of(value: Any) -> Any:
    """Everything that an engine's later decisions can depend on, as plain values; dicts with their order."""
    if isinstance(value, dict):
        return [(key, state_of(each)) for key, each in value.items()]
    if isinstance(value, list | tuple | array):
        return [state_of(each) for each in value]
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, set | frozenset):
        return sorted(value)
    if isinstance(value, PagedEngine) or type(value).__module__.startswith("cosine_node.engine"):
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        names = [*slots, *getattr(value, "__dict__", {})]
        return {name: state_of(getattr(value, name)) for name in names if name not in HEADS_OWN}
    return value.tolist() if hasattr(value, "tolist") else value


class RecordingChain:
    """Implements `Chain`: remembers operations, and answers nothing of use."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def submit(self, operation: Operation) -> None:
        self.operations.append(operation)

    def results(self) -> Sequence[RowResult]:
        fed = next(each for each in reversed(self.operations) if isinstance(each, FeedRows))
        return [RowResult(()) for _ in fed.rows]


class LateStage:
    """A stage without a model, some operations behind its head."""

    def __init__(self) -> None:
        self.books = PagedEngine(new_pool(), **SIZES)
        self.applied = 0

    def apply(self, operation: Operation) -> None:
        if isinstance(operation, FeedRows):
            self.books.feed(operation.rows)
        else:
            apply_to_books(self.books, operation)
        self.applied += 1


class Serving:
    """A head that is asked for random things, allowed or not, and what it looked like after each operation."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.chain = RecordingChain()
        self.head = ChainEngine(self.chain, new_pool(), **SIZES)
        self.states = [state_of(self.head)]
        self.stages = [LateStage() for _ in range(3)]

    def draw(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def sequence(self) -> int:
        # Sometimes one that is not open.
        return self.draw(0, self.head.opened)

    def row(self, sequence: int) -> Row:
        tree = self.head._trees.get(sequence)
        names = [] if tree is None else list(tree.nodes)
        count = self.draw(1, 5) if self.draw(0, 2) else self.draw(20, 40)
        first = max(names, default=-1) + 1
        nodes = tuple(range(first, first + count))
        known = [PREFIX, *names]
        if count > 5:
            parents = (known[self.draw(0, len(known) - 1)], *nodes[:-1])
        else:
            parents = tuple((known + list(nodes[:i]))[self.draw(0, len(known) + i - 1)] for i in range(count))
        # Few tokens, so that texts begin alike.
        tokens = tuple(self.draw(0, 1) if count <= 5 else 0 for _ in nodes)
        return Row(sequence, tokens, nodes, parents)

    def do(self, what: int) -> None:
        head = self.head
        match what:
            case 0:
                head.open(sampling=Sampling(), prompt_tokens=3, scope=("a", "b", None)[self.draw(0, 2)])
            case 1:
                head.reuse_prefix(self.sequence(), [0] * self.draw(1, 60))
            case 2:
                head.reserve(self.sequence(), self.draw(0, 60))
            case 3 | 4:
                asked = dict.fromkeys(self.sequence() for _ in range(self.draw(1, 3)))
                head.forward([self.row(sequence) for sequence in asked])
            case 5 | 6:
                sequence = self.sequence()
                tree = head._trees.get(sequence)
                name = PREFIX
                if tree is not None and tree.nodes:
                    name = list(tree.nodes)[self.draw(0, len(tree.nodes) - 1)]
                path = []
                while tree is not None and name != PREFIX:
                    path.append(name)
                    name = tree.nodes[name].parent
                head.keep(sequence, path[::-1] if self.draw(0, 9) else path)
            case 7:
                head.prune(self.sequence(), [self.draw(0, 12) for _ in range(self.draw(0, 4))])
            case _:
                head.release(self.sequence())

    def step(self) -> None:
        sent = len(self.chain.operations)
        try:
            self.do(self.draw(0, 8))
        except (LocalProtocolError, OutOfPages):
            assert len(self.chain.operations) == sent
        now = state_of(self.head)
        if len(self.chain.operations) == sent:
            assert now == self.states[-1], "what was not sent changed something"
        else:
            assert len(self.chain.operations) == sent + 1
            self.states.append(now)
        for stage in self.stages:
            self.catch_up(stage, self.draw(0, 3))

    def catch_up(self, stage: LateStage, most: int) -> None:
        for operation in self.chain.operations[stage.applied : stage.applied + most]:
            stage.apply(operation)
            assert state_of(stage.books) == self.states[stage.applied], operation


@pytest.mark.thorough
@settings(max_examples=40)
@given(st.data())
def test_stages_that_apply_the_log_late_are_like_the_head_after_every_operation(
    data: st.DataObject,
) -> None:
    serving = Serving(data)
    for _ in range(3):
        serving.do(0)
        serving.states.append(state_of(serving.head))
    for _ in range(data.draw(st.integers(5, 40))):
        serving.step()
    for stage in serving.stages:
        serving.catch_up(stage, len(serving.chain.operations))
        assert state_of(stage.books) == state_of(serving.head)
