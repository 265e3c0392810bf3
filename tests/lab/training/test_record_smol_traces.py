"""The recorder of the real family: what is asked, and a reduced vocabulary seen in the target's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import pytest
import torch

from cosine_lab.training.record_smol_traces import LONG, PASSAGE_CHARACTERS, TASKS, ReducedModel, questions
from cosine_node import zoo
from cosine_node.engine.base import Engine
from cosine_node.engine.vocabulary import DraftVocabulary
from tests.docs.pages import DOCS

VOCAB_TOKENS = 6
KNOWN = (1, 3, 4)


@dataclass(frozen=True)
class Spoken:
    """A model of three tokens and a reserved one, which scores each by what it was fed."""

    fed: list[tuple[int, ...]]

    @property
    def engine(self) -> Engine:
        return cast(Engine, None)

    def logits_along(self, prompt: Sequence[int], stream: Sequence[int]) -> torch.Tensor:
        self.fed.append((*prompt, *stream))
        return torch.arange(4 * len(stream), dtype=torch.float32).view(len(stream), 4)


def test_a_reduced_vocabulary_is_seen_in_the_targets_tokens() -> None:
    spoken = Spoken([])
    model = ReducedModel(spoken.engine, spoken, DraftVocabulary(KNOWN), VOCAB_TOKENS)
    logits = model.logits_along((1, 5), (4, 0))
    assert spoken.fed == [(0, 3, 2, 3)]
    own = spoken.logits_along((), (4, 0))
    assert torch.equal(logits[:, KNOWN], own[:, :3])
    # All that is not known is as likely together as the reserved id.
    assert logits.softmax(-1)[:, [0, 2, 5]].sum(-1).tolist() == pytest.approx(own.softmax(-1)[:, 3].tolist())


def test_short_prompts_are_the_projects_own() -> None:
    asked = questions(DOCS)
    assert asked.keys() == {*zoo.SMOL_DOMAINS, LONG}
    for domain in zoo.SMOL_DOMAINS:
        assert len(asked[domain]) >= 12
        assert asked[domain][0] == zoo.prompts(domain)[0].asked


def test_long_prompts_end_with_a_task() -> None:
    long = questions(DOCS)[LONG]
    assert len(long) >= 8
    for place, messages in enumerate(long):
        [message] = cast(list[dict[str, str]], messages)
        assert message["content"].endswith(TASKS[place % len(TASKS)])
        assert len(message["content"]) <= PASSAGE_CHARACTERS[place % len(PASSAGE_CHARACTERS)] + 100


def test_pages_that_are_too_short_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "short.md").write_text("A few words.")
    assert not questions(tmp_path)[LONG]
