"""A round of learning is measured along held-out texts of both domains; garbage takes the share that is asked."""

import json
import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

import pytest

from cosine_lab.training import measure_learning
from cosine_lab.training.measure_learning import garbage_of, main, repeated_shares
from cosine_node.drafter.observer import FailedBranch
from cosine_node.learning.finetuning import RoundSettings
from tests.node.learning.streams import stream

LINE = "zoo:draft-math, 200 tokens, both, 30 % garbage, seed 0: literature 0."


def write_texts(folder: Path) -> None:
    for domain in ("math", "literature"):
        for part in ("train", "dev"):
            lines = [json.dumps({"text": f"{domain} {part} {number}: " + "and so on " * 40}) for number in range(3)]
            (folder / f"{domain}.{part}.jsonl").write_text("\n".join(lines))


@pytest.mark.thorough
def test_a_round_is_measured_on_both_domains(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measure_learning, "RoundSettings", partial(RoundSettings, own_texts=16))
    write_texts(tmp_path)
    place = ("--corpora", str(tmp_path), "--work", str(tmp_path / "work"), "--target", "zoo:target")
    drafter = ("--drafter", "zoo:draft-math", "--own", "math", "--new", "literature")
    size = ("--tokens", "200", "--held-out-tokens", "100", "--experience", "both", "--garbage", "0.3")
    with caplog.at_level(logging.INFO):
        main([*place, *drafter, *size])
    assert any(line.startswith(LINE) and ", math 0." in line for line in caplog.messages), caplog.messages


def test_garbage_is_the_share_of_all_tokens_and_of_one_client() -> None:
    honest = [stream(str(number), tokens=50, seed=number) for number in range(20)]
    made = garbage_of(honest, share=0.3, kind="shuffled", rng=Random(1))
    bad, good = (sum(len(one.tokens) for one in streams) for streams in (made, honest))
    assert bad / (bad + good) == pytest.approx(0.3, abs=0.03)
    assert {one.client for one in made} == {"liar"}
    known = {token for one in honest for token in one.tokens}
    assert all(set(one.tokens) <= known for one in made)


def test_a_token_repeats_where_it_followed_the_same_two_before() -> None:
    refused = (FailedBranch(3, (3,), 0.5), FailedBranch(4, (9,), 0.5))
    one = replace(stream(), prompt=(1, 2), tokens=(3, 1, 2, 4, 3), failed=refused)
    assert repeated_shares([one]) == (1 / 2, 0.0)
    assert repeated_shares([replace(one, tokens=(3, 1, 2, 3, 1))]) == (1 / 2, 2 / 5)


def test_no_garbage_is_none() -> None:
    assert garbage_of([stream()], share=0.0, kind="random", rng=Random(1)) == []
