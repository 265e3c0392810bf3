"""docs/benchmarks.md and its figures, made from the JSON files of the experiments and nothing else."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from cosine_node.bench.markdown import paragraphs, shown, words
from cosine_node.bench.report_sections import SECTIONS
from cosine_protocol.errors import UsageError

Result = Mapping[str, Any]
INTRODUCTION: Final = """\
# Benchmarks

`cosine-node bench report` makes this page of the JSON files beside it. Each section names the command that writes
its file, which holds all rows, the setup, and the option values that rivals were tuned to. Strategies are compared
in virtual time: production client, drafter and verifier code over recorded generations of the embedded models.
**Devices and links are emulated**: 60/6 stands for a verifier and drafters whose passes take 60 and 6 ms at one
token. Equal inputs give equal results on any machine, whatever the number of processes. The engine alone is
measured in real time; there only ratios count, of rivals that took turns on one machine.

The rows of `cosine` and `pipeinfer` below were measured while a verifier could hold a pass for drafts, and drafters
of `cosine` followed a latency model and drafted below likely corrections. All three are gone since
([decision 8](decisions/0008-renewal-cycles.md), [decision 15](decisions/0015-fixed-depth.md)). Measured again
without them, 80 prompts each, `cosine` is 2.77, 2.87 and 2.92 times plain decoding at 20, 10 and 5 ms and
temperature 0, and 1.85, 1.96 and 1.97 times at 0.8."""
"""The page's own words; everything below them comes from the files."""
_FIELDS: Final = {"what", "command", "setup", "rows", "findings"}
"""The fields that every result has."""


def write_report(folder: Path) -> Path:
    """Write the page beside `folder` and the figures into it; the path of the page.

    Raises `UsageError` where there is no result, for a file that is none of this version, and without matplotlib.
    """
    results = read_results(folder)
    page = folder.with_name(f"{folder.name}.md")
    text = page_of(results, folder)
    for name, result in results.items():
        for figure in SECTIONS[name].figures:
            if figure.rows(result):
                figure.draw(figure.rows(result), folder / f"{figure.name}.svg")
    page.write_text(text, "utf-8")
    return page


def read_results(folder: Path) -> dict[str, Result]:
    """The results in a folder by name, in the order of the page. Raises `UsageError`."""
    results: dict[str, Result] = {}
    for name in SECTIONS:
        file = folder / f"{name}.json"
        if not file.is_file():
            continue
        try:
            result = json.loads(file.read_text("utf-8"))
        except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
            raise UsageError(f"The result {file} cannot be read: {error}.") from None
        if not isinstance(result, dict) or not result.keys() >= _FIELDS:
            raise UsageError(f"{file} is not the result of an experiment.")
        results[name] = result
    if not results:
        raise UsageError(f"There are no results in {folder}; run `cosine-node bench rtt --out {folder}` first.")
    return results


def page_of(results: Mapping[str, Result], folder: Path) -> str:
    """The page, with links into `folder`. Raises `UsageError` for a result of another version."""
    blocks = [INTRODUCTION]
    for name, result in results.items():
        section = SECTIONS[name]
        file = f"{folder.name}/{name}.json"
        try:
            figures = [figure for figure in section.figures if figure.rows(result)]
            blocks += [
                f"## {section.title}",
                f"{result['what']} All rows and the setup: [{name}.json]({file}).",
                f"```\n{result['command']}\n```",
                *(f"![{figure.caption}]({folder.name}/{figure.name}.svg)" for figure in figures),
                *section.blocks(result),
                _emulated(result["setup"]),
            ]
        except KeyError as missing:
            raise UsageError(f"{folder / name}.json has no {missing}; run the experiment again.") from None
    return paragraphs(blocks) + "\n"


def _emulated(setup: Mapping[str, Any]) -> str:
    """The emulated figures of a setup in one sentence; of cost curves only the names of their profiles."""
    told = []
    for key, value in setup.items():
        name = words(key.removeprefix("emulated").removeprefix("_"))
        if not key.startswith("emulated") or not value:
            continue
        if not isinstance(value, Mapping):
            told.append(f"{name} {shown(value) if not isinstance(value, list) else ', '.join(map(shown, value))}")
            continue
        simple = [f"{words(k)} {shown(v)}" for k, v in value.items() if not isinstance(v, Mapping | list)]
        told.append(f"{name} {', '.join(simple or value)}".strip())
    return f"Emulated: {'; '.join(told)}." if told else ""
