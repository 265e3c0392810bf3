"""The sections of docs/benchmarks.md on the engine in real time and on a verifier under load."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from cosine_node.bench.markdown import bullets, paragraphs, percent, shown, table, times, words

Result = Mapping[str, Any]
Row = Mapping[str, Any]

LOAD_COLUMNS: Final = (
    "strategy",
    "clients",
    "requests",
    "tokens_per_s",
    "between_tokens_p50_ms",
    "between_tokens_p99_ms",
    "between_tokens_most_ms",
    "first_token_p50_ms",
    "first_token_most_ms",
    "memory_warm_mb",
    "memory_end_mb",
    "pool_most_tokens",
)


def engine_section(result: Result) -> str:
    """The verdict against the targets, then a table for each part."""
    rows, findings = result["rows"], result["findings"]
    return paragraphs(
        [
            bullets(
                [
                    *map(_engine_verdict, findings["targets"]),
                    f"Of {findings['compared']} texts and choices compared {findings['mismatches']} differ, and "
                    f"{findings['near_ties']} more from a near tie on.",
                    *(f"Left out: {entry['what']} ({entry['reason']})." for entry in result["skipped"]),
                ]
            ),
            *(_engine_table(part, [row for row in rows if row["part"] == part]) for part in _TABLES),
        ]
    )


def _engine_verdict(target: Row) -> str:
    verdict = "met" if target["is_met"] else "not met"
    return (
        f"{target['model']}, {target['what']}: {times(target['ratio'])}. "
        f"The target, {target['wanted']:g}x, is {verdict}."
    )


def _engine_table(part: str, rows: Sequence[Row]) -> str:
    if not rows:
        return ""
    title, headings, cells = _TABLES[part]
    return f"{title}:\n\n" + table(headings, [line for row in rows for line in cells(row)])


def _plain(row: Row) -> Iterator[list[Any]]:
    for name, tokens_per_s in row["tokens_per_s"].items():
        yield [row["model"], row["dtype"], row["prompt_tokens"], row["tokens"], name, tokens_per_s]


def _concurrent(row: Row) -> Iterator[list[Any]]:
    lengths = [_range(row["prompt_tokens"]), _range(row["tokens"])]
    for name, tokens_per_s in row["tokens_per_s"].items():
        yield [row["model"], row["dtype"], row["requests"], *lengths, name, tokens_per_s]
    if row["rival_error"]:
        yield [row["model"], row["dtype"], row["requests"], *lengths, "continuous batching", row["rival_error"]]


def _verification(row: Row) -> Iterator[list[Any]]:
    for name, pass_ms in row["pass_ms"].items():
        yield [
            row["model"],
            row["dtype"],
            row["requests"],
            _range(row["context_tokens"]),
            row["draft_tokens"],
            percent(row["padding_share"]),
            name,
            pass_ms,
        ]


def _curve(row: Row) -> Iterator[list[Any]]:
    passes = ", ".join(f"{tokens}: {shown(float(pass_ms))}" for tokens, pass_ms in row["pass_ms"].items())
    yield [row["model"], row["dtype"], passes, row["budget_tokens"]]


def _bandwidth(row: Row) -> Iterator[list[Any]]:
    yield [
        row["model"],
        row["dtype"],
        row["requests"],
        row["read_bytes"] / 1e9,
        row["copied_bytes_per_s"] / 1e9,
        row["limit_ms"],
        row["pass_ms"],
        percent(row["share_of_limit"]),
    ]


def _range(ends: Sequence[int]) -> str:
    return f"{ends[0]} to {ends[1]}"


_TABLES: Final[Mapping[str, tuple[str, list[str], Any]]] = {
    "plain": (
        "One request",
        ["model", "dtype", "prompt tokens", "output tokens", "by", "tokens per s"],
        _plain,
    ),
    "concurrent": (
        "Requests at once, of unequal length",
        ["model", "dtype", "requests", "prompt tokens", "output tokens", "by", "tokens per s"],
        _concurrent,
    ),
    "verification": (
        "A pass that verifies drafts over contexts of unequal length",
        ["model", "dtype", "requests", "context tokens", "draft tokens", "padding", "by", "pass ms"],
        _verification,
    ),
    "curve": (
        "A pass by its tokens, and the most a verifier takes in one",
        ["model", "dtype", "ms by tokens", "budget tokens"],
        _curve,
    ),
    "bandwidth": (
        "A pass of one token a request against reading the weights once",
        [
            "model",
            "dtype",
            "requests",
            "weights GB",
            "copies GB per s",
            "limit ms",
            "pass ms",
            "share of the limit",
        ],
        _bandwidth,
    ),
}
"""Title, headings and lines of each part's table, in the order of the page."""


def load_section(result: Result) -> str:
    """The verdict against the targets, then one line a strategy."""
    findings = result["findings"]
    return paragraphs(
        [
            bullets(
                [
                    *map(_load_verdict, findings["targets"]),
                    f"{findings['near_ties']} more texts differ from a near tie on.",
                ]
            ),
            table(
                [words(name) for name in LOAD_COLUMNS],
                [[row[name] for name in LOAD_COLUMNS] for row in result["rows"]],
            ),
        ]
    )


def _load_verdict(target: Row) -> str:
    verdict = "met" if target["is_met"] else "not met"
    show = percent if target["what"] == "memory_growth" else _figure
    return (
        f"{target['strategy']}, {words(target['what'])}: {show(target['measured'])}. "
        f"The target, at most {show(target['most'])}, is {verdict}."
    )


def _figure(value: float) -> str:
    return shown(float(value))
