"""What `join` makes of its options: nodes, stages, heads and pupils; and what it refuses before any starts."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cosine_node.cli import main
from cosine_node.cli.join import DEFAULT_LEARN_MEMORY, Learning
from cosine_node.learning.stream_store import DEFAULT_BYTES
from cosine_node.models.engine_kind import EngineKind
from cosine_node.serving import head, node, stage_node
from cosine_node.serving.node_options import NetworkOptions, NodeOptions
from cosine_node.stages.opening import StageSource
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role

PORT = "/ip4/127.0.0.1/tcp/4001"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NetworkOptions, Sequence[NodeOptions]]]:
    """The nodes that would be started; none is."""
    seen: list[tuple[NetworkOptions, Sequence[NodeOptions]]] = []

    async def note(network: NetworkOptions, options: Sequence[NodeOptions], *_: Any) -> None:
        seen.append((network, options))
        raise UsageError("Nothing starts in this test.")

    monkeypatch.setattr(node, "run_nodes", note)
    return seen


def join(*arguments: str, config: Path | None = None) -> None:
    before = ("--config", str(config)) if config else ()
    with pytest.raises(SystemExit):
        main((*before, "join", *arguments))


def models(options: Sequence[NodeOptions]) -> list[str]:
    return [each.source.model for each in options]


def test_without_a_model_there_is_one_drafter(started: list[Any]) -> None:
    join("--role", "drafter")
    ((network, (only,)),) = started
    assert (only.role, only.source.model, only.source.target) == (Role.DRAFTER, "zoo:draft-general", "zoo:target")
    assert (network.metrics_port, only.source.engine.quantize) == (None, None)
    assert network.metrics_host == "127.0.0.1"


def test_a_repeated_model_is_a_drafter_each(started: list[Any]) -> None:
    join("--role", "drafter", "--model", "zoo:draft-code", "--model", "ngram", "--target", "zoo:target")
    ((_, options),) = started
    assert models(options) == ["zoo:draft-code", "ngram"]
    assert [each.source.target for each in options] == ["zoo:target"] * 2
    # What an embedded drafter is good at does not rub off on the others.
    assert [each.expertise for each in options] == [("code",), ()]


def test_what_is_given_once_holds_for_every_drafter(started: list[Any]) -> None:
    shared = ("--expertise", "law, code", "--dtype", "bfloat16", "--device", "cpu", "--quantize", "int8")
    join("--role", "drafter", "--model", "zoo:draft-code", "--model", "zoo:draft-math", *shared, "--threads", "2")
    ((_, options),) = started
    for each in options:
        engine = each.source.engine
        assert each.expertise == ("law", "code")
        assert (engine.dtype, engine.device, engine.quantize, engine.threads) == ("bfloat16", "cpu", "int8", 2)


def test_the_engine_is_found_by_the_model_unless_it_is_named(started: list[Any]) -> None:
    join("--role", "verifier")
    join("--role", "verifier", "--engine", "llama", "--model", "zoo:target")
    assert [options[0].source.engine.kind for _, options in started] == [EngineKind.AUTO, EngineKind.LLAMA]


def test_an_unknown_engine_is_refused(started: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    join("--role", "verifier", "--engine", "vllm")
    assert not started
    assert "--engine must be auto, torch or llama" in capsys.readouterr().err


def test_a_verifier_can_be_deterministic_and_is_not_by_itself(started: list[Any]) -> None:
    join("--role", "verifier")
    join("--role", "verifier", "--deterministic")
    assert [options[0].source.engine.is_deterministic for _, options in started] == [False, True]


def test_a_drafter_need_not_be_deterministic(started: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    join("--role", "drafter", "--deterministic")
    assert not started
    assert "--deterministic is for verifiers" in capsys.readouterr().err


def test_a_verifier_takes_one_model(started: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    join("--role", "verifier", "--model", "zoo:target", "--model", "zoo:draft-code")
    assert "A verifier serves one --model" in capsys.readouterr().err
    join("--role", "verifier", "--model", "zoo:target")
    ((_, options),) = started
    assert models(options) == ["zoo:target"]


@pytest.mark.parametrize("several", [False, True])
def test_only_several_drafters_need_ports_of_their_own(
    started: list[Any], capsys: pytest.CaptureFixture[str], several: bool
) -> None:
    more = ("--model", "ngram") * several
    join("--role", "drafter", "--model", "ngram", *more, "--host-maddr", PORT)
    join("--role", "drafter", "--model", "ngram", *more, "--announce-maddr", PORT)
    err = capsys.readouterr().err
    assert (f"cannot all listen on {PORT}" in err, "cannot share an --announce-maddr" in err) == (several, several)
    assert len(started) == (0 if several else 2)
    join("--role", "drafter", "--model", "ngram", *more, "--host-maddr", "/ip4/127.0.0.1/tcp/0")
    assert started


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('model = "zoo:draft-math"', ["zoo:draft-math"]),
        ('model = ["ngram", "zoo:draft-math"]', ["ngram", "zoo:draft-math"]),
    ],
)
def test_a_configuration_file_names_one_model_or_several(
    started: list[Any], tmp_path: Path, line: str, expected: list[str]
) -> None:
    file = tmp_path / "cosine.toml"
    file.write_text(f'[join]\nrole = "drafter"\n{line}\nrelay = "{PORT}"\nmetrics_port = 9100\n')
    join(config=file)
    join("--model", "zoo:draft-code", config=file)
    (network, options), (_, overridden) = started
    assert (models(options), network.relays, network.metrics_port) == (expected, (PORT,), 9100)
    assert models(overridden) == ["zoo:draft-code"]


def test_the_environment_names_models_between_spaces(started: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COSINE_ROLE", "drafter")
    monkeypatch.setenv("COSINE_MODEL", "zoo:draft-code ngram")
    monkeypatch.setenv("COSINE_QUANTIZE", "int8")
    join()
    ((_, options),) = started
    assert (models(options), options[0].source.engine.quantize) == (["zoo:draft-code", "ngram"], "int8")


@pytest.fixture
def started_parts(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The stages and heads that would be started; none is."""
    seen: list[Any] = []

    async def note(network: object, options: object, *_: Any) -> None:
        seen.append(options)
        raise UsageError("Nothing starts in this test.")

    monkeypatch.setattr(stage_node, "run_stage", note)
    monkeypatch.setattr(head, "run_head", note)
    return seen


def test_a_stage_holds_what_it_is_told_or_what_the_swarm_lacks(started_parts: list[Any]) -> None:
    join(
        "--role", "stage", "--model", "someone/model", "--layers", "8:16", "--memory", "6GiB", "--dtype", "bfloat16"
    )
    join("--role", "stage")
    named, auto = started_parts
    assert isinstance(named, StageSource) and isinstance(auto, StageSource)
    assert (named.model, named.target, named.layers, named.memory) == (
        "someone/model",
        "someone/model",
        "8:16",
        "6GiB",
    )
    assert named.engine.dtype == "bfloat16"
    assert (auto.model, auto.layers, auto.memory, auto.requests) == ("zoo:target", "auto", "auto", 16)


def test_a_head_is_a_verifier(started_parts: list[Any]) -> None:
    join("--role", "verifier", "--over-stages", "--model", "someone/model", "--max-requests", "4")
    [only] = started_parts
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
    arguments: tuple[str, ...], said: str, started_parts: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    join(*arguments)
    assert not started_parts
    error = capsys.readouterr().err
    assert said in error and error.startswith("Error: ") and error.count("\n") == 1


def parsed(
    *models: str, role: Role = Role.DRAFTER, learns: bool = True, memory: str = DEFAULT_LEARN_MEMORY
) -> int | None:
    return Learning(learn=learns, learn_memory=memory).kept_bytes(role, models)


def test_a_drafter_learns_only_where_it_is_told_to() -> None:
    assert parsed(learns=False) is None
    assert parsed(role=Role.VERIFIER, learns=False) is None
    assert parsed("zoo:draft-code") == DEFAULT_BYTES
    assert parsed(memory="1GiB") == 1 << 30


@pytest.mark.parametrize(
    ("changes", "models", "reason"),
    [
        ({"role": Role.VERIFIER}, (), "--learn is for drafters"),
        ({"role": Role.STAGE}, (), "--learn is for drafters"),
        ({}, ("zoo:draft-code", "ngram"), "ngram has no weights"),
        ({"learns": False, "memory": "1GiB"}, (), "add --learn"),
        ({"memory": "1MiB"}, (), "4MiB or more"),
        ({"memory": "0.5"}, (), "4MiB or more"),
        ({"memory": "auto"}, (), "4MiB or more"),
        ({"memory": "much"}, (), "--learn-memory takes"),
    ],
)
def test_what_does_not_go_with_learning_is_refused(
    changes: dict[str, object], models: tuple[str, ...], reason: str
) -> None:
    with pytest.raises(UsageError, match=reason):
        parsed(*models, **changes)  # type: ignore[arg-type]  # of several types
