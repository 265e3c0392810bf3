"""docs/benchmarks.md and its figures, made from the JSON files of the experiments and nothing else."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from cosine_lab.report.markdown import Row, filled, shown, table, words
from cosine_lab.report.report_parts import Section
from cosine_lab.report.report_sections import SECTIONS
from cosine_protocol.errors import UsageError

INTRODUCTION: Final = """\
# Benchmarks

`cosine-node bench report` makes this page of the JSON files beside it. Each section names the command that writes
its file, which holds all rows, the setup, and the option values that rivals were tuned to. Strategies are compared
in virtual time: production client, drafter and verifier code over recorded generations of the embedded models.
**Devices and links are emulated**: 60/6 stands for a verifier and drafters whose passes take 60 and 6 ms at one
token. T is the temperature. Equal inputs give equal results on any machine, whatever the number of processes. What
stands here by the clock, and the engines alone, are measured in real time; there only ratios count, of rivals that
took turns on one machine."""
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
            if rows := figure.of(result):
                figure.draw(rows, folder / f"{figure.name}.svg")
    page.write_text(text, "utf-8")
    return page


def read_results(folder: Path) -> dict[str, Row]:
    """The results in a folder by name, in the order of the page. Raises `UsageError`."""
    results: dict[str, Row] = {}
    for file in (folder / f"{name}.json" for name in SECTIONS):
        if not file.is_file():
            continue
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


def page_of(results: Mapping[str, Row], folder: Path) -> str:
    """The page, with links into `folder`. Raises `UsageError` for a result of another version."""
    blocks = [INTRODUCTION]
    for name, result in results.items():
        try:
            blocks += _blocks(SECTIONS[name], result, f"{folder.name}/{name}.json")
        except KeyError as missing:
            raise UsageError(f"{folder / name}.json has no {missing}; run the experiment again.") from None
    return "\n\n".join(block for block in blocks if block) + "\n"


def section_of(name: str, result: Row, folder: Path) -> str:
    """The section of one result as it stands on the page, without figures."""
    blocks = _blocks(replace(SECTIONS[name], figures=()), result, f"{folder}/{name}.json")
    return "\n\n".join(block for block in blocks if block) + "\n"


def _blocks(section: Section, result: Row, file: str) -> Iterator[str]:
    """The paragraphs of a section: findings and figures first."""
    yield f"## {section.title}"
    yield f"{result['what']} `{result['command']}` writes [{Path(file).name}]({file}), with all rows and the setup."
    if lines := [line for finding in section.findings for line in finding.lines(result)]:
        yield table(["finding", "measured", "target", "met"], lines)
    for figure in section.figures:
        if figure.of(result):
            yield f"![{section.title}]({Path(file).parent}/{figure.name}.svg)"
    for part in section.tables:
        if rows := part.of(result):
            yield from (filled(part.caption, rows[0]), part.markdown(rows))
    yield _emulated(result["setup"])
    yield " ".join(f"Left out: {entry['what']} ({entry['reason']})." for entry in result.get("skipped", ()))


def _emulated(setup: Row) -> str:
    """The emulated figures of a setup in one sentence; of cost curves only the names of their profiles."""
    told = []
    for key, value in setup.items():
        if key.startswith("emulated") and value:
            name = words(key.removeprefix("emulated").removeprefix("_"))
            if isinstance(value, Mapping):
                simple = [f"{words(k)} {shown(v)}" for k, v in value.items() if not isinstance(v, Mapping)]
                value = simple or list(value)
            told.append(f"{name} {shown(value)}".strip())
    return f"Emulated: {'; '.join(told)}." if told else ""
