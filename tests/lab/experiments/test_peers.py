"""The benchmark beside others: what its figures mean, and what it says where somebody is not there."""

from pathlib import Path
from typing import Any

import pytest

from cosine_lab.experiments import peers
from cosine_lab.experiments.asker import answer
from cosine_lab.experiments.peers import ALONE, OURS, PLAIN, RPC, Machines, PeersOptions, findings_of, run
from cosine_lab.network.laboratory import what_is_missing
from cosine_protocol.errors import UsageError


def row(way: str, prompt: int, *, seconds: float, rtt_ms: float = 20.0) -> dict[str, Any]:
    """A text of nine tokens, the first of them after a ninth of the time."""
    part_ms = 1e3 * seconds / 9
    return {
        "rtt_ms": rtt_ms,
        "prompt": prompt,
        "way": way,
        "first_token_ms": part_ms,
        "ms_per_token": part_ms,
        "seconds": seconds,
        "tokens": list(range(9)),
    }


def test_a_ratio_is_of_the_same_question_at_the_same_round_trip() -> None:
    rows = [row(OURS, 0, seconds=1.0), row(OURS, 1, seconds=2.0), row(OURS, 0, seconds=9.0, rtt_ms=100.0)]
    rows += [row(RPC, 0, seconds=3.0), row(RPC, 1, seconds=4.0), row(RPC, 0, seconds=18.0, rtt_ms=100.0)]
    found = {(one["rtt_ms"], one["way"]): one for one in findings_of(rows)["ways"]}
    assert found[20.0, RPC]["times_our_time"] == pytest.approx(2.5)
    assert found[100.0, RPC]["times_our_time"] == pytest.approx(2.0)
    assert {one["times_our_time"] for (_, way), one in found.items() if way == OURS} == {1.0}
    assert found[20.0, OURS]["tokens_per_s"] == pytest.approx(6.0)


def test_without_ours_there_are_no_ratios() -> None:
    assert [one["times_our_time"] for one in findings_of([row(ALONE, 0, seconds=1.0)])["ways"]] == [None]


def test_tokens_that_come_together_came_at_one_time() -> None:
    told = answer(iter([[1, 2], [3]]))
    assert told["tokens"] == [1, 2, 3]
    first_s, second_s, third_s = told["came_s"]
    assert first_s == second_s <= third_s


def test_who_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    nobody: Any = None
    starts = Machines(nobody, nobody, nobody, tmp_path / "a.gguf", tmp_path).starts(PeersOptions())
    with pytest.raises(UsageError, match="llama-server and ggml-rpc-server are not on the PATH"):
        starts[RPC]()
    with pytest.raises(UsageError, match="none was given"):
        starts["Petals"]()


def test_a_machine_without_namespaces_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "what_is_missing", lambda: "A laboratory needs Linux and root.")
    with pytest.raises(UsageError, match="needs Linux and root"):
        run(PeersOptions.quick(), say=lambda _: None)


@pytest.mark.lab
@pytest.mark.network
def test_our_text_is_the_same_at_any_distance() -> None:
    if reason := what_is_missing():
        pytest.skip(reason)
    result = run(PeersOptions.quick(), say=lambda _: None)
    texts = {one["way"]: one["tokens"] for one in result["rows"]}
    assert texts[OURS] == texts[PLAIN] and ALONE in texts
    assert all(len(one["tokens"]) == PeersOptions.quick().tokens for one in result["rows"])
