"""`cosine-node plan`: parsing of machines, and output."""

import json

import pytest

from cosine_node.cli import plan
from cosine_node.cli.plan import parse_machine
from cosine_protocol.errors import UsageError
from cosine_protocol.records import NodeRecord, Role
from tests.cosine_p2p.samples import identity_of, record_of, stage_offer
from tests.node.cli.conftest import Run


def test_a_machine_is_written_with_what_differs_from_the_usual() -> None:
    card = parse_machine("card=24GB,read=936GB/s,up=1.5Gbit,rtt=0.2s")
    assert (card.memory_bytes, card.read_bytes_per_s, card.up_bits_per_s, card.rtt_s) == (24e9, 936e9, 1.5e9, 0.2)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("desk", "takes a size"),
        ("=12GiB", "not a machine"),
        ("desk=0.5", "not a machine"),
        ("desk=12GiB,speed=3", "not 'speed'"),
        ("desk=12GiB,read=fast", "such as 50GB, not 'fast'"),
        ("desk=12GiB,up=20", "such as 20Mbit, not '20'"),
        ("desk=12GiB,rtt=-1ms", "such as 30ms"),
    ],
)
def test_what_is_no_machine_gets_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_machine(text)


def test_a_plan_is_printed_with_its_commands_and_as_json(run: Run) -> None:
    line = "plan --model zoo:target --machine a=14MiB --machine b=14MiB,rtt=100ms --tokens 64"
    given = line.split()
    told = run(*given)
    assert told.code == 0 and "tokens/s" in told.out
    made = json.loads(run(*given, "--json").out)
    assert {stage["machine"] for stage in made["stages"]} == {"a", "b"}
    for stage in made["stages"]:
        assert stage["weights_bytes"] + stage["pool_bytes"] <= 14 << 20
        assert f"--model zoo:target --layers {stage['layers']}" in told.out
    assert made["way_s"] == pytest.approx(0.065)
    assert made["drafted_tokens_per_s"] > 2 * made["tokens_per_s"]


def test_the_machines_of_a_swarm_are_planned_with_what_they_give_now(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [announced(1, 0, 5), announced(2, 4, 8)]

    async def found(*_: object) -> list[NodeRecord]:
        return held

    monkeypatch.setattr(plan, "_records", found)
    given = ("plan", "--model", "zoo:target", "--from-swarm", "--tokens", "64")
    # Together they hold all, but none begins where another ends.
    told = run(*given)
    assert told.code == 0 and "As it is: Layers of 8 are held by stages that do not follow each other" in told.out
    assert told.out.count("cosine-node stage --model zoo:target --layers") == 1
    made = json.loads(run(*given, "--json").out)
    assert set(made["held"].values()) == {"0:5", "4:8"} and made["outlook"]["tokens_per_s"] is None
    held[1] = announced(2, 5, 8, pass_us=500)
    assert "All hold these layers already." in run(*given).out
    more = run(*given, "--machine", "desk=2GiB,read=500GB,rtt=1ms")
    assert "desk: cosine-node stage" in more.out and "none" in more.out
    held.clear()
    assert "No node announces stages of zoo:target" in run(*given).err


def announced(number: int, first: int, end: int, *, pass_us: int = 10_000) -> NodeRecord:
    offer = stage_offer(first, end, layers=8)
    return record_of(identity_of(number), now_s=1000.0, role=Role.STAGE, stage=offer, pass_us=pass_us)


def test_what_cannot_be_planned_gets_one_sentence(run: Run) -> None:
    for given, sentence in (
        (("--machine", "a=1MiB"), "does not fit"),
        (("--machine", "a=1GiB", "--machine", "a=1GiB"), "the same name"),
        ((), "--from-swarm"),
    ):
        told = run("plan", "--model", "zoo:target", *given)
        assert (told.code, sentence in told.err, told.err.count("\n")) == (2, True, 1)
