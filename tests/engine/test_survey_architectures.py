"""docs/architectures.json lists every kind of causal language model, with the result of the survey."""

import re

import pytest
import transformers as tf

from tests.engine.gguf_architectures import TINY
from tests.engine.survey_architectures import DATA, KINDS, Outcome, read_data, survey

# Models of transformers warn.
pytestmark = pytest.mark.filterwarnings("ignore")
TEXT = DATA.read_text("utf-8")
LISTED = read_data(TEXT)


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


@pytest.mark.thorough
@pytest.mark.parametrize("model_type", ["dbrx", "marian", "jamba", "moshi"])
def test_the_data_say_what_the_survey_finds(model_type: str) -> None:
    assert survey(model_type).outcome is LISTED[model_type]
