"""docs/benchmarks.md: the template beside this module, filled in with figures from the results of experiments.

A place in braces names one figure: `{rtt > rows > part=sweep & rtt_ms=20 > speedup}` is the field of the one row of
rtt.json that has these values as they are shown. One that names a list of entries, in a paragraph of its own, is a
table. A section stands on the page where all results that it names are in the folder.
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
"""The experiments with figures; those of others that are on the page were drawn once."""
MAX_COLUMNS: Final = 116
_FIELDS: Final = {"what", "command", "setup", "rows", "findings"}
"""The fields that every result has."""
PLACE: Final = re.compile(r"\{([^{}]+)\}")
_NAMED: Final = re.compile(r"\]\(benchmarks/(\w+)\.json\)")
_FOLDER: Final = "](benchmarks/"
"""Links of the template into the folder of results."""


def write_report(folder: Path) -> Path:
    """Write the page beside `folder` and the figures into it; the path of the page.

    Raises `UsageError` where there is no result, for a file that is none, and without matplotlib.
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
    """The results in a folder by name. Raises `UsageError`."""
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
    """The page with places for its figures."""
    return (resources.files(__package__) / "page.md").read_text("utf-8")


def page_of(results: Mapping[str, Row], folder: str) -> str:
    """The page, with links into `folder`; "-" stands for a figure that a result does not have."""
    text = text_for(results).replace(_FOLDER, f"]({folder}/")
    filled = PLACE.sub(lambda place: _filled(figure_at(place[1].replace("\n", " "), results)), text)
    return (
        "\n\n".join(block if block[0] in "#!|" else _wrapped(block) for block in filled.strip().split("\n\n"))
        + "\n"
    )


def text_for(results: Mapping[str, Row]) -> str:
    """The template without the sections whose results are not there."""
    introduction, *sections = re.split(r"(?m)^(?=## )", template())
    known = [section for section in sections if set(_NAMED.findall(section)) <= results.keys()]
    return "".join([introduction, *known])


def _filled(figure: Any) -> str:
    return "\n".join(table_of(figure)) if is_table(figure) else shown(figure)


def is_table(figure: Any) -> bool:
    """True for a list of entries that all have the same fields."""
    return (
        isinstance(figure, list)
        and bool(figure)
        and all(isinstance(entry, Mapping) and entry.keys() == figure[0].keys() for entry in figure)
    )


def table_of(entries: Sequence[Row]) -> list[str]:
    """The lines of a table in Markdown, its columns as wide as what stands in them."""
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
    """The figure that a place of the template names, or None."""
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
    """What an experiment found, for people at a terminal."""
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
