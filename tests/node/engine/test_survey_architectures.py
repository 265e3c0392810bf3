"""docs/architectures.json lists every kind of causal language model, and has what the survey finds."""

import re
import warnings
from collections.abc import Iterator

import pytest
import transformers as tf

from cosine_node.engine.torch.pass_way import PassWay
from tests.node.engine import survey_architectures
from tests.node.engine.gguf_architectures import TINY
from tests.node.engine.survey_architectures import (
    DATA,
    KINDS,
    Outcome,
    read_data,
    survey,
)
from tests.thoroughness import THOROUGH

TEXT = DATA.read_text("utf-8")
LISTED = read_data(TEXT)
AGAIN = {
    "dbrx": Outcome.PACKED,
    "deepseek_v3": Outcome.PACKED,
    "marian": Outcome.CACHED,
    "zaya": Outcome.CACHED,
    "jamba": Outcome.STEPPED,
    "llama4_text": Outcome.REFUSED,
    "moshi": Outcome.REFUSED,
    "prophetnet": Outcome.REFUSED,
    "gemma4_assistant": Outcome.NOT_TRIED,
}


@pytest.fixture(autouse=True)
def _quiet_models() -> Iterator[None]:
    """Models of transformers warn of many things that are not ours."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def test_every_kind_is_listed() -> None:
    if f'"transformers": "{tf.__version__}"' not in TEXT:
        pytest.skip(f"the data are of another version than {tf.__version__}")
    assert tuple(sorted(LISTED)) == KINDS


def test_the_page_names_the_architectures_of_gguf_files() -> None:
    section = DATA.with_suffix(".md").read_text("utf-8").partition("## GGUF files in PyTorch")[2]
    (named,) = re.findall(r"^`[\w-]+`(?:,\s`[\w-]+`)+$", section, re.MULTILINE)
    assert re.findall(r"[\w-]+", named) == sorted({tiny.architecture for tiny in TINY.values()})


def test_nothing_that_loads_is_wrong() -> None:
    assert Outcome.WRONG not in LISTED.values()


def test_a_model_that_is_loaded_and_writes_another_text_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survey_architectures, "find_way", lambda model: PassWay.PACKED)
    found = survey("diffllama")
    assert found.outcome is Outcome.WRONG
    assert "texts are not those of `generate`" in found.reason


@pytest.mark.parametrize(
    "model_type",
    [
        pytest.param(name, marks=THOROUGH if name in ("dbrx", "marian", "jamba", "moshi") else pytest.mark.soak)
        for name in AGAIN
    ],
)
def test_the_data_say_what_the_survey_finds(model_type: str) -> None:
    found = survey(model_type).outcome
    assert found is AGAIN[model_type]
    assert found is LISTED[model_type]
