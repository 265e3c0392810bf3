"""`docs/protocol.md` matches the code: messages, limits, errors and vectors."""

import re
from pathlib import Path
from typing import Final

from cosine_protocol import (
    audit,
    discover,
    draft,
    fields,
    membership,
    records,
    request,
    stage,
    stream,
    verify,
    weights,
)
from cosine_protocol.audit import AuditVerdict
from cosine_protocol.codec import MESSAGES, TAGS
from cosine_protocol.draft import Draft, Mandate
from cosine_protocol.errors import ErrorCode
from cosine_protocol.fields import wire_fields_of
from cosine_protocol.membership import Certificate, Revocations
from cosine_protocol.records import NodeRecord
from cosine_protocol.stream import Account
from cosine_protocol.verify import Transcript
from tests.protocol.vectors import FOLDER

MODULES: Final = (audit, discover, draft, fields, membership, records, request, stage, stream, verify, weights)
NAMES: Final = {name: value for module in MODULES for name, value in vars(module).items()}
INNER: Final = {"MAX_BLOCK_NODES", "MAX_SEED"}
"""Bounds of single fields, which the document gives with them."""
TEXT: Final = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
ROWS: Final = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line[:1] == "|"
]
STRUCT: Final = re.compile(r"`([A-Z][A-Za-z]+)` is `\[([^`]*)\]`")
NAME: Final = re.compile(r"`([a-z_][a-z_0-9]*)`")


def _names(cls: type) -> list[str]:
    return [name for name, _ in wire_fields_of(cls)]


def test_messages_stand_there_with_their_fields_in_order() -> None:
    written = {(row[0], row[1]): NAME.findall(row[2]) for row in ROWS if row[0].isdecimal() and len(row) > 2}
    expected = {(str(tag), cls.__name__): _names(cls) for tag, cls in TAGS.items()}
    assert written.items() >= expected.items()


def test_bodies_and_structs_stand_there_with_their_fields_in_order() -> None:
    of_rows = [NAME.findall(row[3]) for row in ROWS if row[0].startswith("`") and len(row) > 3]
    for cls in (Draft, Account, Mandate, Transcript, AuditVerdict, Certificate, Revocations):
        assert _names(cls) in of_rows, cls
    structs = {name: written for name, written in STRUCT.findall(TEXT) if name in NAMES}
    assert len(structs) >= 19
    for name, written in structs.items():
        assert [part.split()[0] for part in written.split(", ")] == _names(NAMES[name]), name
    section = TEXT[TEXT.index("## 10.") : TEXT.index("## 11.")]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert NAME.findall(" ".join(cells)) == _names(NodeRecord)


def test_limits_errors_protocols_and_vectors_stand_there() -> None:
    section = TEXT[TEXT.index("## 11.") : TEXT.index("## 12.")]
    written = re.findall(r"\| `([A-Z_]+)` \| (\S+) \|", section)
    values = {name: float(value.replace(",", "")) for name, value in written}
    assert values.items() <= NAMES.items()
    assert {name for name in NAMES if re.match("MAX_|MIN_", name)} <= values.keys() | INNER
    assert [(code.value, code.name) for code in ErrorCode] == [
        (int(row[0]), row[1]) for row in ROWS if row[0].isdecimal() and row[1].isupper()
    ]
    for name in (*MESSAGES, *(path.name for path in FOLDER.iterdir())):
        assert f"`{name}`" in TEXT
