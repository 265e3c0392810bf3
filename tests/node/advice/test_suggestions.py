"""What a machine is told to run, by its figures and by what a swarm lacks."""

from typing import Any, Final

import pytest

from cosine_node.advice.suggestions import Advice, MeasuredMachine, TargetSwarm, advise, draft_limit_s
from cosine_node.chains.planning import ModelNeeds
from cosine_node.stages.parts import PartSizes
from cosine_p2p.survey import NodeSight
from cosine_protocol.records import Role
from tests.cosine_p2p.samples import TARGET, identity_of, record_of, stage_offer

GIB: Final = 2**30
SIZES: Final = PartSizes(layers_bytes=(GIB,) * 8, embedding_bytes=0, output_bytes=0, common_bytes=0)
NEEDS: Final = ModelNeeds(sizes=SIZES, layer_token_bytes=0, activation_bytes=2048, pool_tokens=1024)
LINK: Final = "cosine:/dns4/example.org/tcp/4001/p2p/x"
QUICK: Final = ("zoo:smol-general", 0.004, GIB)
LARGE: Final = 32 * GIB
"""Half of it holds the target twice."""


def here(memory_bytes: int = LARGE, *drafters: tuple[str, float | None, int]) -> MeasuredMachine:
    return MeasuredMachine(cores=8, memory_bytes=memory_bytes, read_bytes_per_s=32.0 * GIB, drafters=drafters)


def node(number: int, role: Role, *, rtt_s: float = 0.02, **record: Any) -> NodeSight:
    made = record_of(identity_of(number), now_s=1000.0, role=role, numerics="bfloat16", **record)
    return NodeSight(record=made, rtt_s=rtt_s)


def verifier(number: int = 1, *, pass_ms: int = 100, **more: Any) -> NodeSight:
    return node(number, Role.VERIFIER, pass_us=1000 * pass_ms, **more)


def stage(number: int, first: int, end: int) -> NodeSight:
    return node(number, Role.STAGE, stage=stage_offer(first, end, layers=8))


def told(machine: MeasuredMachine, *nodes: NodeSight, needs: ModelNeeds | None = NEEDS) -> Advice:
    return advise(machine, TargetSwarm(target=TARGET, needs=needs, way=(LINK,), nodes=nodes))


def commands(advice: Advice) -> list[str]:
    return [
        one.command.removeprefix("cosine-node ").replace(f" {LINK} --model ", " ") for one in advice.suggestions
    ]


def test_a_swarm_without_a_verifier_needs_one_first_with_its_time_and_memory() -> None:
    (only,) = told(here()).suggestions
    assert only.command == f"cosine-node verify {LINK} --model {TARGET}"
    assert only.why.startswith("No verifier answers")
    assert only.expect.startswith("250.0 to 700.0 ms a token") and "8.0 GiB of memory" in only.expect


def test_a_target_too_large_for_one_machine_is_held_in_parts_and_then_gets_a_head() -> None:
    small = here(6 * GIB)
    assert commands(told(small)) == [f"stage {TARGET} --layers 0:3"]
    begun = told(small, stage(1, 0, 3))
    assert commands(begun) == [f"stage {TARGET} --layers 3:6 --dtype bfloat16"]
    assert begun.suggestions[0].why == "Layers 3:8 of 8 are held by no stage."
    assert commands(told(small, stage(1, 0, 3), stage(2, 3, 8))) == [f"head {TARGET}"]
    nothing = told(here(GIB), stage(1, 0, 3))
    assert commands(nothing) == [] and "Not one layer" in nothing.reasons[0]


def test_one_more_verifier_is_needed_beside_one_alone_or_full_ones() -> None:
    own = f"verify {TARGET} --engine torch --dtype bfloat16"
    alone, full = told(here(), verifier()), [verifier(each, load_requests=4) for each in (1, 2)]
    assert commands(alone) == [own] and "theirs takes 100.0 ms" in alone.suggestions[0].expect
    assert commands(told(here(), *full)) == [own]
    enough = told(here(), verifier(1), verifier(2))
    assert commands(enough) == [] and "2 of 2 verifiers have places free" in enough.reasons[0]
    assert "8.0 GiB as a whole, and 3.0 GiB" in told(here(6 * GIB), verifier()).reasons[0]


def test_drafters_are_suggested_where_their_drafts_arrive_in_time() -> None:
    server = ("openai:http://127.0.0.1:8080/v1#it's", None, 0)
    advice = told(here(LARGE, QUICK, server), verifier(1), verifier(2), node(3, Role.DRAFTER))
    assert commands(advice) == [
        f"draft zoo:smol-general --target {TARGET}",
        f"draft 'openai:http://127.0.0.1:8080/v1#it'\"'\"'s' --target {TARGET}",
    ]
    assert "4.0 ms a token here, 1.0 GiB of memory" in advice.suggestions[0].expect
    assert advice.suggestions[0].why.startswith("Drafters that answer: 1")


@pytest.mark.parametrize(
    ("theirs", "reason"),
    [
        (verifier(2, pass_ms=7, rtt_s=0.06), "too late, or save too little: a pass of the target takes 7.0 ms"),
        (verifier(2, four_tokens_permille=2500), "too late, or save too little"),
        (
            verifier(2, pass_ms=3, rtt_s=0.001),
            "zoo:smol-general: 4.0 ms a token here, 1.0 GiB of memory; drafts pay up to 3.0",
        ),
    ],
)
def test_it_is_said_why_drafts_would_not_pay(theirs: NodeSight, reason: str) -> None:
    advice = told(here(LARGE, QUICK), theirs, needs=None)
    assert commands(advice) == [] and reason in advice.reasons[-1]


def test_no_record_makes_the_limit_of_drafts_longer_than_a_pass() -> None:
    for permille in (None, 1, 100_000):
        assert draft_limit_s(verifier(pass_ms=5, four_tokens_permille=permille)) <= 0.005


def test_without_a_swarm_it_says_how_to_begin() -> None:
    advice = advise(here(LARGE, QUICK), TargetSwarm(target="zoo:target", needs=NEEDS))
    first, second = (one.command for one in advice.suggestions)
    assert first == "cosine-node verify --model zoo:target"
    assert second == "cosine-node draft LINK --model zoo:smol-general --target zoo:target"


def test_a_card_gives_its_own_memory() -> None:
    card = MeasuredMachine(cores=8, memory_bytes=GIB, read_bytes_per_s=1e12, cards=(("RTX 3090", 20 * GIB),))
    assert card.given_bytes == 17 * GIB and commands(told(card)) == [f"verify {TARGET}"]
