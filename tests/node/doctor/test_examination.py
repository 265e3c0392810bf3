"""The examination: loading of models, faults, and a child that crashes or hangs."""

import asyncio
import json
import logging
import os
import pickle
import shutil
from collections.abc import Callable, Iterator
from io import BytesIO, TextIOWrapper
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cosine_engine import zoo
from cosine_engine.curve import CostCurve
from cosine_engine.gguf.writing import write_gguf
from cosine_engine.load_options import EngineKind, LoadOptions
from cosine_engine.models.hub import HubModel
from cosine_engine.models.served import ModelSource
from cosine_node.doctor import examine as module
from cosine_node.doctor import models
from cosine_node.doctor.examination import Examination, Step, main
from cosine_node.doctor.examine import examine
from cosine_node.doctor.finding import CheckStatus, Finding, fine
from cosine_node.serving.options import (
    DraftOptions,
    HeadOptions,
    JoinPlan,
    NetworkOptions,
    RoleOptions,
    StageOptions,
    VerifyOptions,
)
from cosine_p2p.access import Access
from tests.engine.gguf_architectures import TINY
from tests.engine.gguf_models import tiny_gguf
from tests.engine.openai.reciting_server import RecitingServer
from tests.thoroughness import quick_first
from tests.waiting import state_of, wait_until

pytestmark = pytest.mark.timeout(120)


def node_of(
    model: str, of: type[RoleOptions] = DraftOptions, *, kind: EngineKind = EngineKind.AUTO, **options: Any
) -> RoleOptions:
    target = "zoo:target" if of is DraftOptions else model
    engine = LoadOptions(kind=kind, device="cpu", threads=1)
    source = ModelSource(model=model, target=target, engine=engine)
    return of(source=source, max_requests=2, **options)


def plan_of(*nodes: RoleOptions, folder: Path) -> JoinPlan:
    network = NetworkOptions(
        access=Access(network="test"),
        identity_file=folder / "identity",
        host_maddrs=("/ip4/127.0.0.1/tcp/0",),
    )
    return JoinPlan(network=network, nodes=nodes, target="zoo:target")


def tried(node: RoleOptions) -> list[Finding]:
    found = [models.find_model(name)[2] for name in models.names_of(node)]
    if any(finding.status is not CheckStatus.OK for finding in found):
        return found
    return [*found, *models.try_node(node, lambda event, fields: None, [], has_card=False)]


def broken(node: RoleOptions) -> Finding:
    (failure,) = (finding for finding in tried(node) if finding.status is CheckStatus.FAILURE)
    return failure


@pytest.mark.parametrize(
    "node",
    quick_first(
        [
            node_of("zoo:target", VerifyOptions),
            node_of("zoo:draft-code"),
            node_of("ngram"),
            node_of("zoo:target", HeadOptions),
            node_of("zoo:target", StageOptions, layers="0:4"),
        ],
        quick=3,
    ),
    ids=["verifier", "drafter", "ngram", "head", "stage"],
)
def test_what_each_kind_of_node_needs_is_loaded_and_measured(
    node: RoleOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    for where in ("doctor.models", "serving.whole_model"):
        monkeypatch.setattr(f"cosine_node.{where}.MEASURE_S", 0.01)
    *_, last = tried(node)
    assert (last.what, last.status) == (f"{node.role} {node.source.model}", CheckStatus.OK), last
    assert last.found.startswith("loaded and tried in")
    assert isinstance(node, HeadOptions) or "a pass of one token takes" in last.found
    assert type(node) is not VerifyOptions or "its KV cache holds" in last.found


def test_a_server_that_drafts_is_tried_and_one_that_is_away_is_a_failure() -> None:
    with RecitingServer() as server:
        node = node_of(f"openai:{server.place}#m")
        *_, last = tried(node)
        assert (last.status, "a pass of one token takes" in last.found) == (CheckStatus.OK, True)
    assert "it does not answer" in broken(node).found
    assert broken(node).fix == "Start the server, or correct --model."


def unlink_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    os.truncate(folder / "model.safetensors", 100_000)


def write(name: str, content: str) -> Callable[[Path], None]:
    def change(folder: Path) -> None:
        (folder / name).write_bytes(content.encode("latin-1"))

    return change


@pytest.mark.parametrize(
    ("change", "of", "part"),
    [
        (unlink_weights, DraftOptions, "no file named model.safetensors"),
        (cut_weights, DraftOptions, "cannot be read"),
        (write("config.json", json.dumps({"model_type": "rwkv", "vocab_size": 64})), DraftOptions, "'rwkv'"),
        (write("tokenizer_config.json", "\xff\xfe{"), VerifyOptions, "tokenizer_config.json"),
    ],
)
def test_a_broken_folder_is_one_sentence_and_says_what_to_do(
    change: Callable[[Path], None], of: type[RoleOptions], part: str, tmp_path: Path
) -> None:
    name = "draft-code" if of is DraftOptions else "target"
    folder = Path(shutil.copytree(zoo.folder(name), tmp_path / "model"))
    change(folder)
    found = broken(node_of(str(folder), of))
    assert part in found.found and "\n" not in found.found and found.fix


def test_a_model_that_is_not_here_is_not_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "the hub does not provide it" in broken(node_of("nobody/no-such-model", VerifyOptions)).found
    assert "zoo:NAME or Hugging Face id" in broken(node_of("no model at all", VerifyOptions)).found
    assert "no model folder" in broken(node_of(str(tmp_path / "nowhere"), VerifyOptions)).found

    class Told:
        siblings = (type("File", (), {"rfilename": "model.safetensors", "size": 3 << 30}),)

    monkeypatch.setattr(HubModel, "ask", lambda *_, **__: Told)
    assert "nodes of the swarm" in models.find_model("ab" * 32, is_in_parts=True)[2].found
    folder, download_bytes, finding = models.find_model("somebody/model")
    assert (folder, download_bytes, finding.status) == (None, 3 << 30, CheckStatus.OK)
    assert "downloaded at the first start, 3.0 GiB" in finding.found


@pytest.mark.thorough
def test_a_file_that_llama_runs_is_tried_there_and_one_that_it_cannot_load_is_named(tmp_path: Path) -> None:
    write_gguf(zoo.folder("target"), tmp_path / "target.gguf", weights="Q8_0")
    *_, last = tried(node_of(str(tmp_path / "target.gguf"), VerifyOptions, kind=EngineKind.LLAMA))
    assert (last.status, "llama.cpp, weights in Q8_0" in last.found) == (CheckStatus.OK, True), last
    odd = TINY["llama"].told(expert_used_count=4).write(tmp_path / "odd.gguf")
    assert "odd.gguf" in broken(node_of(str(odd), VerifyOptions, kind=EngineKind.LLAMA)).found
    found = broken(node_of("zoo:target", VerifyOptions, kind=EngineKind.LLAMA))
    assert "--engine llama runs GGUF files, and 'target' is none" in found.found


def test_what_join_warns_of_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: object) -> object:
        logging.getLogger("cosine_engine").warning("%s models run slowly", "odd")
        return SimpleNamespace(curve=CostCurve(((1, 0.002),))), None

    monkeypatch.setattr(models, "load_models", load)
    assert "odd models run slowly; a pass of one token takes 2.0 ms" in tried(node_of("zoo:target"))[-1].found


def test_weights_that_cannot_fit_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "free_memory_bytes", lambda: 1 << 20)
    found = broken(node_of("zoo:target", VerifyOptions))
    assert "or more, and 1.0 MiB are free" in found.found and "--quantize int8" in found.fix


@pytest.mark.parametrize(
    ("names", "kind", "extra"),
    [
        (("FILE", "ngram"), EngineKind.LLAMA, "llama"),
        (("FILE",), EngineKind.TORCH, "node"),
        (("no/such.gguf",), EngineKind.LLAMA, "node"),
        ((), EngineKind.AUTO, "node"),
    ],
)
def test_pytorch_is_needed_unless_llama_runs_every_model(
    names: tuple[str, ...], kind: EngineKind, extra: str, tmp_path: Path
) -> None:
    nodes = [node_of(str(tiny_gguf()) if name == "FILE" else name, kind=kind) for name in names]
    assert Examination(plan_of(*nodes, folder=tmp_path), lambda sentence: None).extra == extra


def examined(plan: JoinPlan) -> tuple[list[Finding], list[str]]:
    found: list[Finding] = []
    said: list[str] = []
    asyncio.run(examine(plan, found.append, said.append))
    return found, said


FIRST = (
    "import json, os, sys, time\nsys.stdin.buffer.read()\nprint('a library says something', flush=True)\n"
    "print(json.dumps({'step': {'what': 'disk', 'within_s': 20.0, 'mend': 'Mend it.'}}), flush=True)\n"
    "print(json.dumps({'finding': {'what': 'a', 'status': 'ok', 'found': 'well', 'fix': ''}}), flush=True)\n"
)
HANGING = "print(json.dumps({'step': {'what': 'disk', 'within_s': 0.2, 'mend': 'Mend it.'}}), flush=True)\n"


def child_of(code: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    (folder / "child.py").write_text(FIRST + code)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setattr(module, "EXAMINATION", "child")
    first, *others = examined(plan_of(node_of("ngram"), folder=folder))[0]
    assert first == Finding("a", CheckStatus.OK, "well")
    return others


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("print(json.dumps({'is_done': True}))", None),
        ("raise RuntimeError('it broke')", "it ended with code 1: RuntimeError: it broke"),
        ("os.kill(os.getpid(), 9)", "it ended by signal 9"),
        (f"{HANGING}time.sleep(100)", "no answer within 0.2 s"),
    ],
)
def test_a_child_that_crashes_or_hangs_is_a_failure_of_its_step(
    code: str, found: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = child_of(code, tmp_path, monkeypatch)
    assert others == ([] if found is None else [Finding("disk", CheckStatus.FAILURE, found, "Mend it.")])


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_child_is_killed_with_what_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    child_of(
        "import subprocess, pathlib\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(100)'])\n"
        f"pathlib.Path({str(tmp_path / 'pid')!r}).write_text(str(child.pid))\n"
        f"{HANGING}child.wait()",
        tmp_path,
        monkeypatch,
    )
    pid = int((tmp_path / "pid").read_text())
    wait_until(lambda: state_of(pid) in "XZ")


def test_a_check_that_fails_itself_is_a_failure_and_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> Iterator[Finding]:
        raise ZeroDivisionError("so it is")

    def steps(_: Examination) -> list[tuple[Step, Callable[[], Iterator[Finding]]]]:
        return [(Step("a", 1.0, "Mend."), fail), (Step("b", 1.0, "Mend."), lambda: iter([fine("b", "well")]))]

    monkeypatch.setattr(Examination, "steps", steps)
    monkeypatch.setattr("sys.stdin", TextIOWrapper(BytesIO(pickle.dumps((False, plan_of(folder=tmp_path))))))
    main()
    told = [json.loads(line).get("finding") for line in capsys.readouterr().out.splitlines()]
    first, second = filter(None, told)
    assert (first["what"], first["status"], second["what"]) == ("a", "failure", "b")
    assert "ZeroDivisionError: so it is" in first["found"] and "--verbose doctor" in first["fix"]
