"""`docs/protocol.md` names what the code has: messages with their fields in order, limits, errors, vectors."""

import re
from pathlib import Path
from typing import Final

import pytest

from cosine_protocol import limits
from cosine_protocol import messages as m
from cosine_protocol.errors import ErrorCode
from cosine_protocol.fields import wire_fields_of
from cosine_protocol.likelihoods import Likelihood, LikelyToken
from cosine_protocol.manifest import Manifest, ManifestPart, ManifestTensor
from cosine_protocol.protocols import MESSAGES, TAGS
from cosine_protocol.records import GenerationDefaults, NodeRecord, StageOffer
from cosine_protocol.request import AskedLogprobs, Constraint, Request, Shaping, TokenBias
from cosine_protocol.stage_messages import FedRow, FeedPart, PartTrace, RowAnswer, TokenEstimate
from tests.protocol.vectors import FOLDER

TEXT: Final = (Path(__file__).parents[2] / "docs" / "protocol.md").read_text(encoding="utf-8")
ROWS: Final = [
    [cell.strip() for cell in line.strip("|").split("|")] for line in TEXT.splitlines() if line[:1] == "|"
]
NAME: Final = re.compile(r"`([a-z_][a-z_0-9]*)`")


def _names(cls: type) -> list[str]:
    return [name for name, _ in wire_fields_of(cls)]


@pytest.mark.parametrize(("tag", "cls"), TAGS.items(), ids=lambda value: getattr(value, "__name__", None))
def test_a_message_stands_there_with_its_fields_in_order(tag: int, cls: type) -> None:
    (row,) = [row for row in ROWS if row[:2] == [str(tag), cls.__name__]]
    assert NAME.findall(row[2]) == _names(cls)


BODIES: Final = {
    "fragment": m.Draft,
    "final": m.Account,
    "mandate": m.Mandate,
    "transcript": m.Transcript,
    "audit": m.AuditVerdict,
    "member": m.Certificate,
    "revoked": m.Revocations,
}


@pytest.mark.parametrize(("kind", "cls"), BODIES.items())
def test_a_signed_body_stands_there_with_its_fields_in_order(kind: str, cls: type) -> None:
    (row,) = [row for row in ROWS if row[0] == f"`{kind}`"]
    assert NAME.findall(row[3]) == _names(cls)


@pytest.mark.parametrize(
    "cls",
    [
        Request,
        Constraint,
        AskedLogprobs,
        Likelihood,
        LikelyToken,
        Shaping,
        TokenBias,
        m.PassStats,
        GenerationDefaults,
        m.NetworkCoordinate,
        StageOffer,
        FedRow,
        RowAnswer,
        TokenEstimate,
        Manifest,
        ManifestPart,
        ManifestTensor,
        FeedPart,
        PartTrace,
    ],
)
def test_a_nested_struct_stands_there_with_its_fields_in_order(cls: type) -> None:
    found = re.search(rf"`{cls.__name__}` is `\[([^`]*)\]`", TEXT)
    assert found is not None
    assert [part.split()[0] for part in found[1].split(", ")] == _names(cls)


def test_the_record_stands_there_with_its_fields_in_order() -> None:
    section = TEXT[TEXT.index("## 10.") : TEXT.index("## 11.")]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert NAME.findall(" ".join(cells)) == _names(NodeRecord)


def test_every_limit_stands_there_with_its_value() -> None:
    known = {name: value for name, value in vars(limits).items() if name.isupper()}
    section = TEXT[TEXT.index("## 11.") : TEXT.index("## 12.")]
    written = re.findall(r"\| `([A-Z_]+)` \| (\S+) \|", section)
    assert {name: float(value.replace(",", "")) for name, value in written} == known


def test_every_error_code_stands_there() -> None:
    assert [(code.value, code.name) for code in ErrorCode] == [
        (int(row[0]), row[1]) for row in ROWS if row[0].isdecimal() and row[1].isupper()
    ]


def test_every_protocol_and_vector_file_stands_there() -> None:
    for name in (*MESSAGES, *(path.name for path in FOLDER.iterdir())):
        assert f"`{name}`" in TEXT
