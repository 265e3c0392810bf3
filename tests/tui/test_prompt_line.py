"""The prompt box's language: prompts, options, and one sentence for everything else."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol.errors import UsageError
from cosine_tui.prompt_line import OPTIONS, History, OptionChange, Options, PromptEntry, read_entry


def changed(line: str, options: Options | None = None) -> Options:
    entry = read_entry(line, options or Options())
    assert isinstance(entry, OptionChange)
    return entry.options


def test_text_is_a_prompt() -> None:
    assert read_entry("  Once upon a time ", Options()) == PromptEntry("Once upon a time")
    assert read_entry("   ", Options()) is None


def test_two_slashes_begin_a_prompt_with_a_slash() -> None:
    assert read_entry("//usr/bin", Options()) == PromptEntry("/usr/bin")


def test_options_change_one_by_one_and_hold() -> None:
    options = changed("/temperature 0.8")
    options = changed("/tokens 256", options)
    options = changed("/top_p 0.9", options)
    options = changed("/seed 7", options)
    options = changed("/chat on", options)
    options = changed("/strategy plain", options)
    assert options == Options(
        temperature=0.8, top_p=0.9, max_new_tokens=256, seed=7, strategy="plain", is_chat=True
    )
    assert options.summary() == "plain · temperature 0.8 · top-p 0.9 · 256 tokens · seed 7 · chat"
    assert changed("/seed random", options).seed is None
    assert changed("/reset", options) == Options()


@pytest.mark.parametrize("name", OPTIONS)
def test_every_example_can_be_typed(name: str) -> None:
    assert isinstance(read_entry(f"/{name} {OPTIONS[name]}", Options()), OptionChange)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/warmth 3", "There is no option /warmth"),
        ("/temperature", "/temperature needs a value, for example /temperature 0.8"),
        ("/temperature hot", "/temperature cannot be 'hot'"),
        ("/temperature nan", "/temperature cannot be 'nan'"),
        ("/temperature -1", "/temperature cannot be '-1'"),
        ("/top-p 0", "/top-p cannot be '0'"),
        ("/top-k -1", "/top-k cannot be '-1'"),
        ("/tokens 0", "/tokens cannot be '0'"),
        ("/seed -1", "/seed cannot be '-1'"),
        ("/chat maybe", "/chat cannot be 'maybe'"),
        ("/strategy magic", "There is no strategy 'magic'; choose one of cosine, "),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("/", r"\/")):
        read_entry(line, Options())


@given(st.text(max_size=40))
def test_nothing_that_is_typed_breaks_it(line: str) -> None:
    try:
        entry = read_entry(line, Options())
    except UsageError as error:
        assert line.strip().startswith("/") and str(error).endswith(".")
    else:
        assert entry is None or isinstance(entry, PromptEntry | OptionChange)


@given(st.sampled_from(sorted(OPTIONS)), st.text(max_size=12))
def test_an_option_takes_a_value_or_says_why_not(name: str, value: str) -> None:
    try:
        changed(f"/{name} {value}")
    except UsageError as error:
        assert str(error).endswith(".")


def test_the_history_goes_back_and_forth() -> None:
    history = History(limit=2)
    for line in ("one", "two", "two", "  ", "three"):
        history.add(line)
    assert [history.older(), history.older(), history.older()] == ["three", "two", None]
    assert [history.newer(), history.newer(), history.newer()] == ["three", "", ""]
