"""The command alone makes a drafter for an unknown target, and the drafter agrees with it."""

import json
import random
from pathlib import Path

import pytest

from cosine_engine import zoo
from cosine_engine.vocabulary import DraftVocabulary
from cosine_train.training.drafter_training import measured_agreement
from tests.node.cli.conftest import Run
from tests.train.training.samples import trained

SMALL = "--answers 64 --held-out 4 --new-tokens 16 --known-tokens 800 --batch-rows 8 --slots 16"


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, chooser = tmp_path_factory.mktemp("work"), random.Random(0)
    pairs = [(chooser.randint(0, 99), chooser.randint(0, 99)) for _ in range(200)]
    asked = [f"{zoo.prompts('math')[0].messages[0].content} And {left} plus {right}?" for left, right in pairs]
    answer = {"role": "assistant", "content": "The answer is a number."}
    records = [{"messages": [{"role": "user", "content": text}, answer]} for text in asked]
    (folder / "texts.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records), "utf-8")
    return folder


@pytest.mark.thorough
def test_an_untrained_model_learns_too(work: Path, tmp_path: Path, run: Run) -> None:
    texts = ["--texts", str(work / "texts.jsonl")]
    new = ["--width", "64", "--layers", "0", "--steps", "60"]
    record = trained(run, work, tmp_path / "out", *texts, *new, *SMALL.split())
    assert record["parameters"] < 150_000
    assert record["agreement"]["texts"]["0"]["drafter"] > 0.2
    assert DraftVocabulary.read(tmp_path / "out") is not None
    assert measured_agreement(tmp_path / "out", [], vocab_tokens=4096, device="cpu") == {}


def test_answers_of_another_target_are_not_learned_from(tmp_path: Path, run: Run) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "target.txt").write_text("zoo:other", "utf-8")
    given = ["--texts", str(tmp_path), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    told = run("zoo", "train", *given)
    assert told.code == 2 and "zoo:other" in told.err


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ([], "--texts"),
        (["--layers", "first"], "--layers"),
        (["--domain", "code:much"], "--domain"),
        (["--domain", "poetry"], "poetry"),
        (["--longest-prompt", "1"], "--longest-prompt"),
        (["--init", "/nowhere"], "/nowhere"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    arguments: list[str], named: str, tmp_path: Path, run: Run
) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n{"text": "two"}\n', "utf-8")
    given = ["--texts", str(tmp_path), "--out", str(tmp_path / "out"), *arguments] if arguments else []
    told = run("zoo", "train", *given)
    assert told.code == 2 and named in told.err
