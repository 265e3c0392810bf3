"""Checks with their deadlines, the facts that they share, and work that hangs or crashes."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cosine_lab.emulation.virtual_loop import run_virtual
from cosine_node import zoo
from cosine_node.doctor import checks as facts_module
from cosine_node.doctor.addresses import Dialled, DialOutcome
from cosine_node.doctor.checks import Check, Facts, run_checks
from cosine_node.doctor.finding import CheckStatus, Finding, failure, fine
from cosine_node.doctor.machine import EngineFacts, MachineFacts
from cosine_node.doctor.processes import ProbeFailed, ask_child, in_thread
from cosine_node.engine.pool_size import TokenBytes
from cosine_node.models.engine_kind import EngineChoice, EngineKind
from cosine_protocol.records import Role
from tests.node.doctor.examined import OTHER_PEER, doctor_options, findings
from tests.node.engine.gguf_models import tiny_gguf


def check(what: str, look: Callable[[], Awaitable[Sequence[Finding]]], deadline_s: float = 5.0) -> Check:
    return Check(what, look, deadline_s, if_stuck=f"Look at {what}.")


def after(delay_s: float, what: str) -> Check:
    async def look() -> Sequence[Finding]:
        await asyncio.sleep(delay_s)
        return [fine(what, "well")]

    return check(what, look)


async def hang() -> Sequence[Finding]:
    await asyncio.Event().wait()
    return []


async def crash() -> Sequence[Finding]:
    raise ZeroDivisionError("so it is")


def examined(*checks: Check) -> tuple[list[Finding], list[str], float]:
    """All findings, the order in which they were told, and how long it took."""
    told: list[str] = []

    async def run() -> tuple[list[Finding], float]:
        findings = await run_checks(checks, lambda finding: told.append(finding.what))
        return findings, asyncio.get_running_loop().time()

    findings, took_s = run_virtual(run())
    return findings, told, took_s


def test_findings_come_in_order_told_as_they_come_and_a_check_that_hangs_or_crashes_is_a_failure() -> None:
    checks = (after(3, "a"), after(1, "b"), check("disk", hang), check("ports", crash))
    (first, second, stuck, crashed), told, took_s = examined(*checks)
    assert [first, second] == [fine("a", "well"), fine("b", "well")]
    assert stuck == failure("disk", "no answer within 5 s", "Look at disk.")
    assert (crashed.what, crashed.status) == ("ports", CheckStatus.FAILURE)
    assert "ZeroDivisionError: so it is" in crashed.found
    assert (told, took_s) == (["ports", "b", "a", "disk"], 5.0)


def test_a_failure_must_say_what_to_do() -> None:
    with pytest.raises(ValueError, match="what to do"):
        failure("port", "it is taken", "")


@pytest.mark.parametrize(("cuda_devices", "needs_base"), [((), True), ((("GPU", 20 << 30),), False)])
def test_memory_of_this_machine_holds_the_libraries_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cuda_devices: tuple[tuple[str, int], ...], needs_base: bool
) -> None:
    async def machine(base_bytes: int) -> MachineFacts:
        return MachineFacts(
            base_bytes=base_bytes,
            free_bytes=20 << 30,
            cuda_devices=cuda_devices,
            engines={str(zoo.folder("draft-code")): EngineFacts(token=TokenBytes(1000), context_tokens=512)},
        )

    def needed(base_bytes: int) -> str:
        monkeypatch.setattr(Facts, "machine", lambda _: machine(base_bytes))
        options = doctor_options(tmp_path, role=Role.DRAFTER, models=("zoo:draft-code",), engine=EngineChoice())
        _, memory = findings(options, "fit of zoo:draft-code")
        return memory.found.partition(" of ")[0]

    assert (needed(5 << 30).startswith("it takes about 5.0")) is needs_base
    assert (needed(0) == needed(5 << 30)) is not needs_base


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


@pytest.mark.soak
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


BAD_CHILDREN = {
    "silent": "pass",
    "chatty": "print('no JSON')",
    "crashing": "raise RuntimeError('it broke')",
    "killed": "import os; os.kill(os.getpid(), 11)",
}


@pytest.fixture
def children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_a_thread_gives_its_result_or_its_error() -> None:
    def fail() -> None:
        raise KeyError("gone")

    async def run() -> None:
        assert await in_thread(lambda: 7) == 7
        with pytest.raises(KeyError, match="gone"):
            await in_thread(fail)

    asyncio.run(run())


def test_a_thread_that_never_returns_holds_nobody() -> None:
    never = threading.Event()

    async def run() -> None:
        async with asyncio.timeout(0.05):
            await in_thread(never.wait)

    with pytest.raises(TimeoutError):
        asyncio.run(run())
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "doctor")
    never.set()


def test_a_child_answers_with_its_last_line(children: Path) -> None:
    (children / "echo.py").write_text(
        "from cosine_node.doctor.processes import answer_parent\n"
        "print('libraries say things')\nanswer_parent(lambda question: {'got': question})\n"
    )
    assert asyncio.run(ask_child("echo", {"a": [1, "ä"]})) == {"got": {"a": [1, "ä"]}}


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("silent", "code 0"),
        ("chatty", "code 0"),
        ("crashing", "it broke"),
        ("killed", "signal 11"),
        ("absent", "absent"),
    ],
)
def test_a_child_that_does_not_answer_is_one_error(children: Path, name: str, reason: str) -> None:
    if name in BAD_CHILDREN:
        (children / f"{name}.py").write_text(BAD_CHILDREN[name])
    with pytest.raises(ProbeFailed, match=reason):
        asyncio.run(ask_child(name, {}))


def wait_for_line(file: Path) -> None:
    """Until another process has written it."""
    while not file.exists() or not file.read_text():
        time.sleep(0.01)


def wait_for_end(pid: int) -> None:
    """Until a process is gone, or dead and not yet collected."""
    status = Path(f"/proc/{pid}/stat")
    while status.exists() and status.read_text().split()[2] != "Z":
        time.sleep(0.01)


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_child_that_hangs_is_killed_with_what_it_started(children: Path) -> None:
    (children / "hanging.py").write_text(
        "import subprocess, sys, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        f"pathlib.Path({str(children / 'pid')!r}).write_text(str(child.pid))\nchild.wait()\n"
    )

    async def run() -> None:
        asking = asyncio.ensure_future(ask_child("hanging", {}))
        await in_thread(lambda: wait_for_line(children / "pid"))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)

    asyncio.run(run())
    wait_for_end(int((children / "pid").read_text()))
