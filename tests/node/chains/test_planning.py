"""Plans of a model over machines: room, least time, and the refusal."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_node.chains.planning import Machine, ModelNeeds, make_plan
from cosine_node.stages.parts import PartSizes
from cosine_protocol.errors import UsageError

GIB = 2**30
SIZES = PartSizes(layers_bytes=(GIB,) * 8, embedding_bytes=GIB, output_bytes=GIB, common_bytes=0)
NEEDS = ModelNeeds(sizes=SIZES, layer_token_bytes=0, activation_bytes=16_000, pool_tokens=1000)


def machine(name: str, gib: float, *, read: float = GIB, rtt_s: float = 0.1, up: float = 8e6) -> Machine:
    return Machine(name=name, memory_bytes=int(gib * GIB), read_bytes_per_s=read, up_bits_per_s=up, rtt_s=rtt_s)


def test_a_cache_takes_room_and_the_slowest_uplink_but_the_last_decides_about_prompts() -> None:
    needs = ModelNeeds(sizes=SIZES, layer_token_bytes=2**20, activation_bytes=16_000, pool_tokens=1024)
    machines = [machine("a", 9), machine("b", 9, up=4e6), machine("c", 9)]
    plan = make_plan(machines, needs)
    assert all(stage.weights_bytes + stage.pool_bytes <= stage.machine.memory_bytes for stage in plan.stages)
    slowest = min(stage.machine.up_bits_per_s for stage in plan.stages[:-1])
    assert plan.prompt_s(2000) == pytest.approx(8 * 16_000 * 2000 / slowest)


def test_of_a_mixture_a_pass_reads_the_experts_that_its_tokens_are_sent_to() -> None:
    # A token uses an eighth of the experts, which are 7/8 of a layer.
    sizes = replace(SIZES, experts_bytes=7 * GIB, expert_share=0.125)
    plan = make_plan([machine("one", 10, rtt_s=0.0)], replace(NEEDS, sizes=sizes))
    assert plan.traversal_s == pytest.approx(1 + 7 / 8 + 1)
    # Nine tokens use more of them.
    read_s = 1 + 7 * (1 - 0.875**9) + 1
    assert plan.drafted_tokens_per_s(0.5) == pytest.approx((2 - 2**-8) / read_s)
    # All are stored.
    assert plan.stages[0].weights_bytes == 10 * GIB


def test_what_does_not_fit_is_told_with_what_it_takes() -> None:
    with pytest.raises(UsageError, match=r"take 10\.0 GiB .* have 8\.0 GiB"):
        make_plan([machine("a", 4), machine("b", 4)], NEEDS)
    with pytest.raises(UsageError, match="1 to 64 machines"):
        make_plan([], NEEDS)


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.sampled_from([1, 2, 10]), st.sampled_from([0.0, 1.0, 4.0])), max_size=4
    ),
    st.integers(1, 4),
)
def test_no_other_way_to_share_layers_out_is_sooner(given_: list[tuple[int, int, float]], layers: int) -> None:
    needs = ModelNeeds(
        sizes=PartSizes(layers_bytes=(GIB,) * layers, embedding_bytes=GIB, output_bytes=GIB, common_bytes=0),
        layer_token_bytes=0,
        activation_bytes=1,
        pool_tokens=1,
    )
    machines = [machine(str(n), gib, read=read * GIB, rtt_s=rtt_s) for n, (gib, read, rtt_s) in enumerate(given_)]
    possible = []
    for order in itertools.permutations(machines):
        for counts in itertools.product(range(layers + 1), repeat=len(order)):
            used = [(one, count) for one, count in zip(order, counts, strict=True) if count]
            if sum(counts) != layers:
                continue
            fits = all(
                (count + (one is used[0][0]) + (one is used[-1][0])) * GIB <= one.memory_bytes
                for one, count in used
            )
            if fits:
                read = sum((count + (one is used[-1][0])) * GIB / one.read_bytes_per_s for one, count in used)
                possible.append(read + sum(one.rtt_s / 2 for one, _ in used))
    if not possible:
        with pytest.raises(UsageError):
            make_plan(machines, needs)
        return
    plan = make_plan(machines, needs)
    assert plan.traversal_s == pytest.approx(min(possible))
    assert [stage.layers.first for stage in plan.stages] == [0, *[s.layers.end for s in plan.stages[:-1]]]
