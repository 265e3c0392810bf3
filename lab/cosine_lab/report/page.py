"""Renders docs/benchmarks.md from the template page.md and the results of experiments.

A placeholder in braces names a figure: `{rtt > rows > part=sweep & rtt_ms=20 > speedup}` is a field of the row of
rtt.json with these values as displayed. A placeholder for a list of entries, in a separate paragraph, becomes a
table. Sections whose results are missing are left out.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module, resources
from pathlib import Path
from textwrap import fill
from typing import Any, Final

from cosine_lab.report.plots import LinePlot, Row, shown, words
from cosine_protocol.errors import UsageError

DRAWN: Final = ("rtt", "ring")
"""The experiments whose figures are drawn; the page's other figures are kept as they are."""
MAX_COLUMNS: Final = 116
_FIELDS: Final = {"what", "command", "setup", "rows", "findings"}
"""The fields of every result."""
PLACE: Final = re.compile(r"\{([^{}]+)\}")
_NAMED: Final = re.compile(r"\]\(benchmarks/(\w+)\.json\)")
_FOLDER: Final = "](benchmarks/"
"""Start of the template's links into the folder of results."""


def write_report(folder: Path) -> Path:
    """Write the page next to `folder` and the figures into it; return the path of the page.

    Raises `UsageError` without results, for an invalid file, and without matplotlib.
    """
    results = read_results(folder)
    for name in results.keys() & set(DRAWN):
        figures: tuple[LinePlot, ...] = import_module(f"cosine_lab.experiments.{name}").FIGURES
        for figure in figures:
            if rows := figure.of(results[name]):
                figure.draw(rows, folder / f"{figure.name}.svg")
    page = folder.with_name(f"{folder.name}.md")
    page.write_text(page_of(results, folder.name), "utf-8")
    return page


def read_results(folder: Path) -> dict[str, Row]:
    """Return the results in a folder by name. Raises `UsageError`."""
    results: dict[str, Row] = {}
    for file in sorted(folder.glob("*.json")):
        try:
            result = json.loads(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UsageError(f"The result {file} cannot be read: {error}.") from None
        if not isinstance(result, dict) or not result.keys() >= _FIELDS:
            raise UsageError(f"{file} is not the result of an experiment.")
        results[file.stem] = result
    if not results:
        raise UsageError(f"There are no results in {folder}; run `cosine-node bench rtt --out {folder}` first.")
    return results


def template() -> str:
    """Return the template."""
    return (resources.files(__package__) / "page.md").read_text("utf-8")


def page_of(results: Mapping[str, Row], folder: str) -> str:
    """Return the page, with links into `folder` and "-" for missing figures."""
    text = text_for(results).replace(_FOLDER, f"]({folder}/")
    filled = PLACE.sub(lambda place: _filled(figure_at(place[1].replace("\n", " "), results)), text)
    return (
        "\n\n".join(block if block[0] in "#!|" else _wrapped(block) for block in filled.strip().split("\n\n"))
        + "\n"
    )


def text_for(results: Mapping[str, Row]) -> str:
    """Return the template without the sections whose results are missing."""
    introduction, *sections = re.split(r"(?m)^(?=## )", template())
    known = [section for section in sections if set(_NAMED.findall(section)) <= results.keys()]
    return "".join([introduction, *known])


def _filled(figure: Any) -> str:
    return "\n".join(table_of(figure)) if is_table(figure) else shown(figure)


def is_table(figure: Any) -> bool:
    """Return True for a list of entries with equal fields."""
    return (
        isinstance(figure, list)
        and bool(figure)
        and all(isinstance(entry, Mapping) and entry.keys() == figure[0].keys() for entry in figure)
    )


def table_of(entries: Sequence[Row]) -> list[str]:
    """Return the lines of a Markdown table with aligned columns."""
    rows = [
        [words(name) for name in entries[0]],
        *([shown(entry[name]) for name in entries[0]] for entry in entries),
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    head, *body = [
        f"| {' | '.join(text.ljust(width) for text, width in zip(row, widths, strict=True))} |" for row in rows
    ]
    return [head, f"|{'|'.join('-' * (width + 2) for width in widths)}|", *body]


def _wrapped(paragraph: str) -> str:
    return fill(" ".join(paragraph.split()), MAX_COLUMNS, break_long_words=False, break_on_hyphens=False)


def figure_at(place: str, results: Mapping[str, Row]) -> Any:
    """Return the figure that a placeholder names, or None."""
    value: Any = results
    for step in place.split(" > "):
        if isinstance(value, list):
            wanted = dict(pair.split("=", 1) for pair in step.split(" & "))
            value = next((entry for entry in value if _has(entry, wanted)), None)
        else:
            value = value.get(step) if isinstance(value, Mapping) else None
    return value


def _has(entry: Row, wanted: Mapping[str, str]) -> bool:
    return all(name in entry and shown(entry[name]) == text for name, text in wanted.items())


def lines_of(result: Row) -> Iterator[str]:
    """Yield the findings of an experiment as lines of text."""
    yield result["what"]
    for name, found in result["findings"].items():
        if is_table(found):
            yield from ("", f"{words(name)}:", *table_of(found), "")
        else:
            yield f"{words(name)}: {_said(found)}"


def _said(found: Any) -> str:
    if isinstance(found, Mapping):
        return ", ".join(f"{words(name)} {shown(value)}" for name, value in found.items())
    return shown(found)
