"""The drafters that ship for the real model: what their cards and the guide say is what was measured."""

import json
from pathlib import Path
from typing import Any

import pytest

from cosine_node import zoo
from cosine_node.gguf.file import GgufFile
from tests.docs.pages import DOCS

FILES = [zoo.location(name) for name in zoo.names(zoo.Family.SMOL) if name != zoo.target_of(zoo.Family.SMOL)]
MOST_BYTES = 10_000_000
MOST_BYTES_TOGETHER = 41_000_000


def record_of(file: Path) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(file.with_name("training.json").read_text("utf-8"))
    return record


def test_they_are_small() -> None:
    sizes = [file.stat().st_size for file in FILES]
    assert sizes and max(sizes) <= MOST_BYTES and sum(sizes) <= MOST_BYTES_TOGETHER


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_the_guide_gives_the_measured_agreement(file: Path) -> None:
    guide, name = (DOCS / "train-drafter.md").read_text("utf-8"), file.parent.name
    agreement, (own,) = record_of(file)["agreement"], zoo.expertise(name)
    for domain in [own] if own in agreement else agreement:
        greedy, sampled = agreement[domain]["0"], agreement[domain]["0.8"]
        tokens = greedy["tokens"] + sampled["tokens"]
        shares = (greedy["drafter"], greedy["copying"], sampled["drafter"], sampled["copying"])
        told = " | ".join(f"{share:.3f}" for share in shares)
        assert f"| `{name}` | {domain} | {told} | {tokens:,} |" in guide


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_a_drafter_names_its_target_and_no_place_of_its_making(file: Path) -> None:
    record = record_of(file)
    assert record["target"] == f"{zoo.SCHEME}{zoo.target_of(zoo.Family.SMOL)}"
    card = file.with_name("README.md").read_text("utf-8")
    assert "/tmp" not in card and "/tmp" not in json.dumps(record)
    assert GgufFile.open(file).draft_vocabulary
