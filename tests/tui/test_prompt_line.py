"""The prompt box's language: prompts, options, and one sentence for every error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_protocol.errors import UsageError
from cosine_protocol.records import GenerationDefaults
from cosine_tui.state.prompt_line import (
    COMMANDS,
    OPTIONS,
    CommandEntry,
    OptionChange,
    Options,
    PromptEntry,
    complete,
    read_entry,
    suggestion,
)


def changed(line: str, options: Options | None = None) -> Options:
    entry = read_entry(line, options or Options())
    assert isinstance(entry, OptionChange)
    return entry.options


def test_text_is_a_prompt() -> None:
    assert read_entry("  Once upon a time ", Options()) == PromptEntry("Once upon a time", Options())
    assert read_entry("   ", Options()) is None
    assert read_entry("//usr/bin", Options()) == PromptEntry("/usr/bin", Options())


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


def test_what_is_not_given_is_shown_as_the_model_has_it() -> None:
    published = GenerationDefaults(
        do_sample=True, temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.1, max_new_tokens=2048
    )
    assert Options().summary() == "cosine · greedy · 128 tokens"
    assert Options().summary(published) == (
        "cosine · temperature 0.7 · top-p 0.8 · top-k 20 · penalty 1.1 · 2048 tokens"
    )
    greedy = changed("--temperature 0 --tokens 9")
    assert greedy.summary(published) == "cosine · greedy · penalty 1.1 · 9 tokens"
    assert changed("/generation_config none").summary(published) == "cosine · greedy · 128 tokens"


def test_options_before_a_prompt_are_its_own() -> None:
    given = Options(top_k=4)
    entry = read_entry("--temperature 0.8 --tokens=9 --chat  Once  upon --a time", given)
    expected = Options(top_k=4, temperature=0.8, max_new_tokens=9, is_chat=True)
    assert entry == PromptEntry("Once  upon --a time", expected)
    assert read_entry("--max-new-tokens 9 x", given) == PromptEntry("x", Options(top_k=4, max_new_tokens=9))


def test_every_command_and_every_example_of_an_option_can_be_typed() -> None:
    for command in COMMANDS:
        entry = read_entry(f"/{command.name}  two words ", Options())
        assert entry == CommandEntry(command.name, "two words")
    for name, option in OPTIONS.items():
        assert isinstance(read_entry(f"/{name} {option.example}", Options()), OptionChange)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("/warmth 3", "There is no command /warmth"),
        ("--warmth 3", "There is no option --warmth"),
        ("--temperature", "--temperature needs a value, for example --temperature 0.8"),
        ("--temperature hot x", "--temperature cannot be 'hot'"),
        ("--", "There is no prompt behind --."),
        ("/temperature", "/temperature needs a value, for example /temperature 0.8"),
        ("/temperature -1", "/temperature cannot be '-1'"),
        ("/top-p 0", "/top-p cannot be '0'"),
        ("/tokens 0", "/tokens cannot be '0'"),
        ("/chat maybe", "/chat cannot be 'maybe'"),
        ("/strategy magic", "There is no strategy 'magic'; choose one of cosine, "),
    ],
)
def test_what_cannot_be_is_said_in_one_sentence(line: str, said: str) -> None:
    with pytest.raises(UsageError, match=said.replace("/", r"\/")):
        read_entry(line, Options())


@given(
    st.one_of(
        st.text(max_size=40),
        st.builds("/{} {}".format, st.sampled_from(sorted(OPTIONS)), st.text(max_size=12)),
    )
)
def test_nothing_that_is_typed_breaks_it(line: str) -> None:
    try:
        entry = read_entry(line, Options())
    except UsageError as error:
        assert line.strip().startswith(("/", "--")) and str(error).endswith(".")
    else:
        assert (entry is None) == (not line.strip())


@pytest.mark.parametrize(
    ("line", "completed", "candidates"),
    [
        ("--te", "--temperature ", ("--temperature",)),
        ("--top", "--top-", ("--top-p", "--top-k")),
        ("--temperature 0.8 --str", "--temperature 0.8 --strategy ", ("--strategy",)),
        ("--strategy pl", "--strategy plain", ("plain",)),
        ("--seed=7 --tok", "--seed=7 --tokens ", ("--tokens",)),
        ("/fil", "/filter ", ("/filter",)),
        ("/sort lo", "/sort load", ("load",)),
        ("/chat o", "/chat o", ("on", "off")),
        ("/generation_config n", "/generation_config none", ("none",)),
    ],
)
def test_the_last_word_grows_as_far_as_is_certain(line: str, completed: str, candidates: tuple[str, ...]) -> None:
    assert complete(line) == (completed, candidates)


@pytest.mark.parametrize(
    "line", ["", "Once", "Once --te", "--temperature 0.8 Once --te", "-- --te", "//te", "/filter te", "/nothing "]
)
def test_a_prompt_is_not_completed(line: str) -> None:
    assert complete(line) == (line, ()) and suggestion(line) is None


@given(st.text(alphabet="/-abcdefhkoprstwy =", max_size=24))
def test_completing_only_ever_adds(line: str) -> None:
    completed, _ = complete(line)
    assert completed.lower().startswith(line.lower()) and complete(completed)[0].startswith(completed)
