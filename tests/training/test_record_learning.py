"""A drafter is recorded as shipped and after each round, along held-out texts of both domains, others beside it."""

from pathlib import Path

import pytest

from cosine_node.simulation.learning_curve import learned_tokens, learning_domain
from cosine_node.simulation.traces import TraceSet
from tests.training.test_measure_learning import write_texts
from training.record_learning import main


@pytest.mark.thorough
def test_versions_and_others_are_recorded_along_texts_of_both_domains(tmp_path: Path) -> None:
    write_texts(tmp_path)
    out = tmp_path / "traces.npz"
    place = ("--corpora", str(tmp_path), "--work", str(tmp_path / "work"), "--target", "zoo:target")
    drafter = ("--drafter", "zoo:draft-math", "--own", "math", "--new", "literature", "--others", "zoo:draft-code")
    main(
        [*place, *drafter, "--tokens", "100", "200", "--streams", "2", "--held-out-tokens", "50", "--out", str(out)]
    )
    traces = TraceSet.load(out)
    assert learning_domain(traces) == "math"
    assert learned_tokens(traces, "draft-math") == (0, 100, 200)
    assert {trace.domain for trace in traces} == {"literature", "math"}
    for trace in traces:
        assert trace.drafters.keys() == {"draft-math", "draft-math+100", "draft-math+200", "draft-code"}
        assert not trace.asked
