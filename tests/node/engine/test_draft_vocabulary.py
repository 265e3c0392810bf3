from pathlib import Path

import pytest

from cosine_node.engine.vocabulary import FILE_NAME, DraftVocabulary
from cosine_protocol.errors import UsageError


def test_tokens_are_numbered_in_its_order_and_all_others_are_the_reserved_id() -> None:
    vocabulary = DraftVocabulary((2, 5, 9))
    assert vocabulary.reserved_id == 3
    assert vocabulary.own_tokens([9, 2, 7, 5, 2]) == (2, 0, 3, 1, 0)


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    DraftVocabulary((0, 4, 49_151)).write(tmp_path)
    read = DraftVocabulary.read(tmp_path)
    assert read is not None
    assert read.target_ids == (0, 4, 49_151)


def test_a_folder_without_one_has_the_whole_vocabulary(tmp_path: Path) -> None:
    assert DraftVocabulary.read(tmp_path) is None


@pytest.mark.parametrize("text", ["[]", "[3, 3]", "[4, 1]", "[-1, 2]", "[1.5]", "[true, 2]", '{"1": 2}', "[1,"])
def test_a_file_that_is_no_rising_list_of_ids_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE_NAME).write_text(text, "utf-8")
    with pytest.raises(UsageError):
        DraftVocabulary.read(tmp_path)
