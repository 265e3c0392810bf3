"""Requests are timed with a drafter that only learns and without, and its bytes are counted."""

import pytest

from cosine_lab.training.time_pupils import main, plan_of, timed
from cosine_node.zoo.family import Family


def test_a_pupil_costs_bytes_and_no_time_to_speak_of() -> None:
    plan = plan_of(
        ["--kinds", Family.TOY, "--prompts", "1", "--coordinations", "verifier", "--temperatures", "0.8"]
    )
    (row,) = timed(plan)
    assert (row["requests"], row["temperature"]) == (1, 0.8)
    assert row["bytes_a_token"] > 0
    assert row["with_s"] == pytest.approx(row["without_s"], rel=0.05)


def test_what_is_not_known_cannot_be_timed() -> None:
    with pytest.raises(SystemExit):
        main(["--kinds", "nothing"])
