"""The sections of docs/benchmarks.md: findings in sentences, then short tables; all rows stay in the JSON files."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from cosine_node.bench import plots
from cosine_node.bench.crowd import LATENCY, SATURATED
from cosine_node.bench.markdown import bullets, percent, pivot, shown, spread, table, times, verdict, words

Row = Mapping[str, Any]
Rows = Sequence[Row]

# Targets, as they were set before anything was measured.
FLOOR: Final = 0.98
LEVEL: Final = 0.99
OVER_SPECULATIVE: Final = 1.5
OVER_BEST_OTHER: Final = 1.25
LATENCY_SAVED: Final = 0.4
THROUGHPUT: Final = 1.6
CHOICE_US: Final = 1000.0
CHOICE_CANDIDATES: Final = 1000


@dataclass(frozen=True, slots=True)
class PageFigure:
    """A figure of an experiment: its file's name, what it shows, how it is drawn and of which rows."""

    name: str
    caption: str
    draw: Callable[[Rows, Path], None]
    part: str = ""

    def rows(self, result: Row) -> Rows:
        """The rows to draw; without any there is no figure."""
        return [row for row in result["rows"] if not self.part or row["part"] == self.part]


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the page: its title, its paragraphs after the figures, its figures."""

    title: str
    blocks: Callable[[Row], Iterator[str]]
    figures: tuple[PageFigure, ...] = ()


def _at(row: Row) -> str:
    return f"{row['rtt_ms']:g} ms and temperature {row['temperature']:g}"


def _checked(findings: Row) -> str:
    broken = f", and {findings['violations']} other promises were broken" if "violations" in findings else ""
    return f"{findings['mismatches']} texts differ from the target's own{broken}."


def rtt(result: Row) -> Iterator[str]:
    """Speed against the round-trip time, what each part brings, and how far it is from what could be known."""
    rows, findings = result["rows"], result["findings"]
    more = (
        f"With {row['verifiers']} verifiers {row['strategy']} is {times(row['speedup'])} plain decoding at "
        f"{_at(row)}."
        for row in rows
        if row["part"] == "more"
    )
    yield bullets([*_rtt_findings(findings), *more])
    for temperature in sorted({row["temperature"] for row in rows if row["part"] == "sweep"}):
        yield f"Times as fast as plain decoding at temperature {temperature:g}, by RTT in ms:"
        yield pivot(
            "strategy",
            [row for row in rows if row["part"] == "sweep" and row["temperature"] == temperature],
            down="strategy",
            across=lambda row: f"{row['rtt_ms']:g}",
            cell=lambda row: f"{row['speedup']:.2f}",
        )
    main = {entry["rtt_ms"] for entry in findings["at_main_rtt"]}
    beside = [
        row
        for row in rows
        if row["part"] in ("profile", "own lookup") and row["strategy"] != "plain" and row["rtt_ms"] in main
    ]
    if beside:
        yield (
            f"On other machines at {', '.join(f'{rtt:g}' for rtt in main)} ms, and where the verifier itself "
            "drafts by prompt lookup, as it is shipped to do (elsewhere here a drafter does that):"
        )
        yield pivot(
            "strategy",
            beside,
            down="strategy",
            across=lambda row: (
                f"{row['profile'] if row['part'] == 'profile' else 'own lookup'}, T {row['temperature']:g}"
            ),
            cell=lambda row: f"{row['speedup']:.2f}",
        )
    if findings["parts"]:
        yield (
            "What each part brings, as speedup over plain decoding; in brackets the factor, to what stands above "
            "it when parts are added, to everything else when one is left out:"
        )
        yield pivot(
            "",
            findings["parts"],
            down="label",
            across=lambda entry: f"T {entry['temperature']:g}, {entry['rtt_ms']:g} ms",
            cell=lambda entry: f"{entry['speedup']:.2f} ({entry['gain']:.3f})",
        )


def _rtt_findings(findings: Row) -> Iterator[str]:
    lowest, closest = findings["lowest_speedup"], findings["closest"]
    yield (
        f"`cosine` is never below {times(lowest['speedup'])} plain decoding, at {_at(lowest)}; its worst single "
        f"prompt runs at {times(findings['worst_prompt_speedup'])}. "
        + verdict(lowest["speedup"] >= FLOOR, f"{FLOOR:g}x everywhere")
    )
    yield (
        f"It is ahead of every other strategy at {findings['points_ahead']} of {findings['points']} points; the "
        f"smallest ratio to the best other is {times(closest['ratio'])} ({closest['best_other']}, at "
        f"{_at(closest)}). "
        + verdict(closest["ratio"] >= LEVEL, "level with all of them or ahead everywhere, within 1 %")
    )
    for entry in findings["at_main_rtt"]:
        over, ratio = entry["ratio_to_speculative"], entry["ratio"]
        if over is not None:
            yield f"At {_at(entry)} it is {times(over)} tuned synchronous speculation. " + verdict(
                over >= OVER_SPECULATIVE, f"{OVER_SPECULATIVE:g}x"
            )
        yield f"At {_at(entry)} it is {times(ratio)} the best other, {entry['best_other']}. " + verdict(
            ratio >= OVER_BEST_OTHER, f"{OVER_BEST_OTHER:g}x"
        )
    for label in dict.fromkeys(entry["label"] for entry in findings["bounds"]):
        shares = [entry["share"] for entry in findings["bounds"] if entry["label"] == label]
        yield f"It reaches {spread(shares, percent)} of the speed where {label} what the target will write."
    yield (
        f"{findings['tokens']:,} tokens were generated in these runs; {findings['mismatches']} requests differ "
        f"from plain decoding of the target, and {findings['violations']} other promises were broken."
    )


def crowd(result: Row) -> Iterator[str]:
    """Latency and throughput of many clients at once."""
    findings = result["findings"]
    yield bullets(
        [
            *map(_crowd_finding, findings["settings"]),
            f"{_checked(findings)} The less busy verifier had at least {percent(findings['least_verifier_share'])} "
            "of the work.",
        ]
    )
    for load, field, what in (
        (LATENCY, "token_p50_ms", "A token's latency at the median, ms"),
        (SATURATED, "tokens_per_s", "Tokens a second"),
    ):
        own = [row for row in result["rows"] if row["load"] == load]
        clients = ", ".join(str(count) for count in dict.fromkeys(row["clients"] for row in own))
        yield f"{what}, with {clients} clients:"
        yield pivot(
            "strategy",
            own,
            down="strategy",
            across=lambda row: f"{row['profile']}, T {row['temperature']:g}",
            cell=lambda row, field=field: row.get(field),  # type: ignore[misc]
        )


def _crowd_finding(entry: Row) -> str:
    saved = entry["latency_reduction_percent"] / 100
    if entry["load"] == SATURATED:
        target = verdict(entry["throughput_ratio"] >= THROUGHPUT, f"{THROUGHPUT:g}x the throughput")
    else:
        target = verdict(saved >= LATENCY_SAVED, f"{percent(LATENCY_SAVED)} less latency")
    return (
        f"{entry['load'].capitalize()}, {entry['profile']}, temperature {entry['temperature']:g}: a token takes "
        f"{percent(abs(saved))} {'less' if saved >= 0 else 'more'} time at the median than with the best other "
        f"({entry['best_latency_of_others']}), and throughput is {times(entry['throughput_ratio'])} that of the "
        f"best other ({entry['best_throughput_of_others']}), {percent(entry['throughput_of_oracle'])} of that of a "
        f"coordinator that knows the text, {percent(entry['throughput_of_bound'])} of what verifiers that never "
        f"idle could do. {target}"
    )


def cooperation(result: Row) -> Iterator[str]:
    """Several drafters against the best single one."""
    findings = result["findings"]
    sentences = []
    for case in dict.fromkeys(entry["case"] for entry in findings["replay"]):
        own = [entry for entry in findings["replay"] if entry["case"] == case]
        ratios = [entry[name] for entry in own for name in ("lowest_ratio", "highest_ratio")]
        sentences.append(
            f"{case.capitalize()}: all drafters together have {spread(ratios, times)} the accepted tokens per "
            "round of the best single drafter in hindsight at an equal number of nodes, "
            f"{'more in every case' if min(ratios) > 1.0 else 'not more in every case'}."
        )
    yield bullets([*sentences, f"In the simulated runs {_checked(findings)}"])
    yield "Accepted tokens per round, replayed without time, over all budgets and temperatures:"
    yield pivot(
        "swarm",
        findings["replay"],
        down="swarm",
        across=lambda entry: str(entry["case"]),
        cell=lambda entry: spread((entry["lowest_ratio"], entry["highest_ratio"]), times),
    )
    if findings["simulation"]:
        yield "In the simulated swarm, the ratio of accepted tokens per round and that of speed:"
        yield pivot(
            "temperature",
            [{**row, "temperature": f"{row['temperature']:g}"} for row in findings["simulation"]],
            down="temperature",
            across=lambda row: str(row["case"]),
            cell=lambda row: f"{shown(row['ratio'])}, {shown(row['speedup_ratio'])}",
        )


def liars(result: Row) -> Iterator[str]:
    """The cost of a liar."""
    findings = result["findings"]
    costliest, late = findings["costliest"], findings["most_late_percent"]
    yield bullets(
        [
            f"The costliest liar ({costliest['added']}, {costliest['tokens_per_request']} tokens a request, "
            f"temperature {costliest['temperature']:g}) makes requests take {findings['most_percent']:.1f} % "
            f"longer; with one more honest drafter it is at most "
            f"{findings['most_percent_of_an_honest_one']:.1f} %.",
            *(
                [f"Of what comes late in a long request, liars cost at most {late:.1f} %."]
                if late is not None
                else []
            ),
            _checked(findings),
        ]
    )
    yield "How much longer requests take, in percent:"
    yield pivot(
        "added to the swarm",
        result["rows"],
        down="added",
        across=lambda row: f"{row['tokens_per_request']} tokens, T {row['temperature']:g}",
        cell=lambda row: f"{row['cost_percent']:.1f}",
    )


def routing(result: Row) -> Iterator[str]:
    """Routers on each kind of traffic."""
    yield bullets(
        f"On {entry['scenario']} traffic at temperature {entry['temperature']:g} `{entry['router']}` has "
        f"{percent(entry['share_of_best'])} of the accepted tokens per round of the best single drafter in "
        f"hindsight, {times(entry['ratio_to_best_rival'])} those of the best rival as published "
        f"({entry['best_rival']}) and {times(entry['ratio_to_best_rival_with_prior'])} those of the best rival "
        f"that is told the prompt's likelihood too ({entry['best_rival_with_prior']})."
        for entry in result["findings"]["against_rivals"]
    )
    yield "Accepted tokens per round, by the number of active drafters:"
    yield pivot(
        "router",
        [{**row, "router": f"{row['router']}, {row['active']}"} for row in result["rows"]],
        down="router",
        across=lambda row: f"{row['scenario']}, T {row['temperature']:g}",
        cell=lambda row: f"{row['accepted_per_round']:.2f}",
    )


def acceptance(result: Row) -> Iterator[str]:
    """The best drafter of each domain."""
    findings = result["findings"]
    yield bullets(
        [
            f"In {findings['domains_led_by_their_expert']} of {findings['domains']} cases (a domain at a "
            "temperature) the expert of the domain is the best drafter."
        ]
    )
    names = ("domain", "best", "first_choice", "generalist", "worst")
    yield table(
        ["T", *(words(name) for name in names)],
        [[f"{entry['temperature']:g}", *(entry[name] for name in names)] for entry in findings["by_domain"]],
    )


def scale(result: Row) -> Iterator[str]:
    """Growth with the number of nodes."""
    findings = result["findings"]
    largest, share = findings["largest"], findings["records_per_key_max"] / findings["records_per_key_limit"]
    finished = "every request finished" if findings["all_finished"] else "not every request finished"
    is_quick = findings["choosing_candidates"] >= CHOICE_CANDIDATES and findings["choosing_us"] < CHOICE_US
    yield bullets(
        [
            f"In the largest swarm, of {largest['nodes']:,} live nodes and {largest['clients']:,} clients that ask "
            f"at about the same time, {largest['tokens']:,} tokens were generated; in all swarms {finished}, and "
            f"{_checked(findings)}",
            "From the smallest swarm to the largest, what a client reads to find nodes grows as N to the power "
            f"{findings['client_bytes_read_exponent']:.2f}, what it streams as N to the power "
            f"{findings['stream_bytes_per_client_exponent']:.2f}.",
            f"The fullest key of the DHT held {findings['records_per_key_max']:.0f} records, {percent(share)} of "
            f"the {findings['records_per_key_limit']} it may hold.",
            f"Choosing a verifier and drafters among {findings['choosing_candidates']:,} candidates each takes "
            f"{findings['choosing_us']:.0f} us of real time on the machine that measured it. "
            + verdict(is_quick, f"below 1 ms at {CHOICE_CANDIDATES:,} candidates"),
            f"A decision of the strategy took {findings['strategy_decision_p50_us']:.0f} us (p50) and "
            f"{findings['strategy_decision_p95_us']:.0f} us (p95) of real time; virtual time charges "
            f"{findings['charged_per_write_us']:.0f} us for every write.",
        ]
    )
    names = (
        *("nodes", "clients", "finished", "tokens_per_s", "latency_p50_s", "latency_p95_s"),
        *("client_bytes_read", "stream_bytes_per_client", "records_per_key_max"),
    )
    yield table([words(name) for name in names], [[row.get(name) for name in names] for row in result["rows"]])


def load(result: Row) -> Iterator[str]:
    """Verdicts on a verifier under load, then one line a strategy."""
    findings = result["findings"]
    sentences = []
    for target in findings["targets"]:
        show = percent if target["what"] == "memory_growth" else lambda value: shown(float(value))
        told = f"{target['strategy']}, {words(target['what'])}: {show(target['measured'])}. "
        sentences.append(told + verdict(target["is_met"], f"at most {show(target['most'])}"))
    yield bullets([*sentences, f"{findings['near_ties']} more texts differ from a near tie on."])
    names = (
        *("strategy", "clients", "requests", "tokens_per_s", "between_tokens_p50_ms", "between_tokens_p99_ms"),
        *("first_token_p50_ms", "memory_end_mb", "pool_most_tokens"),
    )
    yield table([words(name) for name in names], [[row[name] for name in names] for row in result["rows"]])


def engine(result: Row) -> Iterator[str]:
    """Verdicts on the engine against transformers, then what was measured of each."""
    findings = result["findings"]
    yield bullets(
        [
            *(
                f"{target['model']}, {target['what']}: {times(target['ratio'])}. "
                + verdict(target["is_met"], f"{target['wanted']:g}x")
                for target in findings["targets"]
            ),
            f"Of {findings['compared']} texts and choices compared {findings['mismatches']} differ, and "
            f"{findings['near_ties']} more from a near tie on.",
            *(f"Left out: {entry['what']} ({entry['reason']})." for entry in result["skipped"]),
        ]
    )
    lines = []
    for row in result["rows"]:
        head = [row["model"], row["dtype"], row["part"]]
        if row["part"] == "bandwidth":
            share = f"{percent(row['share_of_limit'])} of the bandwidth, {row['requests']} requests"
            lines.append([*head, share, row["pass_ms"], "ms a pass"])
        elif row["part"] != "curve":
            field, unit = ("tokens_per_s", "tokens/s") if "tokens_per_s" in row else ("pass_ms", "ms a pass")
            lines += [[*head, name, figure, unit] for name, figure in row[field].items()]
    yield table(["model", "dtype", "measured", "by", "figure", "unit"], lines)


SECTIONS: Final[Mapping[str, Section]] = {
    "rtt": Section(
        "One request at a time, by round-trip time",
        rtt,
        (
            PageFigure("rtt", "Speedup against round-trip time", plots.speedup_by_rtt, "sweep"),
            PageFigure("ablation", "What each part brings", plots.ablation_bars, "ablation"),
        ),
    ),
    "crowd": Section(
        "Many requests at once",
        crowd,
        (
            PageFigure("crowd", "Latency of requests under load", plots.latencies),
            PageFigure("latency", "Distribution of latencies", plots.distribution),
        ),
    ),
    "cooperation": Section("Cooperation of drafters", cooperation),
    "liars": Section("Drafters that lie", liars),
    "routing": Section("Who should draft", routing),
    "acceptance": Section(
        "What the drafters know",
        acceptance,
        (PageFigure("acceptance", "Acceptance by drafter and domain", plots.acceptance_matrix),),
    ),
    "scale": Section("Large networks", scale, (PageFigure("scale", "Traffic and records by size", plots.growth),)),
    "load": Section("A verifier under load", load),
    "engine": Section("The engine against transformers", engine),
}
"""By the name of the experiment, in the order of the page."""
