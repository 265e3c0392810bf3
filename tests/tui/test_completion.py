"""Completion of the prompt line: commands and options, never a prompt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cosine_p2p.strategy.registry import STRATEGIES
from cosine_tui.commands import COMMANDS
from cosine_tui.completion import complete, suggestion
from cosine_tui.prompt_line import OPTIONS


@pytest.mark.parametrize(
    ("line", "completed", "candidates"),
    [
        ("--te", "--temperature ", ("--temperature",)),
        ("--top", "--top-", ("--top-p", "--top-k")),
        ("--temperature 0.8 --str", "--temperature 0.8 --strategy ", ("--strategy",)),
        ("--chat --se", "--chat --seed ", ("--seed",)),
        ("--strategy cos", "--strategy cosine", ("cosine",)),
        ("--seed=7 --tok", "--seed=7 --tokens ", ("--tokens",)),
        ("/qu", "/quit", ("/quit",)),
        ("/fil", "/filter ", ("/filter",)),
        ("/temp", "/temperature ", ("/temperature",)),
        ("/sort lo", "/sort load", ("load",)),
        ("/chat o", "/chat o", ("on", "off")),
        ("--gen", "--generation-config ", ("--generation-config",)),
        ("/generation_config n", "/generation_config none", ("none",)),
    ],
)
def test_the_last_word_grows_as_far_as_is_certain(line: str, completed: str, candidates: tuple[str, ...]) -> None:
    found = complete(line)
    assert (found.line, found.candidates) == (completed, candidates)


@pytest.mark.parametrize(
    "line", ["", "Once", "Once --te", "--temperature 0.8 Once --te", "-- --te", "//te", "/filter te", "/nothing "]
)
def test_a_prompt_is_not_completed(line: str) -> None:
    assert complete(line).candidates == () and complete(line).line == line and suggestion(line) is None


def test_a_slash_alone_names_everything_and_so_do_two_dashes() -> None:
    assert {f"/{command.name}" for command in COMMANDS} < set(complete("/").candidates)
    assert complete("--").candidates == tuple(f"--{name}" for name in OPTIONS)
    assert complete("/strategy ").candidates == tuple(sorted(STRATEGIES))


def test_the_suggestion_is_the_first_candidate() -> None:
    assert suggestion("--te") == "--temperature"
    assert suggestion("/sort l") == "/sort load"
    assert suggestion("/sort load") is None


@given(st.text(alphabet="/-abcdefhkoprstwy =", max_size=24))
def test_completing_only_ever_adds(line: str) -> None:
    found = complete(line)
    assert found.line.lower().startswith(line.lower())
    assert complete(found.line).line.startswith(found.line)
