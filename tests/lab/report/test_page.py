"""The page says what the JSON files say, honestly, and nothing else."""

import json
from pathlib import Path
from typing import Any

import pytest

from cosine_lab.report.page import page_of as page_text
from cosine_lab.report.page import read_results, write_report
from cosine_lab.report.report_parts import FindingLine, found
from cosine_lab.report.report_sections import SECTIONS
from cosine_lab.report.rtt_findings import findings_of
from cosine_protocol.errors import UsageError
from tests.docs.pages import DOCS
from tests.lab.experiments.quick import quick_result


def row(strategy: str, speedup: float, part: str = "sweep", **other: Any) -> dict[str, Any]:
    return {
        "part": part,
        "strategy": strategy,
        "profile": "60/6",
        "temperature": 0.0,
        "rtt_ms": 20.0,
        "verifiers": 1,
        "speedup": speedup,
        "interval": [speedup, speedup],
        "worst_prompt_speedup": speedup,
        "prompts": 2,
        "prompt_s": [10.0 / speedup] * 2,
        "options": {"draft_tokens": 4} if strategy == "speculative" else {},
        "law": "coupled",
        "policy": "ours",
        "accepted_tokens_per_round": 1.0,
        "gpu_seconds_per_token": 0.06,
        "bytes_per_token": 300.0,
        "mismatches": 0,
        "violations": 0,
        "tokens": 1000,
        **other,
    }


def sweep(cosine: float) -> dict[str, Any]:
    rows = [row("plain", 1.0), row("cosine", cosine), row("speculative", 1.2), row("pipeinfer", 1.6)]
    rows += [
        row("cosine", cosine, "ablation", order="cumulative", label="a chain of one drafter"),
        row("cosine", cosine, "oracle", label="ours"),
        row("oracle", 4.0, "oracle", label="the coordinator knows"),
    ]
    return {
        "name": "rtt",
        "what": "What was measured.",
        "command": "cosine-node bench rtt --quick",
        "setup": {
            "emulated_rtt_ms": [20.0],
            "emulated_pass_ms": {"60/6": {"verifier": {"1": 60.0}}},
            "distinct_runs": [{"temperature": 0.0, "domain": "all", "share": 0.25, "run_tokens": 4}],
        },
        "rows": rows,
        "findings": findings_of(rows, main_rtt_ms=20.0, seed=0),
    }


def page_of(folder: Path, **results: dict[str, Any]) -> str:
    folder.mkdir(exist_ok=True)
    for name, result in results.items():
        (folder / f"{name}.json").write_text(json.dumps(result), "utf-8")
    return write_report(folder).read_text("utf-8")


def test_the_page_names_command_emulation_figures_and_findings(tmp_path: Path) -> None:
    page = page_of(tmp_path / "benchmarks", rtt=sweep(2.0))
    assert (tmp_path / "benchmarks.md").is_file()
    assert "cosine-node bench rtt --quick" in page
    assert "Emulated: rtt ms 20; pass ms 60/6." in page
    assert "(benchmarks/rtt.svg)" in page
    assert (tmp_path / "benchmarks" / "rtt.svg").is_file()
    assert "| ratio to speculative (20 ms, T 0) | 1.67 | at least 1.5 | yes |" in page
    assert "| the coordinator knows | 0.5 |" in page
    assert "| T 0, cosine | 2 (2, 2) |" in page
    assert "| T 0 | 1.25 (1.25, 1.25; pipeinfer) |" in page
    assert "| T 0 | 0.25 |" in page


def test_a_target_that_is_missed_is_called_missed(tmp_path: Path) -> None:
    page = page_of(tmp_path / "benchmarks", rtt=sweep(0.9))
    assert "| least speedup of `cosine` (20 ms, T 0) | 0.9 | at least 0.98 | no |" in page
    assert "| least ratio to the best other (pipeinfer; 20 ms, T 0) | 0.562 | at least 0.99 | no |" in page
    assert "| ratio to speculative (20 ms, T 0) | 0.75 | at least 1.5 | no |" in page


def test_the_page_is_the_same_every_time(tmp_path: Path) -> None:
    first = page_of(tmp_path / "benchmarks", rtt=sweep(2.0))
    drawn = (tmp_path / "benchmarks" / "rtt.svg").read_bytes()
    assert page_of(tmp_path / "benchmarks", rtt=sweep(2.0)) == first
    assert (tmp_path / "benchmarks" / "rtt.svg").read_bytes() == drawn


def test_a_liar_is_told_by_what_it_costs(tmp_path: Path) -> None:
    named = {"added": "late on purpose", "temperature": 0.8, "tokens_per_request": 256}
    findings = {
        "costliest": named,
        "most_percent": 4.25,
        "most_interval": [1.0, 7.5],
        "late": [{**named, "late_cost_percent": 1.0, "late_interval": [-2.0, 4.0]}],
        "most_percent_of_an_honest_one": -0.5,
        "mismatches": 0,
        "violations": 0,
    }
    rows = [{**named, "cost_percent": 4.25, "interval": [1.0, 7.5], "seconds": 11.0}]
    result = {"what": "", "command": "", "setup": {}, "rows": rows, "findings": findings}
    page = page_of(tmp_path / "benchmarks", liars=result)
    assert "| most percent that requests take longer with a liar (1, 7.5) | 4.25 |" in page
    assert "| late on purpose | 4.25 (1, 7.5) |" in page


def test_a_finding_without_a_value_has_no_line() -> None:
    most = FindingLine("most", "most_percent", found())
    assert list(most.lines({"findings": {"most_percent": None}})) == []


@pytest.fixture(scope="module")
def small() -> dict[str, dict[str, Any]]:
    return {name: quick_result(name) for name in ("routing", "acceptance")}


def test_sections_come_in_one_order(small: dict[str, dict[str, Any]], tmp_path: Path) -> None:
    page = page_of(
        tmp_path / "benchmarks", acceptance=small["acceptance"], rtt=sweep(2.0), routing=small["routing"]
    )
    titles = [SECTIONS[name].title for name in ("rtt", "routing", "acceptance")]
    assert titles == [line.removeprefix("## ") for line in page.splitlines() if line.startswith("## ")]


def test_a_result_of_another_version_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"routing\.json has no 'against_rivals'; run the experiment again"):
        page_of(tmp_path, routing={"what": "", "command": "", "setup": {}, "rows": [], "findings": {}})


def test_what_the_experiments_write_in_their_smallest_form_can_be_reported(
    small: dict[str, dict[str, Any]], tmp_path: Path
) -> None:
    page = page_of(tmp_path / "benchmarks", **small)
    assert "| domains, of 10, whose expert is the best |" in page
    assert "| mixed | 0 |" in page
    assert "| best-in-hindsight, 1 |" in page


def test_how_figures_grow_with_the_network_is_told(tmp_path: Path) -> None:
    row = {"nodes": 100, "client_bytes_read": 5.0, "stream_bytes_per_client": 9.0, "records_per_key_max": 7}
    findings = {
        "all_finished": True,
        "mismatches": 0,
        "client_bytes_read_exponent": 0.25,
        "stream_bytes_per_client_exponent": 0.0,
        "records_per_key_max": 48,
        "records_per_key_limit": 64,
        "choosing_candidates": 1_000,
        "choosing_us": 1_200.0,
        "strategy_decision_p50_us": 90.0,
        "strategy_decision_p95_us": 210.0,
        "charged_per_write_us": 300.0,
    }
    rows = [{**row, "records_per_key_mean": 3.0}, {**row, "nodes": 1_000, "records_per_key_mean": 3.0}]
    result = {"what": "", "command": "", "setup": {}, "rows": rows, "findings": findings}
    page = page_of(tmp_path / "benchmarks", scale=result)
    assert "grows as N^b | 0.25 |" in page
    assert "| most records of a key of the DHT | 48 | at most 64 | yes |" in page
    assert "| real us of choosing among 1,000 nodes | 1,200 | at most 1,000 | no |" in page
    assert (tmp_path / "benchmarks" / "scale.svg").is_file()


def test_a_crowd_is_judged_by_latency_or_by_throughput(tmp_path: Path) -> None:
    row = {"profile": "60/6", "temperature": 0.0, "strategy": "cosine", "clients": 16}
    row |= {"request_p50_ms": 2000.0, "request_p95_ms": 5000.0, "request_ms": [2000.0, 5000.0]}
    row |= {"token_p50_ms": 50.0, "token_p50_interval_ms": [40.0, 60.0], "tokens_per_s": 400.0}
    entry = {
        "profile": "60/6",
        "temperature": 0.0,
        "best_latency_of_others": "pipeinfer",
        "latency_reduction_percent": -5.0,
        "best_throughput_of_others": "plain",
        "throughput_ratio": 1.7,
        "throughput_of_oracle": 0.9,
        "throughput_of_bound": 0.5,
    }
    loads = ("latency", "saturated")
    findings = {
        "settings": [{**entry, "load": load} for load in loads],
        "mismatches": 0,
        "violations": 0,
        "least_verifier_share": 0.46,
    }
    rows = [{**row, "load": load} for load in loads]
    result = {"what": "", "command": "", "setup": {}, "rows": rows, "findings": findings}
    page = page_of(tmp_path / "benchmarks", crowd=result)
    assert "T 0: percent less time a token than the best other (pipeinfer) | -5 | at least 40 | no |" in page
    assert "T 0: throughput over that of the best other (plain) | 1.7 | at least 1.6 | yes |" in page
    assert "Tokens/s, 16 clients:" in page
    assert (tmp_path / "benchmarks" / "latency.svg").is_file()


def test_cooperation_is_compared_with_the_best_single_drafter(tmp_path: Path) -> None:
    entry = {"case": "expert absent", "swarm": "experts", "lowest_ratio": 0.98, "highest_ratio": 1.1}
    row = {"part": "replay", "case": "expert absent", "swarm": "experts", "temperature": 0.0, "ratio": 1.1}
    findings = {
        "replay": [entry],
        "simulation": [{"case": "expert absent", "temperature": 0.0, "ratio": 1.05, "speedup_ratio": 1.0}],
        "mismatches": 0,
    }
    result = {"what": "", "command": "", "setup": {}, "rows": [row], "findings": findings}
    page = page_of(tmp_path / "benchmarks", cooperation=result)
    assert "| experts | 0.98 to 1.1 |" in page
    assert "| T 0 | 1.05, 1 |" in page


def test_without_results_one_sentence_says_how_to_get_them(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There are no results in"):
        write_report(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", '{"rows": []}'])
def test_a_file_that_is_no_result_is_named(text: str, tmp_path: Path) -> None:
    (tmp_path / "rtt.json").write_text(text)
    with pytest.raises(UsageError, match=r"rtt\.json"):
        write_report(tmp_path)


def test_the_published_page_is_that_of_the_published_files() -> None:
    folder = DOCS / "benchmarks"
    assert (DOCS / "benchmarks.md").read_text("utf-8") == page_text(read_results(folder), folder)
