"""The facts about the machine that serves the page, and the layers that fit."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest
from starlette.requests import Request

from cosine_gateway.page.machine import is_here
from cosine_node.advice import own_machine
from cosine_node.advice.measurement import target_sizes
from cosine_node.advice.own_machine import OwnMachine
from cosine_node.chains.planning import ModelNeeds, fit_of
from cosine_node.stages.parts import PartSizes
from cosine_protocol.records import NodeRecord, Role
from cosine_protocol.stage import LayerRange
from tests.cosine_p2p.samples import identity_of, record_of, stage_offer
from tests.gateway.gateways import asked

MIB = 2**20
SIZES = PartSizes(layers_bytes=(10 * MIB,) * 8, embedding_bytes=0, output_bytes=0, common_bytes=0)
NEEDS = ModelNeeds(sizes=SIZES, layer_token_bytes=1024, activation_bytes=2048, pool_tokens=1024)


def stage(number: int, first: int, end: int) -> NodeRecord:
    return record_of(
        identity_of(number),
        now_s=1000.0,
        role=Role.STAGE,
        stage=stage_offer(first, end, layers=8),
        numerics="bfloat16",
    )


def told(monkeypatch: pytest.MonkeyPatch, records: list[NodeRecord], *, free_mib: int) -> dict[str, Any]:
    """The facts about a machine with this free memory and no GPU."""
    asked_of: list[tuple[str, str]] = []

    async def sizes(model: str, dtype: str) -> ModelNeeds:
        asked_of.append((model, dtype))
        return NEEDS

    monkeypatch.setattr(own_machine, "target_sizes", sizes)
    monkeypatch.setattr(own_machine, "free_memory_bytes", lambda: free_mib * MIB)
    monkeypatch.setattr(own_machine, "DRIVERS", ())

    async def ask() -> dict[str, Any]:
        own, target = OwnMachine(), "someone/model@" + "ab" * 32
        first = await own.facts(target, records)
        # A second request is answered from the cache.
        assert await own.facts(target, []) is first
        return first

    found = asyncio.run(ask())
    assert [model for model, _ in asked_of] == ["someone/model"]
    return found


def test_the_layers_that_are_lacked_and_fit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    found = told(monkeypatch, [stage(1, 0, 3), stage(2, 7, 8)], free_mib=80)
    assert found["fits"]["layers"] == "3:6" and not found["fits"]["is_whole"]
    assert (found["fits"]["of"], found["fits"]["dtype"]) == (8, "bfloat16")
    assert (found["given_bytes"], found["devices"]) == (40 * MIB, [])
    assert found["cores"] > 0 and found["disk_bytes"] > 0 and found["reach"]["found"]


def test_a_model_that_fits_whole_is_named_as_such() -> None:
    fit = fit_of(NEEDS, 88 * MIB, [])
    assert fit.is_whole and fit.whole_bytes == 88 * MIB and str(fit.layers) == "0:8"
    assert not fit_of(NEEDS, 88 * MIB - 1, []).is_whole
    assert fit_of(NEEDS, MIB, [LayerRange(first=0, end=4, layers=8)]).layers is None


@pytest.mark.thorough
def test_the_sizes_of_a_target_are_found_beside_the_gateway() -> None:
    needs = asyncio.run(target_sizes("zoo:target", "float32"))
    assert needs is not None and needs.sizes.layers == 8 and needs.pool_tokens == 8192


@pytest.mark.parametrize(
    ("client", "is_told"), [(("127.0.0.1", 1), True), (("::1", 1), True), (("192.0.2.7", 1), False), (None, False)]
)
def test_only_who_sits_at_the_machine_is_told(client: tuple[str, int] | None, is_told: bool) -> None:
    assert is_here(Request({"type": "http", "client": client, "headers": []})) is is_told


def test_a_stranger_is_refused() -> None:
    refused = asked("GET", "/v1/machine")
    assert refused.status == 403 and refused.error["code"] == "not_here"


def test_sizes_are_unknown_without_pytorch_or_the_model(monkeypatch: pytest.MonkeyPatch) -> None:
    answer_of = Mock(side_effect=ValueError("There is no folder '/nowhere/at/all' to load a model from."))
    monkeypatch.setattr("cosine_node.advice.measurement.answer_of", answer_of)
    assert asyncio.run(target_sizes("/nowhere/at/all", "auto")) is None
    monkeypatch.setattr("cosine_node.advice.measurement.find_spec", lambda _: None)
    assert asyncio.run(target_sizes("zoo:target", "auto")) is None and answer_of.call_count == 1
