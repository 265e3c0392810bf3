"""The child carries out real orders: it learns, writes what serves, compares, and ends with its parent."""

import asyncio
import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from cosine_node import zoo
from cosine_node.engine.base import Row
from cosine_node.engine.llama.library import is_installed
from cosine_node.gguf.unfolding import unfold
from cosine_node.gguf.writing import write_gguf
from cosine_node.learning import worker
from cosine_node.learning.child import (
    COMMAND,
    ChildFailed,
    Comparison,
    ComparisonOrder,
    LearningChild,
    RoundOrder,
    RoundOutcome,
    to_line,
)
from cosine_node.learning.decision import Acceptance
from cosine_node.learning.finetuning import RoundSettings
from cosine_node.learning.served_weights import GGUF_FOLDER, gguf_kind, serving_folder
from cosine_node.learning.stream_store import StreamStore
from cosine_node.learning.versions import VERSIONS, Versions
from cosine_node.learning.worker import carry_out
from cosine_node.models.engine_kind import EngineChoice, EngineKind
from cosine_node.models.model import ModelSource, fetch_folder, load_weights
from cosine_protocol.request import Sampling
from tests.node.learning.streams import stream


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A learner's folder with streams of a language that is easily learned."""
    with closing(StreamStore(tmp_path)) as store:
        for number in range(40):
            each = stream(f"client {number % 4}", tokens=24, seed=number, vocab=40)
            store.add(each)
    yield tmp_path


@pytest.fixture
def short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds of this process learn less, from fewer texts of the drafter's own: how much is `test_finetuning`'s.

    They do so in float32: many processors emulate bfloat16, at a tenth of the speed.
    """
    monkeypatch.setattr(torch, "autocast", lambda *_: nullcontext())
    monkeypatch.setattr(worker, "RoundSettings", partial(RoundSettings, own_texts=8, own_tokens=16, epochs=1.0))


def round_order(folder: Path, model: str, target: str, number: int = 1) -> RoundOrder:
    shipped = fetch_folder(model)
    return RoundOrder(
        folder=str(folder),
        number=number,
        base=str(shipped),
        shipped=str(shipped),
        kind=gguf_kind(shipped),
        target=str(fetch_folder(target)),
    )


@pytest.mark.usefixtures("short_rounds")
def test_it_learns_compares_and_says_how_likely_texts_are(folder: Path) -> None:
    order = round_order(folder, "zoo:draft-code", "zoo:target")
    outcome = carry_out(order)
    assert isinstance(outcome, RoundOutcome)
    assert outcome.before.tokens == outcome.after.tokens > 0
    assert set(outcome.nll) == set(outcome.nll_before) == set(zoo.DOMAINS)
    made = Versions(folder).find(1)
    assert {file.name for file in made.folder.iterdir()} >= {"config.json", "model.safetensors"}
    assert gguf_kind(made.folder) is None
    compared = carry_out(
        ComparisonOrder(
            folder=order.folder, earlier=order.base, live=str(made.folder), target=order.target, after=0
        )
    )
    assert isinstance(compared, Comparison)
    assert compared.earlier.tokens == compared.live.tokens > outcome.before.tokens


@pytest.mark.usefixtures("short_rounds")
def test_a_version_of_a_gguf_model_is_served_as_one_of_its_kind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "domain_nll", lambda drafter, codec: {})
    file = tmp_path / "drafter.gguf"
    write_gguf(zoo.folder("draft-code"), file, weights="Q5_1", name="drafter")
    shipped, target = unfold(file, cache_folder=tmp_path / "cache"), fetch_folder("zoo:target")
    order = replace(round_order(folder, "zoo:draft-code", "zoo:target"), base=str(shipped), shipped=str(shipped))
    carry_out(replace(order, kind=gguf_kind(shipped)))
    made = Versions(folder).find(1)
    assert serving_folder(made.folder) == made.folder / GGUF_FOLDER
    assert gguf_kind(serving_folder(made.folder)) == gguf_kind(shipped) == "Q5_1"
    kinds = [EngineKind.TORCH, *([EngineKind.LLAMA] if is_installed() else [])]
    for kind in kinds:
        source = ModelSource(
            model=str(file),
            target=str(target),
            engine=EngineChoice(kind=kind, device="cpu", threads=1),
        )
        numerics = []
        for weights in (shipped, serving_folder(made.folder)):
            engine = load_weights(source, weights, target)
            sequence = engine.open(sampling=Sampling(), prompt_tokens=8)
            (result,) = engine.forward([Row.chain(sequence, range(1000, 1008), scored_from=7)])
            assert result.error is None
            numerics.append((engine.numerics, engine.vocab_tokens, engine.context_tokens))
        assert numerics[0] == numerics[1], kind


def test_what_cannot_be_carried_out_is_told_with_its_reason(folder: Path) -> None:
    order = round_order(folder, "zoo:draft-code", "zoo:target")
    nowhere = ComparisonOrder(
        folder=order.folder, earlier="/nowhere", live="/nowhere", target=order.target, after=0
    )
    with pytest.raises(ChildFailed, match="/nowhere"):
        asyncio.run(LearningChild(folder).ask(nowhere))


@pytest.mark.skipif(sys.platform != "linux", reason="priorities are read from Linux's /proc")
def test_it_gives_way_and_ends_when_nobody_holds_its_stdin(folder: Path) -> None:
    with subprocess.Popen(
        COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as child:
        assert child.stdin is not None
        child.stdin.write(to_line(round_order(folder, "zoo:draft-code", "zoo:target")))
        child.stdin.flush()
        while not (folder / "versions").exists():
            os.sched_yield()
        assert os.sched_getscheduler(child.pid) == os.SCHED_IDLE
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == 19
        child.stdin.close()
        assert child.wait(timeout=60) == 1
    assert Versions(folder).all() == []


@pytest.mark.usefixtures("short_rounds")
def test_a_round_that_fails_leaves_nothing_on_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(version: Path, shipped: Path, *, kind: str | None) -> None:
        assert list(version.iterdir())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(worker, "add_what_serves", fail)
    with pytest.raises(OSError, match="No space left"):
        carry_out(round_order(folder, "zoo:draft-code", "zoo:target"))
    assert list((folder / VERSIONS).iterdir()) == []


def test_an_answer_is_no_order() -> None:
    with pytest.raises(ValueError, match="no order"):
        carry_out(Comparison(earlier=Acceptance(), live=Acceptance()))
