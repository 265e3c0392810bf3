"""docs/huggingface.md names what is honoured, and as refused only what is."""

import re
from pathlib import Path

from cosine_p2p.huggingface.options import HONOURED, IGNORED, REFUSED

PAGE = (Path(__file__).parents[3] / "docs" / "huggingface.md").read_text("utf-8")
ARGUMENTS = {"input_ids", "inputs", "attention_mask", "generation_config", "streamer"}


def names(text: str) -> set[str]:
    return set(re.findall(r"`(\w+)`", text))


def test_the_table_is_what_is_honoured() -> None:
    rows = re.findall(r"^\| (`.+?) \|", PAGE, re.MULTILINE)
    assert set().union(*map(names, rows)) == HONOURED | ARGUMENTS


def test_what_it_says_of_the_rest_is_so() -> None:
    (rest,) = re.findall(r"^Options that only concern speed.*", PAGE, re.MULTILINE | re.DOTALL)
    ignored, _, refused = rest.partition("refused")
    assert names(ignored) <= IGNORED
    assert names(refused) - {"UsageError"} <= REFUSED
