"""The sections of docs/benchmarks.md on single requests: round-trip times, parts, bounds, acceptance."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cosine_node.bench.markdown import bullets, paragraphs, percent, table, times

Result = Mapping[str, Any]
Row = Mapping[str, Any]

FLOOR: Final = 0.98
OVER_SPECULATIVE: Final = 1.5
OVER_BEST_OTHER: Final = 1.25
LEVEL: Final = 0.99
LOOKUP: Final = (
    "Where the verifier copies from the text itself, with no network in between, as it does unless a client wants "
    "plain decoding or asks for every pass. Elsewhere here it does not, and all strategies have a drafter for it."
)


def rtt_section(result: Result) -> str:
    """Speed against the round-trip time, with what each strategy was tuned to."""
    findings = result["findings"]
    rows = result["rows"]
    return paragraphs(
        [
            bullets(_main_sentences(findings)),
            *(_speed_table(rows, temperature) for temperature in _temperatures(rows, "sweep")),
            _tuned_table(rows, findings),
            _more(rows),
            _profiles(rows),
            LOOKUP if _temperatures(rows, "own lookup") else "",
            *(_by_rtt(rows, "own lookup", temperature) for temperature in _temperatures(rows, "own lookup")),
            "### What each part brings",
            _parts(result),
            "### How far it is from what could be known",
            _bounds(findings),
        ]
    )


def _verdict(is_met: bool, target: str) -> str:
    return f"The target, {target}, is {'met' if is_met else 'not met'}."


def _main_sentences(findings: Mapping[str, Any]) -> Iterator[str]:
    lowest, closest = findings["lowest_speedup"], findings["closest"]
    yield (
        f"`cosine` is never below {times(lowest['speedup'])} plain decoding, at {_place(lowest)}; its worst single "
        f"prompt runs at {times(findings['worst_prompt_speedup'])}. "
        + _verdict(lowest["speedup"] >= FLOOR, f"{FLOOR:g}x everywhere")
    )
    yield (
        f"It is ahead of every other strategy at {findings['points_ahead']} of {findings['points']} points; the "
        f"smallest ratio to the best other is {times(closest['ratio'])} ({closest['best_other']}, at "
        f"{_place(closest)}). "
        + _verdict(closest["ratio"] >= LEVEL, "level with all of them or ahead everywhere, within 1 %")
    )
    for entry in findings["at_main_rtt"]:
        if entry["ratio_to_speculative"] is not None:
            yield (
                f"At {_place(entry)} it is {times(entry['ratio_to_speculative'])} tuned synchronous speculation. "
                + _verdict(entry["ratio_to_speculative"] >= OVER_SPECULATIVE, f"{OVER_SPECULATIVE:g}x")
            )
        yield (
            f"At {_place(entry)} it is {times(entry['ratio'])} the best other, {entry['best_other']}. "
            + _verdict(entry["ratio"] >= OVER_BEST_OTHER, f"{OVER_BEST_OTHER:g}x")
        )
    yield (
        f"{findings['tokens']:,} tokens were generated in these runs; {findings['mismatches']} requests differ "
        f"from plain decoding of the target, and {findings['violations']} other promises were broken."
    )


def _place(row: Row) -> str:
    return f"{row['rtt_ms']:g} ms and temperature {row['temperature']:g}"


def _where(row: Row) -> tuple[str, str]:
    return f"{row['rtt_ms']:g}", f"{row['temperature']:g}"


def _temperatures(rows: Sequence[Row], part: str) -> list[float]:
    return sorted({row["temperature"] for row in rows if row["part"] == part})


def _speed_table(rows: Sequence[Row], temperature: float) -> str:
    return _by_rtt(rows, "sweep", temperature)


def _by_rtt(rows: Sequence[Row], part: str, temperature: float) -> str:
    chosen = [row for row in rows if row["part"] == part and row["temperature"] == temperature]
    rtts = sorted({row["rtt_ms"] for row in chosen})
    speedups = {(row["strategy"], row["rtt_ms"]): row["speedup"] for row in chosen}
    strategies = dict.fromkeys(row["strategy"] for row in chosen)
    body = [[strategy, *(f"{speedups[strategy, rtt]:.2f}" for rtt in rtts)] for strategy in strategies]
    return f"Times as fast as plain decoding at temperature {temperature:g}, by RTT in ms:\n\n" + table(
        ["strategy", *(f"{rtt:g}" for rtt in rtts)], body
    )


def _tuned_table(rows: Sequence[Row], findings: Mapping[str, Any]) -> str:
    places = {(entry["rtt_ms"], entry["temperature"]) for entry in findings["at_main_rtt"]}
    chosen = [row for row in rows if row["part"] == "sweep" and (row["rtt_ms"], row["temperature"]) in places]
    return "In detail at the main round-trip time:\n\n" + table(
        [
            *("strategy", "T", "speedup", "worst prompt", "accepted per pass", "machine s per token"),
            *("bytes per token", "law", "verifier's policy", "options"),
        ],
        [
            [
                row["strategy"],
                f"{row['temperature']:g}",
                row["speedup"],
                row["worst_prompt_speedup"],
                row["accepted_tokens_per_round"],
                row["gpu_seconds_per_token"],
                row["bytes_per_token"],
                row["law"],
                row["policy"],
                row["options"] or "defaults",
            ]
            for row in chosen
        ],
    )


def _more(rows: Sequence[Row]) -> str:
    more = [row for row in rows if row["part"] == "more"]
    if not more:
        return ""
    return "With more machines than everybody else:\n\n" + table(
        ["strategy", "verifiers", "RTT ms", "T", "speedup"],
        [[row["strategy"], row["verifiers"], *_where(row), row["speedup"]] for row in more],
    )


def _profiles(rows: Sequence[Row]) -> str:
    beside = [row for row in rows if row["part"] == "profile" and row["strategy"] != "plain"]
    if not beside:
        return ""
    places = list(dict.fromkeys((row["profile"], *_where(row)) for row in beside))
    speedups = {(row["strategy"], (row["profile"], *_where(row))): row["speedup"] for row in beside}
    strategies = dict.fromkeys(row["strategy"] for row in beside)
    return "On other emulated machines (milliseconds of a pass of verifier and drafter, or devices):\n\n" + table(
        ["machines", "RTT ms", "T", *strategies],
        [[*place, *(speedups[strategy, place] for strategy in strategies)] for place in places],
    )


def _parts(result: Result) -> str:
    parts = result["findings"]["parts"]
    if not parts:
        return "Not measured."
    places = list(dict.fromkeys((entry["temperature"], entry["rtt_ms"]) for entry in parts))
    known = {(entry["label"], (entry["temperature"], entry["rtt_ms"])): entry for entry in parts}
    labels = dict.fromkeys((entry["order"], entry["label"]) for entry in parts)
    body = [
        [label, order, *(f"{known[label, p]['speedup']:.2f} ({known[label, p]['gain']:.3f})" for p in places)]
        for order, label in labels
    ]
    head = table(["", "order", *(f"T {t:g}, {rtt:g} ms" for t, rtt in places)], body)
    skipped = bullets(f"Not measured: {entry['label']} ({entry['reason']})." for entry in result.get("skipped", ()))
    return paragraphs(
        [
            "Speedup over plain decoding, and in brackets the factor a part brings: to what stands above it when "
            "parts are added, to everything else when one is left out.",
            head,
            skipped,
        ]
    )


def _bounds(findings: Mapping[str, Any]) -> str:
    if not findings["bounds"]:
        return "Not measured."
    return table(
        ["bound", "RTT ms", "T", "its speedup", "cosine's share of it"],
        [
            [entry["label"], *_where(entry), entry["speedup"], percent(entry["share"])]
            for entry in findings["bounds"]
        ],
    )


def acceptance_section(result: Result) -> str:
    """Who predicts which domain."""
    findings = result["findings"]
    sentence = (
        f"In {findings['domains_led_by_their_expert']} of {findings['domains']} cases (a domain at a temperature) "
        "the expert of the domain is the best drafter."
    )
    rows = result["rows"]
    return paragraphs(
        [
            bullets([sentence]),
            table(
                ["T", "domain", "best drafter", "first choice hits", "generalist", "worst drafter"],
                [
                    [
                        f"{e['temperature']:g}",
                        e["domain"],
                        e["best"],
                        e["first_choice"],
                        e["generalist"],
                        e["worst"],
                    ]
                    for e in findings["by_domain"]
                ],
            ),
            *(_acceptance_table(rows, temperature) for temperature in sorted({row["temperature"] for row in rows})),
        ]
    )


def _acceptance_table(rows: Sequence[Row], temperature: float) -> str:
    chosen = [row for row in rows if row["temperature"] == temperature]
    domains = sorted({row["domain"] for row in chosen})
    shares = {(row["drafter"], row["domain"]): row for row in chosen}
    body = [
        [drafter, *(_triple(shares[drafter, domain]) for domain in domains)]
        for drafter in sorted({row["drafter"] for row in chosen})
    ]
    return f"First choice / among four / among eight, temperature {temperature:g}:\n\n" + table(
        ["", *domains], body
    )


def _triple(row: Row) -> str:
    return " / ".join(f"{row[name]:.2f}" for name in ("first_choice", "among_4", "among_8"))
