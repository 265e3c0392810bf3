import json
import lzma
from pathlib import Path

import pytest

from cosine_node.training.questions import OPENING_CHARACTERS, Question, in_turns, read_questions
from cosine_protocol.errors import UsageError

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
    assert (question.asked, question.follows) in ((tuple(CHAT[:1]), "3"), (tuple(CHAT[:3]), "7"))
    assert question.domain == "sums"


def test_a_conversation_that_waits_for_its_answer_is_asked_whole(tmp_path: Path) -> None:
    (question,) = read_questions(write(tmp_path / "a.jsonl", {"messages": CHAT[:1], "domain": "own"}))
    assert question == Question("own", tuple(CHAT[:1]), is_held_out=question.is_held_out)


def test_of_a_text_the_opening_is_asked(tmp_path: Path) -> None:
    (short, *_), (long, *_) = (
        [read_questions(write(tmp_path / "a.jsonl", {"text": text}))[0].asked] for text in ("one two", "word " * 99)
    )
    assert short == "one two"
    assert isinstance(long, str)
    assert len(long) <= OPENING_CHARACTERS
    assert long.endswith("word")


def test_the_rest_of_a_text_follows(tmp_path: Path) -> None:
    text = "word " * 99
    (question,) = read_questions(write(tmp_path / "a.jsonl", {"text": text}))
    assert isinstance(question.asked, str)
    assert question.asked + question.follows == text


def test_files_with_dev_in_their_names_are_held_out(tmp_path: Path) -> None:
    write(tmp_path / "a.train.jsonl", *chats(9))
    write(tmp_path / "a.dev.jsonl", {"text": "held out"})
    questions = read_questions(tmp_path)
    assert [question.asked for question in questions if question.is_held_out] == ["held out"]
    assert len(questions) == 10


def test_without_such_files_some_questions_are_held_out(tmp_path: Path) -> None:
    questions = read_questions(write(tmp_path / "a.jsonl", *chats(400)))
    assert 5 < sum(question.is_held_out for question in questions) < 40


def test_a_question_that_is_asked_twice_counts_once(tmp_path: Path) -> None:
    assert len(read_questions(write(tmp_path / "a.jsonl", *chats(3), *chats(3)))) == 3


def test_domains_take_turns() -> None:
    questions = [Question(domain, text) for domain, text in (("a", "1"), ("a", "2"), ("a", "3"), ("b", "4"))]
    assert [question.domain for question in in_turns(questions)] == ["a", "b", "a", "a"]


@pytest.mark.parametrize("line", ["[1]", "{", '"text"'])
def test_a_line_that_is_no_object_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "a.jsonl").write_text(line, "utf-8")
    with pytest.raises(UsageError, match=r"a\.jsonl"):
        read_questions(tmp_path)


@pytest.mark.parametrize("record", [{}, {"messages": []}, {"messages": "x"}, {"messages": [CHAT[1]]}, {"text": 3}])
def test_texts_without_a_question_are_refused(tmp_path: Path, record: object) -> None:
    with pytest.raises(UsageError, match="no question"):
        read_questions(write(tmp_path / "a.jsonl", record))


def test_a_folder_without_texts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="No texts"):
        read_questions(tmp_path)


def test_a_damaged_archive_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl.xz").write_bytes(b"not compressed")
    with pytest.raises(UsageError, match="cannot be read"):
        read_questions(tmp_path)
