"""Answers on disk, and the vocabulary that is made of them."""

from pathlib import Path

import numpy as np
import pytest

from cosine_node.training.answers import SHARD_ANSWERS, AnswerStore, most_frequent
from cosine_protocol.errors import UsageError
from cosine_protocol.request import Sampling
from tests.node.training.samples import answer


def test_answers_are_read_as_they_were_added(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    written = [
        answer((4, 5), likely=[[(4, 0.5), (6, 0.25)], [(5, 0.75), (1, 0.25)]], sampling=Sampling(temperature=0.8)),
        answer((9,), prompt=(8,), likely=[[(9, 1.0), (2, 0.5)]], domain="math", sampling=Sampling(seed=2**63)),
    ]
    for one in written:
        store.add(one)
    store.flush()
    for found, one in zip(AnswerStore(tmp_path).read(), written, strict=True):
        assert (found.question, found.domain, found.sampling) == (one.question, one.domain, one.sampling)
        assert (found.prompt, found.tokens) == (one.prompt, one.tokens)
        assert np.array_equal(found.likely_ids, one.likely_ids)
        assert np.array_equal(found.likely_logs, one.likely_logs)


def test_answers_of_which_only_the_text_is_known_are_kept_too(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    store.add(answer((4, 5, 6)))
    store.flush()
    assert store.read()[0].likely_ids.shape == (3, 0)


def test_a_full_file_is_written_at_once(tmp_path: Path) -> None:
    store = AnswerStore(tmp_path)
    for _ in range(SHARD_ANSWERS + 1):
        store.add(answer((4,)))
    assert len(AnswerStore(tmp_path).read()) == SHARD_ANSWERS


def test_nothing_is_written_for_no_answers(tmp_path: Path) -> None:
    AnswerStore(tmp_path / "none").flush()
    assert not (tmp_path / "none").exists()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "answers-00000.npz").write_bytes(b"PK but no archive")
    with pytest.raises(UsageError, match="answers-00000"):
        AnswerStore(tmp_path).read()


def test_frequent_tokens_are_known_in_rising_order() -> None:
    answers = [answer((40, 9, 40, 9, 40)), answer((9, 77), prompt=(40,))]
    assert most_frequent(answers, tokens=2, shares={}).target_ids == (9, 40)


def test_tokens_that_were_likely_count_by_their_probability() -> None:
    likely = [[(9, 0.6), (50, 0.4)], [(9, 0.5), (60, 0.001)]]
    assert most_frequent([answer((9, 9), prompt=(), likely=likely)], tokens=2, shares={}).target_ids == (9, 50)


def test_no_token_is_known_that_was_never_seen() -> None:
    assert most_frequent([answer((4, 5), prompt=(1,))], tokens=100, shares={}).target_ids == (1, 4, 5)


def test_domains_count_by_their_shares() -> None:
    answers = [answer((4, 4, 4, 5), prompt=(), domain="a"), answer((6, 7), prompt=(), domain="b")]
    for shares, known in (({"a": 1.0}, (4, 5)), ({"a": 0.1, "b": 0.9}, (6, 7)), ({"a": 0.6, "b": 0.4}, (4, 6))):
        assert most_frequent(answers, tokens=2, shares=shares).target_ids == known
