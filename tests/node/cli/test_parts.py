"""Options of a model in parts: what they make, and what does not go with them."""

from typing import Any

import pytest

from cosine_node.cli import main
from cosine_node.serving import head, stage_node
from cosine_node.serving.node_options import NodeOptions
from cosine_node.stages.opening import StageSource
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The stages and heads that would be started; none is."""
    seen: list[Any] = []

    async def note(network: object, options: object, *_: Any) -> None:
        seen.append(options)
        raise UsageError("Nothing starts in this test.")

    monkeypatch.setattr(stage_node, "run_stage", note)
    monkeypatch.setattr(head, "run_head", note)
    return seen


def join(*arguments: str) -> None:
    with pytest.raises(SystemExit):
        main(("join", *arguments))


def test_a_stage_holds_what_it_is_told_or_what_the_swarm_lacks(started: list[Any]) -> None:
    join(
        "--role", "stage", "--model", "someone/model", "--layers", "8:16", "--memory", "6GiB", "--dtype", "bfloat16"
    )
    join("--role", "stage")
    named, auto = started
    assert isinstance(named, StageSource) and isinstance(auto, StageSource)
    assert (named.model, named.target, named.layers, named.memory) == (
        "someone/model",
        "someone/model",
        "8:16",
        "6GiB",
    )
    assert named.engine.dtype == "bfloat16"
    assert (auto.model, auto.layers, auto.memory, auto.requests) == ("zoo:target", "auto", "auto", 16)


def test_a_head_is_a_verifier(started: list[Any]) -> None:
    join("--role", "verifier", "--over-stages", "--model", "someone/model", "--max-requests", "4")
    [only] = started
    assert isinstance(only, NodeOptions)
    assert (only.role, only.source.model, only.max_requests) == (Role.VERIFIER, "someone/model", 4)
    assert only.runs_over_stages


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--role", "drafter", "--over-stages"), "--over-stages is for verifiers"),
        (("--role", "verifier", "--layers", "0:4"), "--layers and --memory are for --role stage"),
        (("--role", "drafter", "--memory", "1GiB"), "--layers and --memory are for --role stage"),
        (("--role", "stage", "--quantize", "int8"), "--quantize does not go with a model in parts"),
        (("--role", "stage", "--kv-memory", "1GiB"), "--kv-memory does not go with a model in parts"),
        (("--role", "stage", "--deterministic"), "--deterministic does not go with"),
        (("--role", "stage", "--engine", "llama"), "--engine llama does not go with"),
        (("--role", "stage", "--emulate", "60/6@10"), "--emulate does not go with"),
        (("--role", "stage", "--model", "a", "--model", "b"), "A stage serves one --model"),
        (("--role", "stage", "--model", "ngram"), "A stage holds the target model; ngram can only draft"),
        (("--role", "verifier", "--over-stages", "--dtype", "float16"), "--dtype does not go with"),
    ],
    ids=" ".join,
)
def test_what_does_not_go_together_is_refused_in_one_sentence(
    arguments: tuple[str, ...], said: str, started: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    join(*arguments)
    assert not started
    error = capsys.readouterr().err
    assert said in error and error.startswith("Error: ") and error.count("\n") == 1
