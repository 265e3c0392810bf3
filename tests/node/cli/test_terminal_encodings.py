"""Output and prompts on terminals that are not UTF-8."""

import sys
from io import BytesIO, TextIOWrapper

import pytest

from cosine_cli.generate import _read_stdin
from cosine_cli.start import main


@pytest.mark.parametrize(("encoding", "written"), [("cp1252", b"\xe9 ?"), ("ascii", b"? ?"), ("utf-8", None)])
def test_what_a_terminal_lacks_is_a_mark(
    encoding: str, written: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = BytesIO()
    monkeypatch.setattr(sys, "stdout", TextIOWrapper(shown, encoding=encoding))
    with pytest.raises(SystemExit):
        main(["--version"])
    sys.stdout.write("é 🙂")
    sys.stdout.flush()
    assert shown.getvalue().endswith("é 🙂".encode() if written is None else written)


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        ("é 🙂".encode(), "ascii", "é 🙂"),
        ("é".encode("cp1252"), "cp1252", "é"),
        ("\ufeffgo".encode(), "utf-8", "go"),
        (b"a\r\nb", "utf-8", "a\nb"),
        (b"a\xff", "utf-8", "a\udcff"),
    ],
)
def test_a_prompt_on_stdin_is_utf_8_or_what_the_terminal_writes(
    data: bytes, encoding: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(data), encoding=encoding))
    assert _read_stdin() == text
