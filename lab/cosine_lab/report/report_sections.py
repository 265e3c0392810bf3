"""The sections of docs/benchmarks.md: findings with their targets, figures, and short tables of the rows."""

from collections.abc import Mapping
from typing import Final

from cosine_lab.experiments.crowd import LATENCY, SATURATED
from cosine_lab.report.markdown import Row, Rows, words
from cosine_lab.report.plots import BarPlot, LinePlot
from cosine_lab.report.report_capacity import CAPACITY
from cosine_lab.report.report_learn import LEARN
from cosine_lab.report.report_near import NEAR
from cosine_lab.report.report_parts import (
    ALIKE,
    CLOCK,
    EXACT,
    KEPT,
    LOAD,
    MACHINES,
    FindingLine,
    Section,
    columns,
    found,
    pivoted,
    rows,
)
from cosine_lab.report.report_ring import RING
from cosine_lab.report.report_rtt import RTT


def growth(result: Row) -> Rows:
    """Figures of large networks by the number of nodes, one a row."""
    names = ("stream_bytes_per_client", "client_bytes_read", "records_per_key_max", "records_per_key_mean")
    return [
        {"live_nodes": row["nodes"], "figure": words(name), "bytes_or_records": row[name]}
        for name in names
        for row in result["rows"]
    ]


def distribution(result: Row) -> Rows:
    """The share of requests of a strategy that took no longer than each of them."""
    return [
        {**row, "request_s": ms / 1e3, "share_of_requests": number / len(row["request_ms"])}
        for row in result["rows"]
        for number, ms in enumerate(sorted(row["request_ms"]), 1)
    ]


def speeds(result: Row) -> Rows:
    """Everybody who was timed on an engine, one a row."""
    return [
        {**row, "by": by, "figure": figure, "unit": unit}
        for row in result["rows"]
        for name, unit in (("tokens_per_s", "tokens/s"), ("pass_ms", "ms a pass"))
        if row["part"] in ("plain", "concurrent", "verification")
        for by, figure in row.get(name, {}).items()
    ]


# Limits below are targets as they were set before anything was measured.
def decoding(result: Row) -> Rows:
    """The rows that time whole texts."""
    return [row for row in result["rows"] if "tokens_per_s" in row]


def by_the_clock(title: str, exactness: FindingLine) -> Section:
    """The section of a result of `bench here`."""
    return Section(
        title,
        (
            FindingLine(f"times plain decoding, {{way}} ({CLOCK})", "times_plain", found("ways"), least=0.97),
            FindingLine(f"the worst ten in a row, {{way}} ({CLOCK})", "worst_group", found("ways"), least=0.95),
            exactness,
        ),
        (),
        (
            columns(
                "{prompts} prompts each, in turns; intervals are 95 %, by bootstrap over the prompts:",
                found("ways"),
                "emulated_rtt_ms temperature way plain_ms_per_token ms_per_token times_plain interval worst_group",
            ),
        ),
    )


SECTIONS: Final[Mapping[str, Section]] = {
    "here": by_the_clock("By the clock, everything on one machine", EXACT),
    "here_smol_llama": by_the_clock("A real model by the clock: four bits in llama.cpp", ALIKE),
    "here_smol_torch": by_the_clock("A real model by the clock: float32 in PyTorch", ALIKE),
    "near": NEAR,
    "ring": RING,
    "learn": LEARN,
    "rtt": RTT,
    "capacity": CAPACITY,
    "crowd": Section(
        "Many requests at once",
        (
            FindingLine(
                f"{LOAD}: percent less time a token than the best other ({{best_latency_of_others}})",
                "latency_reduction_percent",
                found("settings", load=LATENCY),
                least=40.0,
            ),
            FindingLine(
                f"{LOAD}: throughput over that of the best other ({{best_throughput_of_others}})",
                "throughput_ratio",
                found("settings", load=SATURATED),
                least=1.6,
            ),
            FindingLine("least share of the work of a verifier", "least_verifier_share", found()),
            EXACT,
            KEPT,
        ),
        (
            BarPlot("crowd", rows(), LOAD, "{strategy}", "{strategy}", "request_p50_ms", tail="request_p95_ms"),
            LinePlot("latency", distribution, LOAD, "{strategy}", "request_s", "share_of_requests"),
        ),
        (
            columns(
                "Throughput over that of the best other, of a coordinator that knows the text (oracle), and of "
                "verifiers that never idle (bound):",
                found("settings"),
                "load profile temperature throughput_ratio throughput_of_oracle throughput_of_bound",
            ),
            pivoted(
                "Ms a token at the median, {clients} clients:",
                rows(load=LATENCY),
                "{strategy}",
                MACHINES,
                "{token_p50_ms} ({token_p50_interval_ms})",
            ),
            pivoted("Tokens/s, {clients} clients:", rows(load=SATURATED), "{strategy}", MACHINES, "{tokens_per_s}"),
        ),
    ),
    "paper": Section(
        "The CoSine paper in its own setting",
        (
            FindingLine(
                "{batch} at once, {strategy}: percent less time a token than the strongest baseline ({baseline})",
                "latency_saved_percent",
                found("strongest"),
                least=23.2,
            ),
            FindingLine(
                "{batch} at once, {strategy}: throughput over that of the strongest baseline ({baseline})",
                "throughput_ratio",
                found("strongest"),
                least=1.325,
            ),
            FindingLine(
                "{batch} at once, cosine: throughput over that of {baseline}",
                "throughput_ratio",
                found("objection"),
            ),
            FindingLine(
                "{batch} at once, cosine-paper: throughput over that with one drafter",
                "throughput_ratio",
                found("cooperation"),
            ),
            EXACT,
            KEPT,
        ),
        (),
        (
            columns(
                "The targets are the paper's. By the number of requests at once:",
                rows(),
                "batch strategy ms_per_token tokens_per_s accepted_tokens_per_round rows_per_pass "
                "tokens_fed_per_pass verifier_busy_share",
            ),
            pivoted(
                "How many times as fast a token comes as with each baseline, and the ratio of throughputs:",
                found("against"),
                "{strategy}, {batch} at once",
                "{baseline}",
                "{times_as_fast} ({interval}), {throughput_ratio}",
            ),
        ),
    ),
    "cooperation": Section(
        "Cooperation of drafters",
        (EXACT,),
        (),
        (
            pivoted(
                "Ratio of accepted tokens per round, replayed without time, over all budgets and temperatures:",
                found("replay"),
                "{swarm}",
                "{case}",
                "{lowest_ratio} to {highest_ratio}",
            ),
            pivoted(
                "In the simulated swarm, the ratio of accepted tokens per round and that of speed:",
                found("simulation"),
                "T {temperature}",
                "{case}",
                "{ratio}, {speedup_ratio}",
            ),
        ),
    ),
    "liars": Section(
        "Drafters that lie",
        (
            FindingLine(
                "most percent that requests take longer with a liar ({most_interval})", "most_percent", found()
            ),
            FindingLine(
                "the same of what comes late in a long request ({late_interval})",
                "late_cost_percent",
                found("late"),
            ),
            FindingLine("the same with one more honest drafter", "most_percent_of_an_honest_one", found()),
            EXACT,
            KEPT,
        ),
        (),
        (
            pivoted(
                "How much longer requests take, in percent:",
                rows(),
                "{added}",
                "{tokens_per_request} tokens, T {temperature}",
                "{cost_percent} ({interval})",
            ),
        ),
    ),
    "routing": Section(
        "Who should draft",
        (),
        (),
        (
            columns(
                "Accepted tokens per round of `hedge`, over those of the best single drafter in hindsight, of the "
                "best rival as published, and of the best rival told the prompt's likelihood too (prior):",
                found("against_rivals"),
                "scenario temperature share_of_best best_rival ratio_to_best_rival best_rival_with_prior "
                "ratio_to_best_rival_with_prior",
            ),
            pivoted(
                "Accepted tokens per round, by the number of active drafters:",
                rows(),
                "{router}, {active}",
                "{scenario}, T {temperature}",
                "{accepted_per_round}",
            ),
        ),
    ),
    "acceptance": Section(
        "What the drafters know",
        (FindingLine("domains, of {domains}, whose expert is the best", "domains_led_by_their_expert", found()),),
        (
            BarPlot(
                "acceptance", rows(), "{domain}", "{drafter}, T {temperature}", "T {temperature}", "first_choice"
            ),
        ),
        (
            columns(
                "Share of tokens that are the first choice of the best drafter, the generalist and the worst:",
                found("by_domain"),
                "temperature domain best first_choice interval generalist worst",
            ),
        ),
    ),
    "scale": Section(
        "Large networks",
        (
            FindingLine("every request finished", "all_finished", found()),
            EXACT,
            FindingLine(
                "b where what a client reads to find nodes grows as N^b", "client_bytes_read_exponent", found()
            ),
            FindingLine("b where what it streams grows as N^b", "stream_bytes_per_client_exponent", found()),
            FindingLine(
                "most records of a key of the DHT", "records_per_key_max", found(), most="records_per_key_limit"
            ),
            FindingLine(
                "real us of choosing among {choosing_candidates} nodes", "choosing_us", found(), most=1000.0
            ),
            FindingLine("real us of a decision, p50", "strategy_decision_p50_us", found()),
            FindingLine("real us of a decision, p95", "strategy_decision_p95_us", found()),
            FindingLine("virtual us charged for every write of a client", "charged_per_write_us", found()),
        ),
        (LinePlot("scale", growth, "{figure}", "{figure}", "live_nodes", "bytes_or_records"),),
        (
            columns(
                "By the number of live nodes:",
                rows(),
                "nodes clients finished tokens tokens_per_s latency_p50_s latency_p95_s client_bytes_read "
                "stream_bytes_per_client records_per_key_max",
            ),
        ),
    ),
    "load": Section(
        "A verifier under load",
        (
            FindingLine("{strategy}, {what}", "measured", found("targets"), most="most"),
            FindingLine("more texts that differ from a near tie on", "near_ties", found()),
        ),
        (),
        (
            columns(
                "In virtual time, and megabytes of the process:",
                rows(),
                "strategy clients requests tokens_per_s between_tokens_p50_ms between_tokens_p99_ms "
                "first_token_p50_ms memory_end_mb pool_most_tokens",
            ),
        ),
    ),
    "engine": Section(
        "The engine against transformers",
        (
            FindingLine("{model}, {what}", "ratio", found("targets"), least="wanted"),
            FindingLine("of {compared} texts and choices, those that differ", "mismatches", found(), most=0),
            FindingLine("more that differ from a near tie on", "near_ties", found()),
        ),
        (),
        (
            columns("Medians:", speeds, "model dtype part by figure unit"),
            columns(
                "Passes of one token a request, and the least time of reading the weights:",
                rows(part="bandwidth"),
                "model dtype requests pass_ms limit_ms share_of_limit",
            ),
        ),
    ),
    "llama": Section(
        "GGUF files in llama.cpp and in PyTorch",
        (FindingLine("{part}, of a plain loop's speed", "ratio", found("of_loop"), least=0.95),),
        (),
        (
            columns(
                "Passes after a context, and the memory that loading took:",
                rows(part="passes"),
                "engine resident_mib ms_of_1 ms_of_4 ms_of_8 ms_of_16",
            ),
            columns("Greedy texts, prompts included:", decoding, "part engine tokens_per_s ratio"),
        ),
    ),
}
"""By the name of the experiment, in the order of the page."""
