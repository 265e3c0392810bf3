"""Seeded links keep order, respect physics, and hold what a partition holds up."""

import math
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_lab.emulation.links import PACKET_BYTES, FifoServer, LinkModel, LinkTable, Partition, SeededRoute

models = st.builds(
    LinkModel,
    one_way_s=st.floats(0, 0.5),
    jitter_s=st.floats(0, 0.1),
    loss=st.floats(0, 0.5),
    rate_bytes_per_s=st.floats(1e3, 1e9) | st.just(math.inf),
    send_cost_s=st.floats(0, 0.01),
)
writes = st.lists(st.tuples(st.floats(0, 5), st.integers(0, 10_000)), min_size=1, max_size=20).map(sorted)
lone_partitions = st.builds(
    lambda start_s, length_s: Partition(start_s=start_s, end_s=start_s + length_s, group=frozenset("a")),
    st.floats(0, 5),
    st.floats(0.01, 5),
)
partitions = st.lists(lone_partitions, max_size=3).map(tuple)


def shortest_s(model: LinkModel, size_bytes: int) -> float:
    """The time of a write on an idle link that neither loses nor delays a packet."""
    return model.send_cost_s * (size_bytes > 0) + size_bytes / model.rate_bytes_per_s + model.one_way_s


@given(models, writes, partitions, st.integers())
def test_order_delay_and_partitions_are_kept(
    model: LinkModel, written: list[tuple[float, int]], between: tuple[Partition, ...], seed: int
) -> None:
    route = SeededRoute(model, Random(seed), between)
    arrived = [route.arrival_s(at_s, size) for at_s, size in written]
    assert all(before <= after for before, after in pairwise(arrived))
    for (at_s, size), arrival_s in zip(written, arrived, strict=True):
        assert at_s + shortest_s(model, size) - 1e-9 <= arrival_s < math.inf
        for partition in between:
            if partition.start_s <= at_s < partition.end_s:
                assert arrival_s >= partition.end_s + model.one_way_s - 1e-9


def test_a_transmission_takes_its_time_and_starts_when_the_one_before_has_left() -> None:
    model, wire = LinkModel(one_way_s=0.1, rate_bytes_per_s=1000), FifoServer()
    first, second = (SeededRoute(model, Random(0), wire=wire) for _ in range(2))
    assert first.arrival_s(0, 1000) == pytest.approx(1.1)
    assert second.arrival_s(0.5, 1000) == pytest.approx(2.1)


def test_a_sender_works_on_one_write_at_a_time_whoever_it_is_for() -> None:
    table = LinkTable(seed=1, default=LinkModel(one_way_s=0.1), send_costs_s={"busy": 0.5})
    to_a, to_b, back = table.route("busy", "a"), table.route("busy", "b"), table.route("a", "busy")
    assert to_a.arrival_s(0, 10) == pytest.approx(0.6)
    assert to_b.arrival_s(0, 10) == pytest.approx(1.1)
    assert back.arrival_s(0, 10) == pytest.approx(0.1)


def test_lost_packets_cost_a_timeout_each_and_hold_up_what_follows() -> None:
    model = LinkModel(one_way_s=0.05, loss=0.2)
    route, draws = SeededRoute(model, Random(3)), Random(3)
    lost = sum(draws.random() < 0.2 for _ in range(10))
    arrival_s = route.arrival_s(0, 10 * PACKET_BYTES)
    assert lost > 0
    assert arrival_s == pytest.approx(0.05 + lost * (2 * 0.05 + 0.2))
    assert route.arrival_s(0.01, 1) >= arrival_s
