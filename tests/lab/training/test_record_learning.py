"""A drafter is recorded as shipped and after each round, along held-out texts of both domains, others beside it."""

import json
from functools import partial
from pathlib import Path

import pytest

from cosine_lab.emulation.traces import TraceSet
from cosine_lab.simulation.learners import learned_tokens
from cosine_lab.training import record_learning
from cosine_node.learning.finetuning import RoundSettings


def write_texts(folder: Path) -> None:
    for domain in ("math", "literature"):
        for part in ("train", "dev"):
            lines = [json.dumps({"text": f"{domain} {part} {number}: " + "and so on " * 40}) for number in range(3)]
            (folder / f"{domain}.{part}.jsonl").write_text("\n".join(lines))


@pytest.mark.thorough
def test_versions_and_others_are_recorded_along_texts_of_both_domains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a round brings is the file's, of real size; here it is that each version stands in its place.
    monkeypatch.setattr(record_learning, "RoundSettings", partial(RoundSettings, own_texts=16))
    write_texts(tmp_path)
    out = tmp_path / "traces.npz"
    place = ("--corpora", str(tmp_path), "--work", str(tmp_path / "work"), "--target", "zoo:target")
    drafter = ("--drafter", "zoo:draft-math", "--own", "math", "--new", "literature", "--others", "zoo:draft-code")
    record_learning.main(
        [*place, *drafter, "--tokens", "100", "200", "--streams", "2", "--held-out-tokens", "50", "--out", str(out)]
    )
    traces = TraceSet.load(out)
    assert learned_tokens(traces, "draft-math") == (0, 100, 200)
    assert {trace.domain for trace in traces} == {"literature", "math"}
    for trace in traces:
        assert trace.drafters.keys() == {"draft-math", "draft-math+100", "draft-math+200", "draft-code"}
        assert not trace.asked
