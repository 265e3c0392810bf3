"""`cosine-node generate`: options, output, tools, and the model's generation config."""

import json
import random
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from cosine_lab.emulation.letter_codec import LetterCodec
from cosine_lab.simulation.swarm import SimulatedSwarm
from cosine_node.cli import asking
from cosine_node.cli.generate import config_lines
from cosine_node.engine.curve import CostCurve
from cosine_p2p import network
from cosine_p2p.access import Access
from cosine_p2p.client import Swarm
from cosine_p2p.request.results import AppliedConfig
from cosine_p2p.text.target import Target
from cosine_protocol.records import GenerationDefaults
from cosine_protocol.request import Sampling
from tests.cosine_p2p.samples import identity_of
from tests.cosine_p2p.test_blocking import InProcess
from tests.node.cli.conftest import Run
from tests.swarm.reference import plain_stream, prompt_of, target_engine
from tests.swarm.tool_letters import END, ToolLetters, calling_engine

PROMPT = prompt_of(random.Random("command"))
CHAT = GenerationDefaults(
    do_sample=True, temperature=0.9, repetition_penalty=1.2, max_new_tokens=9, not_honoured=("num_beams",)
)


@pytest.fixture
def _swarm(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    """A simulated swarm whose target has a generation config."""

    async def join() -> Swarm:
        swarm = await SimulatedSwarm(one_way_s=0.0, generation_defaults=CHAT).__aenter__()
        await swarm.verifier(target_engine(), curve=CostCurve(((1, 0.0005), (32, 0.0006))))
        return InProcess(swarm)

    monkeypatch.setattr(sys.modules["cosine_node.cli.asking"], "joining_once", lambda *_, **__: join)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


@pytest.mark.usefixtures("_swarm")
def test_the_models_own_generation_config_is_applied_overridden_and_left_out(run: Run) -> None:
    def generated(*options: str) -> dict[str, Any]:
        told = run("generate", PROMPT, "--seed", "5", "--json", *options)
        assert told.code == 0
        done: dict[str, Any] = json.loads(told.out)
        return done

    by_default = generated()
    sampling = Sampling(temperature=0.9, repetition_penalty=1.2, seed=5)
    assert by_default["text"] == LetterCodec().decode(plain_stream(PROMPT, sampling, tokens=9))
    assert by_default["generation_config"] == {
        "options": {"temperature": 0.9, "repetition_penalty": 1.2, "max_new_tokens": 9},
        "not_honoured": ["num_beams"],
    }
    greedy = generated("--temperature", "0", "--repetition-penalty", "1", "--max-new-tokens", "7")
    assert greedy["text"] == LetterCodec().decode(plain_stream(PROMPT, Sampling(), tokens=7))
    assert greedy["generation_config"]["options"] == {}
    without = generated("--generation-config", "none")
    assert without["text"] == LetterCodec().decode(plain_stream(PROMPT, Sampling(), tokens=128))
    assert without["generation_config"] == {"options": {}, "not_honoured": []}


@pytest.mark.usefixtures("_swarm")
def test_the_summary_counts_every_token_of_the_text_by_whose_it_is(run: Run) -> None:
    told = run("generate", PROMPT, "--max-new-tokens", "24", "--generation-config", "none").err
    found = re.search(r"; tokens by origin: (.*target alone .*); finished by length", told)
    assert found is not None and sum(map(int, re.findall(r"\d+", found[1]))) == 24


@pytest.mark.usefixtures("_swarm")
def test_log_probabilities_are_told_in_json_alone(run: Run) -> None:
    options = ("--max-new-tokens", "5", "--generation-config", "none", "--logprobs", "2")
    told = run("generate", PROMPT, *options)
    assert (told.code, "--logprobs requires --json" in told.err) == (2, True)
    done = json.loads(run("generate", PROMPT, *options, "--json").out)
    assert [each["token_id"] for each in done["logprobs"]] == done["token_ids"]
    assert all(len(each["top"]) == 2 and each["logprob"] < 0 for each in done["logprobs"])
    assert done["prompt_logprobs"] == []


@pytest.mark.usefixtures("_swarm")
def test_what_came_of_a_prediction_is_told(run: Run, tmp_path: Path) -> None:
    expected = LetterCodec().decode(plain_stream(PROMPT, Sampling(), tokens=24))
    file = tmp_path / "expected.txt"
    file.write_text(expected[:20] + "1234", "utf-8")
    told = run(
        "generate", PROMPT, "--max-new-tokens", "24", "--generation-config", "none", "--prediction", str(file)
    )
    assert told.out.strip() == expected
    found = re.search(r"of 24 predicted tokens ([0-9]+) came", told.err)
    assert found is not None and int(found[1]) >= 20


@pytest.mark.usefixtures("_swarm")
@pytest.mark.parametrize("is_terminal", [True, False])
def test_text_that_would_steer_a_terminal_does_not_reach_it(
    run: Run, monkeypatch: pytest.MonkeyPatch, is_terminal: bool
) -> None:
    monkeypatch.setattr(LetterCodec, "decode", lambda self, tokens: "\x1b[2J" * len(tokens))
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal)
    assert (
        run("generate", PROMPT, "--max-new-tokens", "3", "--generation-config", "none").out
        == (("\ufffd" if is_terminal else "\x1b") + "[2J") * 3 + "\n"
    )


PEER_ID = identity_of(1).peer_id
TCP = f"/ip4/192.0.2.1/tcp/4001/p2p/{PEER_ID}"
QUIC = f"/ip4/192.0.2.1/udp/4001/quic-v1/p2p/{PEER_ID}"


@pytest.mark.parametrize(
    ("maddrs", "transport"),
    [
        ((TCP,), "light"),
        ((TCP, "nonsense"), "light"),
        ((TCP, QUIC), None),
        ((f"/dnsaddr/peers.example/p2p/{PEER_ID}",), None),
    ],
)
def test_the_environment_and_the_installation_decide_on_the_transport_then_the_addresses(
    monkeypatch: pytest.MonkeyPatch, maddrs: tuple[str, ...], transport: str | None
) -> None:
    seen: list[Any] = []
    monkeypatch.setattr(network, "joining", lambda *_, transport, **__: seen.append(transport))
    monkeypatch.setattr(asking, "find_spec", lambda name: name)
    asking.joining_once(maddrs, Access())
    monkeypatch.setenv("COSINE_TRANSPORT", "full")
    asking.joining_once(maddrs, Access(), Target("name", folder=Path("folder")))
    monkeypatch.delenv("COSINE_TRANSPORT")
    monkeypatch.setattr(asking, "find_spec", lambda _: None)
    asking.joining_once(maddrs, Access())
    assert seen == [transport, None, None]


TOOLS = [{"type": "function", "function": {"name": "use", "parameters": {"type": "object", "properties": {}}}}]


@pytest.mark.parametrize("as_json", [False, True])
def test_tools_of_a_file_are_called_and_the_calls_printed(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, as_json: bool
) -> None:
    async def join() -> Swarm:
        swarm = await SimulatedSwarm(one_way_s=0.0, codec=ToolLetters(), eos=(END,)).__aenter__()
        await swarm.verifier(calling_engine(), curve=CostCurve(((1, 0.0005), (32, 0.0006))))
        return InProcess(swarm)

    monkeypatch.setattr(sys.modules["cosine_node.cli.asking"], "joining_once", lambda *_, **__: join)
    for name in ("XDG_DATA_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    file = tmp_path / "tools.json"
    file.write_text(json.dumps(TOOLS), "utf-8")
    asked = ["generate", "a tale", "--chat", "--tools", str(file), "--tool-choice", "use"]
    result = run(*asked, *(["--json"] if as_json else []))
    assert result.code == 0
    if as_json:
        (call,) = json.loads(result.out)["tool_calls"]
        assert (call["name"], call["arguments"]) == ("use", "{}")
    else:
        assert result.out == "use {}\n"


def test_a_file_without_tools_and_tools_without_a_chat_are_refused(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "tools.json"
    for content, told in (("{}", "must hold a list of tools"), ("[", "is not JSON"), ("[1]", "must hold a list")):
        file.write_text(content, "utf-8")
        result = run("generate", "a", "--chat", "--tools", str(file))
        assert result.code == 2 and told in result.err
    assert "give --chat" in run("generate", "a", "--tools", str(file)).err
    assert "cannot be read" in run("generate", "a", "--chat", "--tools", str(tmp_path / "none")).err


def test_what_was_applied_is_told_in_words() -> None:
    applied = AppliedConfig(options={"temperature": 0.7, "top_k": 20}, not_honoured=("num_beams", "\x1b[2J"))
    given, lost = config_lines(applied)
    assert given.startswith("the model's own generation config gave temperature 0.7, top_k 20;")
    assert "num_beams" in lost and "\x1b" not in lost
    assert config_lines(AppliedConfig()) == []
