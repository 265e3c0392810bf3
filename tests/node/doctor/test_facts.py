"""Facts: gathered once for all who ask, and kept from the deadline of any one of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cosine_node.doctor import checks as facts_module
from cosine_node.doctor.addresses import Dialled, DialOutcome
from cosine_node.doctor.checks import Facts
from cosine_node.doctor.machine import MachineFacts
from cosine_node.models.engine_kind import EngineChoice, EngineKind
from cosine_protocol.records import Role
from tests.node.doctor.examined import OTHER_PEER, doctor_options
from tests.node.engine.gguf_models import tiny_gguf

MADDR = f"/ip4/192.0.2.1/tcp/1/p2p/{OTHER_PEER}"
LOOKED = {"problem": "", "nodes": [], "dates": [["a", 1.0, 2.0]], "now_s": 3.0, "born_s": []}


def test_an_address_is_dialled_once_and_a_deadline_does_not_end_the_dial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    dials: list[str] = []

    async def slowly(_: Any) -> Dialled:
        dials.append(MADDR)
        await asyncio.sleep(0.05)
        return Dialled(address=MADDR, answer=DialOutcome.SILENT)

    async def run() -> None:
        facts = Facts(doctor_options(tmp_path, initial_peers=(MADDR,)))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await facts.dialled(MADDR)
        assert await facts.initial_peers() == [await facts.dialled(MADDR)]
        await facts.close()

    monkeypatch.setattr(facts_module, "in_thread", slowly)
    asyncio.run(run())
    assert dials == [MADDR]


@pytest.mark.parametrize(
    ("answer", "peer_id", "is_asked"),
    [
        (DialOutcome.NODE, OTHER_PEER, True),
        (DialOutcome.NODE, "another", False),
        (DialOutcome.UNTESTED, "", True),
        (DialOutcome.SILENT, "", False),
    ],
)
def test_only_peers_that_may_be_those_meant_are_asked_for_the_swarm(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: DialOutcome, peer_id: str, is_asked: bool
) -> None:
    questions: list[dict[str, Any]] = []

    async def dialled(_: Any) -> Dialled:
        return Dialled(address=MADDR, answer=answer, peer_id=peer_id, born_s=4.0)

    async def ask(_: str, question: dict[str, Any]) -> dict[str, Any]:
        questions.append(question)
        return LOOKED

    async def run() -> None:
        facts = Facts(doctor_options(tmp_path, initial_peers=(MADDR,)))
        seen = await facts.neighbourhood()
        assert (seen is not None) is is_asked
        if seen is not None:
            assert (seen.dates, seen.born_s) == ((("a", 1.0, 2.0),), (4.0,))
        await facts.close()

    monkeypatch.setattr(facts_module, "in_thread", dialled)
    monkeypatch.setattr(facts_module, "ask_child", ask)
    asyncio.run(run())
    assert [question["initial_peers"] for question in questions] == [[MADDR]] * is_asked


@pytest.mark.parametrize(
    ("models", "kind", "extra"),
    [
        (("FILE",), EngineKind.LLAMA, "llama"),
        (("FILE", "ngram"), EngineKind.LLAMA, "llama"),
        (("FILE",), EngineKind.TORCH, "node"),
        (("FILE", "zoo:draft-code"), EngineKind.AUTO, "node"),
        (("no/such.gguf",), EngineKind.LLAMA, "node"),
        ((), EngineKind.AUTO, "node"),
    ],
)
def test_pytorch_is_needed_unless_llama_runs_every_model(
    tmp_path: Path, models: tuple[str, ...], kind: EngineKind, extra: str
) -> None:
    named = tuple(str(tiny_gguf()) if model == "FILE" else model for model in models)
    options = doctor_options(tmp_path, role=Role.DRAFTER, models=named, engine=EngineChoice(kind=kind))
    assert options.extra == extra


@pytest.mark.thorough
def test_a_node_without_pytorch_takes_less_memory(tmp_path: Path) -> None:
    async def machine(kind: EngineKind) -> MachineFacts:
        engine = EngineChoice(kind=kind, device="cpu")
        facts = Facts(doctor_options(tmp_path, models=(str(tiny_gguf()),), engine=engine))
        try:
            return await facts.machine()
        finally:
            await facts.close()

    llama, torch = (asyncio.run(machine(kind)) for kind in (EngineKind.LLAMA, EngineKind.TORCH))
    assert not any(llama.errors.values())
    assert "torch" not in llama.versions
    assert 0 < llama.base_bytes < 0.7 * torch.base_bytes
