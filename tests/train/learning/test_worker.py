"""The child carries out real orders: it learns, writes a version, compares, and ends with its parent."""

import errno
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from cosine_engine import zoo
from cosine_engine.base import Row
from cosine_engine.gguf.unfolding import unfold
from cosine_engine.gguf.writing import write_gguf
from cosine_engine.llama.library import is_installed
from cosine_engine.models.engine_kind import EngineChoice, EngineKind
from cosine_engine.models.model import ModelSource, fetch_folder, load_weights
from cosine_engine.torch.loading import load_engine
from cosine_engine.zoo.prompt_set import prompts
from cosine_lab.emulation.scripted_engine import ScriptedEngine
from cosine_node.drafter.observer import NO_GUESS
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from cosine_train.learning import served_weights, worker
from cosine_train.learning.child import COMMAND, Comparison, ComparisonOrder, RoundOrder, RoundOutcome
from cosine_train.learning.decision import refreshed_expertise
from cosine_train.learning.domain_texts import NEAR, domain_nll
from cosine_train.learning.finetuning import RoundSettings
from cosine_train.learning.served_weights import GGUF_FOLDER, check_can_learn, gguf_kind, serving_folder
from cosine_train.learning.stream_store import StreamStore
from cosine_train.learning.versions import VERSIONS, Versions
from cosine_train.learning.worker import carry_out
from tests.thoroughness import THOROUGH
from tests.train.learning.streams import stream
from tests.waiting import wait_until

NEEDED = {"config.json", "model.safetensors", "generation_config.json"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    files = TokenizerFiles.read(zoo.folder("target"))
    assert files is not None
    codec = TextTokenizer(files.files)
    with closing(StreamStore(tmp_path)) as store:
        for number, prompt in enumerate(prompts("code")[:16]):
            first, *text = codec.encode(prompt.render())
            guesses = (NO_GUESS,) * len(text)
            known = stream(f"client {number % 2}", seed=number)
            store.add(replace(known, prompt=(first,), tokens=tuple(text), guesses=guesses))
    yield tmp_path


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds are shorter, with fewer texts of the drafter's own; `test_finetuning` tests their effect."""
    monkeypatch.setattr(worker, "RoundSettings", partial(RoundSettings, own_texts=2, own_tokens=4, epochs=1.0))


def round_order(folder: Path) -> RoundOrder:
    shipped = str(zoo.folder("draft-code"))
    target = str(fetch_folder("zoo:target"))
    return RoundOrder(folder=str(folder), number=1, base=shipped, shipped=shipped, kind=None, target=target)


@pytest.mark.thorough
def test_it_learns_compares_and_says_how_likely_texts_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "domain_nll", partial(domain_nll, domains=("code",)))
    order = round_order(folder)
    outcome = carry_out(order)
    assert isinstance(outcome, RoundOutcome)
    assert outcome.before.tokens == outcome.after.tokens > 0
    assert set(outcome.nll) == set(outcome.nll_before) == {"code"}
    made = Versions(folder).find(1).folder
    assert {file.name for file in made.iterdir()} >= NEEDED
    assert gguf_kind(made) is None and serving_folder(made) == made
    compared = carry_out(
        ComparisonOrder(folder=order.folder, earlier=order.base, live=str(made), target=order.target, after=0)
    )
    assert isinstance(compared, Comparison)
    assert compared.earlier.tokens == compared.live.tokens > outcome.before.tokens


@pytest.mark.thorough
def test_a_version_of_a_gguf_model_is_served_as_one_of_its_kind(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "domain_nll", lambda drafter, codec: {})
    file = tmp_path / "drafter.gguf"
    write_gguf(zoo.folder("draft-code"), file, weights="Q5_1", name="drafter")
    shipped, target = unfold(file, cache_folder=tmp_path / "cache"), fetch_folder("zoo:target")
    carry_out(replace(round_order(folder), base=str(shipped), shipped=str(shipped), kind=gguf_kind(shipped)))
    made = Versions(folder).find(1).folder
    assert serving_folder(made) == made / GGUF_FOLDER
    assert gguf_kind(serving_folder(made)) == gguf_kind(shipped) == "Q5_1"
    for kind in (EngineKind.TORCH, *([EngineKind.LLAMA] if is_installed() else [])):
        choice = EngineChoice(kind=kind, device="cpu", threads=1)
        source = ModelSource(model=str(file), target=str(target), engine=choice)
        numerics = []
        for weights in (shipped, serving_folder(made)):
            engine = load_weights(source, weights, target)
            sequence = engine.open(sampling=Sampling(), prompt_tokens=8)
            (result,) = engine.forward([Row.chain(sequence, range(1000, 1008), scored_from=7)])
            assert result.error is None
            numerics.append((engine.numerics, engine.vocab_tokens, engine.context_tokens))
        assert numerics[0] == numerics[1], kind


def test_a_round_that_fails_leaves_nothing_on_the_disk(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(version: Path, shipped: Path, *, kind: str | None) -> None:
        assert list(version.iterdir())
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(worker, "add_what_serves", fail)
    with pytest.raises(OSError, match="No space left"):
        carry_out(round_order(folder))
    assert list((folder / VERSIONS).iterdir()) == []


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform != "linux", reason="priorities are read from Linux's /proc")
def test_it_gives_way_and_ends_when_nobody_holds_its_stdin(folder: Path) -> None:
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    with subprocess.Popen(COMMAND, stdin=pipe, stdout=pipe, stderr=nowhere) as child:
        assert child.stdin is not None
        pickle.dump(round_order(folder), child.stdin)
        child.stdin.flush()
        wait_until((folder / "versions").exists)
        assert os.sched_getscheduler(child.pid) == os.SCHED_IDLE
        assert os.getpriority(os.PRIO_PROCESS, child.pid) == 19
        child.stdin.close()
        assert child.wait(timeout=60) == 1
    assert Versions(folder).all() == []


def test_weights_in_a_folder_or_a_file_that_can_be_written_anew_can_learn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, folder = ScriptedEngine(model_seed=1, vocab_tokens=64), zoo.folder("draft-code")
    assert check_can_learn("zoo:draft-code", folder, engine) == folder
    with pytest.raises(UsageError, match="ngram has no weights"):
        check_can_learn("ngram", None, engine)
    file = unfold(zoo.location("smol-general"), cache_folder=tmp_path)
    assert check_can_learn("zoo:smol-general", file, engine) == file
    monkeypatch.setattr(served_weights, "FILE_TYPES", {"F16": 1})
    with pytest.raises(UsageError, match="GGUF file of llama in Q5_1"):
        check_can_learn("zoo:smol-general", file, engine)


@pytest.mark.parametrize(
    "own",
    [pytest.param(own, marks=THOROUGH if own == "literature" else pytest.mark.soak) for own in zoo.DOMAINS],
)
def test_the_projects_prompts_tell_the_domain_of_an_expert_from_others(own: str) -> None:
    files = TokenizerFiles.read(zoo.tokenizer_folder())
    assert files is not None
    drafter = load_engine(str(zoo.folder(f"draft-{own}")), pool_tokens=4096)
    nll = domain_nll(drafter, TextTokenizer(files.files))
    factors = [value / nll[own] for domain, value in nll.items() if domain != own]
    assert NEAR < min(factors) <= max(factors) < 3
    assert refreshed_expertise((own,), nll, factor=NEAR) == (own,)
