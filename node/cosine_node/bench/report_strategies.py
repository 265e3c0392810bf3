"""The sections of docs/benchmarks.md on routing, on cooperation and on drafters that lie."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cosine_node.bench.markdown import bullets, paragraphs, percent, shown, table, times

Result = Mapping[str, Any]
Row = Mapping[str, Any]

ROUTING_COLUMNS: Final[Mapping[str, str]] = {
    "router": "router",
    "active": "active drafters",
    "accepted_per_round": "accepted per round",
    "accepted_per_round_ci95": "95 % interval, half",
    "late_accepted_per_round": "late rounds",
    "share_of_best": "of the best in hindsight",
    "right_expert_share": "rounds of the expert",
    "regret_rounds": "rounds lost a request",
    "constants": "constants",
}
COOPERATION_COLUMNS: Final[Mapping[str, str]] = {
    "case": "case",
    "swarm": "swarm",
    "temperature": "T",
    "budget_nodes": "nodes a round",
    "fused_accepted_per_round": "together",
    "best_single_accepted_per_round": "best single",
    "ratio": "ratio",
    "always_the_same_ratio": "ratio to one drafter a domain",
    "requests_not_behind": "requests not behind",
    "requests": "requests",
}

LIARS_COLUMNS: Final[Mapping[str, str]] = {
    "added": "added to the swarm",
    "tokens_per_request": "tokens a request",
    "temperature": "T",
    "seconds_without": "s without",
    "seconds": "s with",
    "cost_percent": "cost %",
    "late_cost_percent": "cost % of the late part",
    "worst_request_percent": "worst request %",
    "requests": "requests",
}


def routing_section(result: Result) -> str:
    """Which router is how good, one table for each kind of traffic and temperature."""
    rows = result["rows"]
    places = dict.fromkeys((row["scenario"], row["temperature"]) for row in rows)
    return paragraphs(
        [
            bullets(map(_routing_sentence, result["findings"]["against_rivals"])),
            *(
                f"{scenario.capitalize()} traffic, temperature {temperature:g}:\n\n"
                + columns([r for r in rows if (r["scenario"], r["temperature"]) == (scenario, temperature)])
                for scenario, temperature in places
            ),
        ]
    )


def columns(rows: Sequence[Row], named: Mapping[str, str] = ROUTING_COLUMNS) -> str:
    """Some fields of rows as a table, under names for people."""
    return table(list(named.values()), [[row.get(name) for name in named] for row in rows])


def _routing_sentence(entry: Row) -> str:
    return (
        f"On {entry['scenario']} traffic at temperature {entry['temperature']:g} `{entry['router']}` has "
        f"{times(entry['ratio_to_best_rival'])} the accepted tokens per round of the best rival "
        f"({entry['best_rival']}), {times(entry['ratio_to_best_rival_with_prior'])} those of the best rival that "
        f"is given the likelihood of the prompt too ({entry['best_rival_with_prior']}), and "
        f"{percent(entry['share_of_best'])} of those of the best single drafter in hindsight."
    )


def cooperation_section(result: Result) -> str:
    """Whether several drafters bring more than the best one."""
    rows, findings = result["rows"], result["findings"]
    replayed = [row for row in rows if row["part"] == "replay"]
    return paragraphs(
        [
            bullets(_cooperation_sentences(findings)),
            "Accepted tokens per round, replayed without time:",
            columns([{**row, "temperature": f"{row['temperature']:g}"} for row in replayed], COOPERATION_COLUMNS),
            _simulated(findings["simulation"]),
        ]
    )


def _cooperation_sentences(findings: Mapping[str, Any]) -> Iterator[str]:
    for entry in findings["replay"]:
        is_ahead = entry["lowest_ratio"] > 1.0
        yield (
            f"{entry['case'].capitalize()}, swarm of {entry['swarm']}: all drafters together have "
            f"{times(entry['lowest_ratio'])} to {times(entry['highest_ratio'])} the accepted tokens per round of "
            f"the best single drafter in hindsight at an equal number of nodes, "
            f"{'more in every case' if is_ahead else 'not more in every case'}."
        )
    yield f"{findings['mismatches']} texts of the simulated runs differ from the target's own."


def _simulated(rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    names = list(dict.fromkeys(name for row in rows for name in row))
    body = [[shown(row.get(name)) for name in names] for row in rows]
    headings = [name.replace("_", " ") for name in names]
    return "In the simulated swarm:\n\n" + table(headings, body)


def liars_section(result: Result) -> str:
    """What a liar costs."""
    return paragraphs([bullets(_liars_sentences(result["findings"])), columns(result["rows"], LIARS_COLUMNS)])


def _liars_sentences(findings: Mapping[str, Any]) -> Iterator[str]:
    costliest, late = findings["costliest"], findings["most_late_percent"]
    yield (
        f"The costliest liar ({costliest['added']}, {costliest['tokens_per_request']} tokens a request, "
        f"temperature {costliest['temperature']:g}) makes requests take {findings['most_percent']:.1f} % longer; "
        f"one more honest drafter changes them by at most {findings['most_percent_of_an_honest_one']:.1f} %."
    )
    if late is not None:
        yield f"Of what comes late in a long request, liars cost at most {late:.1f} %."
    yield (
        f"{findings['mismatches']} texts differ from the target's own, and {findings['violations']} other promises "
        "were broken."
    )
