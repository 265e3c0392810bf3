"""Real models in a swarm: their texts are those that transformers and llama.cpp write of the same files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from cosine_node.engine.llama.library import is_installed
from tests.swarm.reference_texts import GEMMA, Form, compare, forms

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not is_installed(), reason="xllamacpp is absent"),
]
NOT_HERE = pytest.mark.skipif(not GEMMA.is_file(), reason="Gemma 3 270M is absent: make gemma")


def is_llama(form: Form) -> bool:
    return form.engine == "llama"


def is_file_in_torch(form: Form) -> bool:
    return form.is_file and form.engine == "torch"


@pytest.mark.parametrize("chosen", [is_llama, is_file_in_torch])
@pytest.mark.parametrize("model", ["toy", pytest.param("Gemma 3 270M", marks=NOT_HERE)])
def test_texts_of_a_swarm_are_those_of_the_reference(
    model: str, chosen: Callable[[Form], bool], tmp_path: Path
) -> None:
    form = next(form for form in forms(tmp_path, [model]) if chosen(form))
    outcome = compare(form)
    assert outcome.different == outcome.other_prompts == 0
    # The drafter has learned the right texts, and knows nothing of what follows where rounding has left one.
    assert outcome.texts and outcome.drafted > outcome.tokens / 4 * (1 - outcome.near_ties / outcome.texts)
    assert form.is_float32 is False or outcome.near_ties == 0
    # Requests lost their pages and were computed again.
    assert outcome.preempted
