"""`cosine-node join`: the nodes that its options describe, and refusals."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cosine_engine.load_options import EngineKind
from cosine_engine.zoo import family
from cosine_node.serving import draft_role, head_role, stage_role, verify_role
from cosine_node.serving.options import DraftOptions, HeadOptions, NetworkOptions, StageOptions, VerifyOptions
from cosine_protocol.errors import UsageError
from cosine_protocol.records import Role
from tests.node.cli.conftest import Run

PORT = "/ip4/127.0.0.1/tcp/4001"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[tuple[NetworkOptions, Any]]:
    """The options of nodes, which are not started."""
    seen: list[tuple[NetworkOptions, Any]] = []

    async def note(network: NetworkOptions, options: Any, *_: Any) -> None:
        seen.append((network, options))
        raise UsageError("Nothing starts in this test.")

    monkeypatch.setattr(draft_role, "run_drafters", note)
    monkeypatch.setattr(verify_role, "run_verifier", note)
    monkeypatch.setattr(stage_role, "run_stage", note)
    monkeypatch.setattr(head_role, "run_head", note)
    return seen


def models(options: Sequence[DraftOptions]) -> list[str]:
    return [each.source.model for each in options]


def test_without_a_model_there_is_one_drafter(run: Run, started: list[Any]) -> None:
    run("join", "--role", "drafter")
    ((network, (only,)),) = started
    assert isinstance(only, DraftOptions)
    assert (only.source.model, only.source.target) == ("zoo:draft-general", "zoo:target")
    assert (network.metrics_port, only.source.engine.quantize) == (None, None)


def test_a_repeated_model_is_a_drafter_each_and_what_is_given_once_holds_for_all(
    run: Run, started: list[Any]
) -> None:
    several = "join --role drafter --model zoo:draft-code --model ngram --target zoo:target"
    shared = "--dtype bfloat16 --device cpu --quantize int8 --threads 2"
    run(*several.split())
    run(*several.split(), "--expertise", "law, code", *shared.split())
    (_, options), (_, equal) = started
    assert models(options) == ["zoo:draft-code", "ngram"]
    assert [each.source.target for each in options] == ["zoo:target"] * 2
    # What an embedded drafter is good at does not rub off on the others.
    assert [each.expertise for each in options] == [("code",), ()]
    for each in equal:
        engine = each.source.engine
        assert each.expertise == ("law", "code")
        assert (engine.dtype, engine.device, engine.quantize, engine.threads) == ("bfloat16", "cpu", "int8", 2)


def test_a_verifier_has_the_engine_of_its_model_unless_told_otherwise_and_may_be_deterministic(
    run: Run, started: list[Any]
) -> None:
    run("join", "--role", "verifier")
    line = "join --role verifier --engine llama --model zoo:target"
    run(*line.split())
    run("join", "--role", "verifier", "--deterministic")
    engines = [options.source.engine for _, options in started]
    assert [engine.kind for engine in engines] == [EngineKind.AUTO, EngineKind.LLAMA, EngineKind.AUTO]
    assert [engine.is_deterministic for engine in engines] == [False, False, True]
    assert models([options for _, options in started]) == ["zoo:target"] * 3


@pytest.mark.parametrize("several", [False, True])
def test_only_several_drafters_need_ports_of_their_own(run: Run, started: list[Any], several: bool) -> None:
    nodes = ("join", "--role", "drafter", "--model", "ngram", *(("--model", "ngram") * several))
    err = run(*nodes, "--host-maddr", PORT).err + run(*nodes, "--announce-maddr", PORT).err
    assert (f"cannot all listen on {PORT}" in err, "cannot share an --announce-maddr" in err) == (several, several)
    assert len(started) == (0 if several else 2)
    run(*nodes, "--host-maddr", "/ip4/127.0.0.1/tcp/0")
    assert started


def test_a_configuration_file_names_one_model_or_several_and_the_environment_too_between_spaces(
    run: Run, started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "cosine.toml"
    models_line = 'model = ["ngram", "zoo:draft-math"]'
    file.write_text(f'[join]\nrole = "drafter"\n{models_line}\nrelay = "{PORT}"\nmetrics_port = 9100\n')
    run("--config", str(file), "join")
    run("--config", str(file), "join", "--model", "zoo:draft-code")
    monkeypatch.setenv("COSINE_ROLE", "drafter")
    monkeypatch.setenv("COSINE_MODEL", "zoo:draft-code ngram")
    monkeypatch.setenv("COSINE_QUANTIZE", "int8")
    run("join")
    (network, options), (_, overridden), (_, by_environment) = started
    assert (models(options), network.relays) == (["ngram", "zoo:draft-math"], (PORT,))
    assert network.metrics_port == 9100
    assert models(overridden) == ["zoo:draft-code"]
    assert models(by_environment) == ["zoo:draft-code", "ngram"]
    assert by_environment[0].source.engine.quantize == "int8"


def test_a_stage_holds_what_it_is_told_or_what_the_swarm_lacks(run: Run, started: list[Any]) -> None:
    line = "join --role stage --model someone/model --layers 8:16 --memory 6GiB --dtype bfloat16"
    run(*line.split())
    run("join", "--role", "stage")
    run("join", "--role", "stage", "--no-share-weights")
    (_, named), (_, auto), (_, alone) = started
    assert auto.shares_weights and not alone.shares_weights
    assert isinstance(named, StageOptions)
    assert (named.source.model, named.source.engine.dtype) == ("someone/model", "bfloat16")
    assert (named.source.target, named.layers, named.memory) == ("someone/model", "8:16", "6GiB")
    assert (auto.source.model, auto.layers, auto.memory, auto.max_requests) == ("zoo:target", "auto", "auto", 16)


def test_a_target_that_ships_with_drafters_has_one_of_its_own(
    run: Run, started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A draft head reads all layers, so a head over stages runs the general drafter."""
    monkeypatch.setattr(family, "_smol_place", lambda name: tmp_path)
    for more in ("", "--over-stages", "--over-stages --draft-model none", "--engine llama"):
        run("join", "--role", "verifier", "--model", "zoo:smol-target", *more.split())
    own = [None if each.home is None else each.home.model for _, each in started]
    assert own == ["zoo:smol-eagle", "zoo:smol-general", None, None]


@pytest.mark.parametrize(("written", "after_s"), [("30m", 1800.0), ("90", 90.0), ("1.5h", 5400.0)])
def test_a_model_may_be_unloaded_after_a_time_without_work(
    run: Run, started: list[Any], written: str, after_s: float
) -> None:
    run("join", "--role", "drafter", "--model", "zoo:draft-code", "--unload-after", written)
    ((_, (only,)),) = started
    assert only.unload_after_s == after_s


def test_a_head_is_a_verifier(run: Run, started: list[Any]) -> None:
    line = "join --role verifier --over-stages --model someone/model --max-requests 4"
    run(*line.split())
    ((_, only),) = started
    assert isinstance(only, HeadOptions) and isinstance(only, VerifyOptions)
    assert (only.role, only.source.model, only.max_requests) == (Role.VERIFIER, "someone/model", 4)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("verifier --engine exo", "--engine must be auto, torch, llama or vllm"),
        ("stage --engine vllm", "--engine vllm does not go with"),
        ("drafter --deterministic", "--deterministic is for verifiers"),
        ("verifier --max-coordinated -1", "--max-coordinated 0 or more"),
        ("drafter --draft-model ngram", "--draft-model is for verifiers"),
        ("verifier --model zoo:target --model zoo:draft-code", "A verifier serves one --model"),
        ("drafter --over-stages", "--over-stages is for verifiers"),
        ("verifier --layers 0:4", "--layers and --memory are for --role stage"),
        ("stage --quantize int8", "--quantize does not go with a model in parts"),
        ("stage --engine llama", "--engine llama does not go with"),
        ("stage --model ngram", "A stage holds the target model; ngram can only draft"),
        ("verifier --over-stages --dtype float16", "--dtype does not go with"),
        ("verifier --unload-after soon", "a time such as 30m"),
        ("verifier --unload-after 0s", "a time such as 30m"),
        ("drafter --model ngram --unload-after 30m", "for models that this process holds"),
        ("stage --model zoo:target --unload-after 30m", "for whole models"),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_sentence(
    run: Run, started: list[Any], line: str, said: str
) -> None:
    told = run("join", "--role", *line.split())
    assert not started
    assert said in told.err and told.err.startswith("Error: ") and told.err.count("\n") == 1
