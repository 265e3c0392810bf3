"""Questions of JSON lines, and the prompts that are made of them."""

import json
import lzma
from pathlib import Path

import pytest

from cosine_protocol.errors import UsageError
from cosine_train.training.questions import OPENING_CHARACTERS, read_questions

CHAT = [
    {"role": "user", "content": "Add 1 and 2."},
    {"role": "assistant", "content": "3"},
    {"role": "user", "content": "And 4?"},
    {"role": "assistant", "content": "7"},
]


def write(file: Path, *records: object) -> Path:
    opened = lzma.open if file.suffix == ".xz" else open
    with opened(file, "wt", encoding="utf-8") as lines:
        lines.writelines(json.dumps(record) + "\n" for record in records)
    return file


def chats(count: int) -> list[dict[str, object]]:
    return [{"messages": [{"role": "user", "content": f"{number}?"}, CHAT[1]]} for number in range(count)]


@pytest.mark.parametrize("name", ["sums.jsonl", "sums.train.jsonl.xz"])
def test_a_conversation_is_cut_before_one_of_its_answers(tmp_path: Path, name: str) -> None:
    (question,) = read_questions(write(tmp_path / name, {"messages": CHAT}))
    assert question.asked in (tuple(CHAT[:1]), tuple(CHAT[:3]))
    assert question.domain == "sums"


def test_files_with_dev_in_their_names_are_held_out(tmp_path: Path) -> None:
    write(tmp_path / "a.train.jsonl", *chats(9))
    write(tmp_path / "a.dev.jsonl", {"text": "held out"})
    questions = read_questions(tmp_path)
    assert [question.asked for question in questions if question.is_held_out] == ["held out"]
    assert len(questions) == 10


def test_without_such_files_some_questions_are_held_out(tmp_path: Path) -> None:
    questions = read_questions(write(tmp_path / "a.jsonl", *chats(400), *chats(3)))
    assert len(questions) == 400, "what is asked twice counts once"
    assert 5 < sum(question.is_held_out for question in questions) < 40


def test_of_a_text_the_opening_is_asked(tmp_path: Path) -> None:
    for text in ("one two", "word " * 99):
        (question,) = read_questions(write(tmp_path / "a.jsonl", {"text": text}))
        assert isinstance(question.asked, str) and text.startswith(question.asked)
        assert len(question.asked) <= OPENING_CHARACTERS and question.asked.endswith(("two", "word"))


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((line, r"a\.jsonl") for line in ("[1]", "{", '"text"')),
        *((line, "no question") for line in ("{}", '{"messages": []}', '{"messages": "x"}', '{"text": 3}')),
        (json.dumps({"messages": [CHAT[1]]}), "no question"),
    ],
)
def test_lines_without_a_question_are_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / "a.jsonl").write_text(content, "utf-8")
    with pytest.raises(UsageError, match=reason):
        read_questions(tmp_path)
