"""What to expect of a swarm's stages by their records, and the machines that stand behind them."""

from typing import Any

import pytest

from cosine_node.chains.outlook import announced_machines, outlook_as_object, outlooks, sentence_of
from cosine_node.chains.planning import ModelNeeds, make_plan
from cosine_node.stages.part_sizes import PartSizes
from cosine_protocol.messages import NetworkCoordinate
from cosine_protocol.records import NodeRecord, Role
from tests.cosine_p2p.samples import identity_of, record_of, stage_offer

MIB = 2**20
SIZES = PartSizes(layers_bytes=(MIB,) * 8, embedding_bytes=2 * MIB, output_bytes=MIB, common_bytes=0)
NEEDS = ModelNeeds(sizes=SIZES, layer_token_bytes=1024, activation_bytes=2048, pool_tokens=1024)


def stage(number: int, first: int, end: int, *, pass_ms: float = 10.0, x_ms: int = 0, **record: Any) -> NodeRecord:
    offer = stage_offer(first, end, layers=8, busy_permille=record.pop("busy", 0), pool_tokens=1024)
    stands = NetworkCoordinate(1000 * x_ms, 0, 0, 0, 100)
    given = {"stage": offer, "pass_us": round(1e3 * pass_ms), "coordinate": stands, **record}
    return record_of(identity_of(number), now_s=1000.0, role=Role.STAGE, **given)


def head(*, x_ms: int = 0) -> NodeRecord:
    stands = NetworkCoordinate(1000 * x_ms, 0, 0, 0, 100)
    return record_of(
        identity_of(99), now_s=1000.0, role=Role.VERIFIER, coordinate=stands, stages=(identity_of(1).peer_id,)
    )


def test_a_pass_takes_its_stages_and_its_way_and_a_text_as_many_passes_as_it_needs() -> None:
    (found,) = outlooks([head(), stage(1, 0, 4, x_ms=20), stage(2, 4, 8, pass_ms=30, x_ms=60)])
    # 20 ms apart, then 40, then 60 back: half of each is a way.
    assert found.way_s == pytest.approx(0.06) and found.pass_s == pytest.approx(0.1)
    assert found.tokens_per_s() == pytest.approx(10.0)
    assert sentence_of(found, acceptance_rate=0.5) == (
        "A pass over 2 stages takes 100 ms, 60 of them on its way: 10.0 tokens/s, 20.0 where 50% of the drafts "
        "come true."
    )


def test_where_layers_are_held_by_nobody_nothing_is_expected() -> None:
    (found,) = outlooks([stage(1, 0, 4)])
    assert sentence_of(found) == "Layers 4:8 of 8 are held by nobody."
    assert found.tokens_per_s() is None and outlook_as_object(found)["drafted_tokens_per_s"] is None
    assert outlooks([head()]) == []


def test_a_machine_gives_what_it_holds_and_is_as_fast_as_its_passes() -> None:
    records = [stage(1, 0, 4), stage(2, 4, 8, pass_ms=5, x_ms=40), stage(3, 0, 4, numerics="bfloat16")]
    found = announced_machines(records, NEEDS, numerics="float32", up_bits_per_s=1e6)
    first, second = sorted((machine for machine, _ in found), key=lambda each: each.read_bytes_per_s)
    assert (first.name, first.memory_bytes) == (identity_of(1).peer_id, 10 * MIB)
    assert first.read_bytes_per_s == pytest.approx(4 * MIB / 0.01)
    assert second.read_bytes_per_s == pytest.approx(5 * MIB / 0.005)
    assert first.rtt_s == second.rtt_s == pytest.approx(0.04)


def test_a_swarm_that_works_is_a_plan_that_fits() -> None:
    records = [stage(1, 0, 4), stage(2, 4, 8)]
    machines = [each for each, _ in announced_machines(records, NEEDS, numerics="float32", up_bits_per_s=1e6)]
    made = make_plan(machines, NEEDS)
    assert [str(each.layers) for each in made.stages] == ["0:4", "4:8"]
