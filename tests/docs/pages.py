"""Commands, programs and links of the README and the pages of docs/."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = ROOT / "docs"
PAGES: Final = (ROOT / "README.md", ROOT / "lab" / "README.md", *sorted(DOCS.rglob("*.md")))

_FENCED: Final = re.compile(r"^```([\w-]*)[^\n]*\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_LINK: Final = re.compile(r"!?\[[^\]\n]*(?:\n[^\]\n]*)?\]\(([^)\s]+)\)")
_HEADING: Final = re.compile(r"^#+ (.+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, "" if none is stated, and the line it begins at."""

    page: Path
    line: int
    language: str
    text: str

    @property
    def is_commands(self) -> bool:
        return self.language == "sh"

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command without its comment."""

    block: Block
    text: str

    def __str__(self) -> str:
        return f"{self.block}: {self.text}"


def blocks_of(page: Path) -> list[Block]:
    content = page.read_text("utf-8")
    return [
        Block(page, content.count("\n", 0, found.start()) + 1, found[1], found[2])
        for found in _FENCED.finditer(content)
    ]


def commands_of(block: Block) -> Iterator[Command]:
    """The commands of a block; a quoted argument may run over lines. Raises `ValueError` for an open quote."""
    pending = ""
    for line in block.text.splitlines():
        pending = f"{pending}\n{line}" if pending else line
        if not _is_open(pending):
            if text := _without_comment(pending).strip():
                yield Command(block, text)
            pending = ""
    if pending:
        raise ValueError(f"{block} ends within a command")


def _is_open(text: str) -> bool:
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return text.endswith("\\")


def _without_comment(text: str) -> str:
    for found in re.finditer(r"(?:^|\s)#", text):
        if not _is_open(text[: found.start()]):
            return text[: found.start()]
    return text


def all_commands() -> list[Command]:
    found = [
        command
        for page in PAGES
        for block in blocks_of(page)
        if block.is_commands
        for command in commands_of(block)
    ]
    return list({command.text: command for command in reversed(found)}.values())[::-1]


def python_of(page: Path) -> str:
    return "\n\n".join(block.text for block in blocks_of(page) if block.language == "python")


def links_of(page: Path) -> list[str]:
    return [found[1] for found in _LINK.finditer(_FENCED.sub("", page.read_text("utf-8")))]


def inline_of(page: Path) -> list[str]:
    return re.findall(r"`([^`]+)`", _FENCED.sub("", page.read_text("utf-8")))


def anchors_of(page: Path) -> set[str]:
    prose = _FENCED.sub("", page.read_text("utf-8"))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(prose)}
