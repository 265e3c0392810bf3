"""One model asked for from afar in several ways, in turns and by the clock: ours, llama.cpp's RPC, Petals, alone.

Two machines are network namespaces of this one, so far from each other as is asked for (`cosine_lab.network`). On
one is who asks, on the other whoever computes; `transformers` computes beside who asks. llama.cpp's programs are
looked for on the PATH, Petals in a Python of its own; who is not there is left out, and the result says so.
"""

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any, Final

from cosine_lab.experiments.experiment import ExperimentOptions, JsonRow, Say, grouped, setup_of
from cosine_lab.network.laboratory import Host, Laboratory, what_is_missing
from cosine_node import zoo
from cosine_node.gguf.unfolding import unfold
from cosine_p2p.text.tokenizer import TextTokenizer
from cosine_p2p.text.tokenizer_files import TokenizerFiles
from cosine_protocol.errors import UsageError

PLAIN: Final = "CoSine P2P, plain"
OURS: Final = "CoSine P2P"
RPC: Final = "llama.cpp RPC"
PETALS: Final = "Petals"
ALONE: Final = "transformers, alone"
STRATEGIES: Final[Mapping[str, str]] = {PLAIN: "plain", OURS: "cosine"}
RPC_SERVERS: Final = ("ggml-rpc-server", "rpc-server")
"""The names of llama.cpp's program, newest first."""
RPC_PORT: Final = 50052
LLAMA_PORT: Final = 8080
PETALS_PORT: Final = 31330
CONNECT: Final = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2]))).close()"
FETCH: Final = "import sys, urllib.request; urllib.request.urlopen(sys.argv[1]).close()"
"""Looks whether somebody listens, and whether a server has loaded its model."""
CONTEXT_TOKENS: Final = 2048
READY_TIMEOUT_S: Final = 240.0
"""Each loads a model on a machine that may have two cores."""
QUESTIONS: Final = (
    "def fibonacci(n):\n    ",
    "The three most important inventions of the nineteenth century were",
    "Dear Sir or Madam,\n\nI am writing to complain about",
    "Q: A train covers 120 km in 90 minutes. What is its mean speed?\nA:",
)
"""Texts to go on from: code, facts, a letter, arithmetic. No model of this project learned from them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PeersOptions(ExperimentOptions):
    """The model's GGUF file, the round trips, and the load; `petals` is a Python in which Petals is installed."""

    model: str = "zoo:smol-target"
    rtts_ms: tuple[float, ...] = (0.0, 20.0, 50.0, 100.0)
    prompts: int = 2
    tokens: int = 32
    repeats: int = 2
    petals: str = ""

    @classmethod
    def quick(cls) -> "PeersOptions":
        return cls(rtts_ms=(20.0,), prompts=1, tokens=8, repeats=1)


class Asker:
    """A process on a machine that asks, one request after the other."""

    def __init__(self, host: Host, *command: str, log: str) -> None:
        self._process = host.start(*command, log=log)
        self._log = host.home / log
        self._read_line()

    def ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The tokens and the seconds until each. Raises `UsageError` if it has ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._read_line())
        return answer

    def _read_line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise UsageError(f"A process of the benchmark ended: {last_words(self._log)}")
        return line


def last_words(log: Path) -> str:
    """The end of a log, in one line."""
    return log.read_text("utf-8", "replace").strip().rpartition("\n")[2][-300:]


def run(options: PeersOptions, *, say: Say) -> JsonRow:
    """Measure everybody at each round trip; the result. Raises `UsageError` where this cannot be done."""
    if reason := what_is_missing():
        raise UsageError(reason)
    file = zoo.resolve(options.model)
    if not isinstance(file, Path) or not file.is_file():
        raise UsageError(f"{options.model} is no GGUF file on this machine; --model names one.")
    absent: dict[str, str] = {}
    with TemporaryDirectory(prefix="cosine-peers-") as folder, Laboratory(Path(folder), rtt_s=0.0) as lab:
        machines = Machines(lab.host("here"), lab.host("there"), lab.host("beside"), file, Path(folder))
        askers = {}
        for name, start in machines.starts(options).items():
            try:
                askers[name] = start()
                say(f"{name}: ready")
            except UsageError as error:
                absent[name] = str(error)
                say(f"{name} is left out: {error}")
        rows = list(_rows(lab, askers, machines.prompts(options.prompts), options, say))
    return {
        "what": "One model asked for over a link in several ways, in turns on one machine and by the clock; "
        "only ratios count.",
        "setup": setup_of(
            options,
            model_file=file.name,
            petals=bool(options.petals),
            left_out=absent,
            time="real; the links are emulated",
        ),
        "rows": rows,
        "findings": findings_of(rows),
    }


@dataclass(frozen=True, slots=True)
class Machines:
    """Who asks is `here`, who computes `there`, and `beside` that is what a swarm begins with."""

    here: Host
    there: Host
    beside: Host
    file: Path
    folder: Path

    def starts(self, options: PeersOptions) -> dict[str, Any]:
        """By name what starts somebody: it returns an `Asker`, or raises `UsageError` with what is missing."""
        return {
            ALONE: self._alone,
            OURS: lambda: self._ours(options.model),
            RPC: self._rpc,
            PETALS: lambda: self._petals(options.petals),
        }

    def prompts(self, count: int) -> list[tuple[int, ...]]:
        """The questions in the model's tokens."""
        files = TokenizerFiles.read(self._unfolded)
        if files is None:
            raise UsageError(f"{self.file.name} has no tokenizer.")
        codec = TextTokenizer(files.files)
        return [codec.encode(question) for question in QUESTIONS[:count]]

    @property
    def _unfolded(self) -> Path:
        return unfold(self.file, cache_folder=self.folder / "unfolded")

    def _alone(self) -> Asker:
        return Asker(self.here, *_asking("transformers", str(self.float_folder())), log="transformers.log")

    def _ours(self, target: str) -> Asker:
        address = _node(self.beside, "bootstrap")
        joining = ("join", "--role", "verifier", "--model", target, "--engine", "llama", "--threads", "1")
        _node(self.there, *joining, "--initial-peers", address)
        return Asker(self.here, *_asking("cosine", address, target), log="client.log")

    def _rpc(self) -> Asker:
        found = [shutil.which(name) for name in RPC_SERVERS]
        rpc, llama = next(filter(None, found), None), shutil.which("llama-server")
        if rpc is None or llama is None:
            raise UsageError(f"llama.cpp's llama-server and {RPC_SERVERS[0]} are not on the PATH.")
        there = self.there.addresses[0]
        self.there.start(rpc, "-H", there, "-p", str(RPC_PORT), "-t", "1", log="rpc.log")
        _await(self.there, CONNECT, there, str(RPC_PORT), log="rpc.log")
        place = f"127.0.0.1:{LLAMA_PORT}"
        self.here.start(
            *(llama, "-m", str(self.file), "--rpc", f"{there}:{RPC_PORT}", "-ngl", "99", "-t", "1", "-np", "1"),
            *("-c", str(CONTEXT_TOKENS), "--host", "127.0.0.1", "--port", str(LLAMA_PORT)),
            log="llama.log",
        )
        _await(self.here, FETCH, f"http://{place}/health", log="llama.log")
        return Asker(self.here, *_asking("llama", place), log="asker.log")

    def _petals(self, python: str) -> Asker:
        if not python:
            raise UsageError("--petals names a Python in which Petals is installed; none was given.")
        folder = str(self.float_folder())
        where = f"/ip4/{self.there.addresses[0]}/tcp/{PETALS_PORT}"
        server = self.there.start(
            *(
                python,
                "-m",
                "petals.cli.run_server",
                folder,
                "--new_swarm",
                "--dht_prefix",
                "model",
                "--torch_dtype",
                "float32",
            ),
            *("--device", "cpu", "--throughput", "1000", "--num_blocks", str(self._layers), "--host_maddrs", where),
            *("--announce_maddrs", where, "--identity_path", str(self.there.home / "petals.id")),
            log="petals.log",
            OMP_NUM_THREADS="1",
        )
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        log = self.there.home / "petals.log"
        while "Started" not in (text := log.read_text("utf-8", "replace")):
            if server.poll() is not None or time.monotonic() > deadline_s:
                raise UsageError(f"Petals' server did not start: {last_words(log)}")
            time.sleep(0.5)
        found = re.search(rf"{re.escape(where)}/p2p/\w+", text)
        assert found is not None, "a server that has started has told its address"
        script = str(Path(__file__).with_name("petals_asker.py"))
        return Asker(self.here, python, script, folder, found[0], log="petals_client.log")

    @property
    def _layers(self) -> int:
        config: dict[str, int] = json.loads((self._unfolded / "config.json").read_text("utf-8"))
        return config["num_hidden_layers"]

    def float_folder(self) -> Path:
        """The file's weights in float32, as a folder that old and new versions of transformers read."""
        folder = self.folder / "float32"
        if not folder.exists():
            import torch
            from safetensors.torch import save_file
            from transformers import AutoModelForCausalLM

            unfolded = self._unfolded
            model = AutoModelForCausalLM.from_pretrained(
                unfolded, gguf_file="model.gguf", dtype=torch.float32, trust_remote_code=False
            )
            config = json.loads((unfolded / "config.json").read_text("utf-8"))
            # Versions before 5 know the first two fields; Petals looks for an output layer of its own.
            config |= {"rope_theta": config["rope_parameters"]["rope_theta"], "torch_dtype": "float32"}
            config["tie_word_embeddings"] = False
            folder.mkdir()
            (folder / "config.json").write_text(json.dumps(config), "utf-8")
            weights = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            save_file(weights, folder / "model.safetensors", {"format": "pt"})
        return folder


def _asking(*words: str) -> tuple[str, ...]:
    return sys.executable, "-m", "cosine_lab.experiments.asker", *words


def _node(host: Host, *arguments: str) -> str:
    """Start one of our nodes; its address. Raises `UsageError` if it ends before it is ready."""
    log = f"{arguments[0]}.log"
    process = host.start(sys.executable, "-m", "cosine_node", *arguments, "--log-format", "json", log=log)
    maddrs: list[str] = _event(_lines(process, host.home / log), "ready")["maddrs"]
    return next(maddr for maddr in maddrs if f"/{host.addresses[0]}/tcp/" in maddr)


def _lines(process: "subprocess.Popen[str]", log: Path) -> Iterator[str]:
    """What a process prints; its output is read on for as long as it lives. Raises `UsageError` when it ends."""
    assert process.stdout is not None
    yield from process.stdout
    raise UsageError(f"A node of the benchmark ended: {last_words(log)}")


def _event(lines: Iterator[str], name: str) -> dict[str, Any]:
    """The first event of that name; the rest is read and forgotten, so that nobody waits for a reader."""
    for line in lines:
        event: dict[str, Any] = json.loads(line)
        if event["event"] == name:
            break
    threading.Thread(target=_drain, args=(lines,), daemon=True).start()
    return event


def _drain(lines: Iterator[str]) -> None:
    try:
        for _ in lines:
            continue
    except (UsageError, ValueError):
        return


def _await(host: Host, look: str, *places: str, log: str) -> None:
    """Wait until a look from a machine succeeds. Raises `UsageError` if none does."""
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while host.start(sys.executable, "-c", look, *places, log="looks.log").wait():
        if time.monotonic() > deadline_s:
            raise UsageError(f"llama.cpp did not start: {last_words(host.home / log)}")
        time.sleep(0.5)


def _rows(
    lab: Laboratory,
    askers: Mapping[str, Asker],
    prompts: Sequence[tuple[int, ...]],
    options: PeersOptions,
    say: Say,
) -> Iterator[JsonRow]:
    """A row for each round trip, question and way: the best of its runs, and the text."""
    ways = {name: (askers[OURS if name in STRATEGIES else name]) for name in _ways(askers)}
    for rtt_ms in options.rtts_ms:
        for other in ("there", "beside"):
            lab.way("here", other, rtt_s=rtt_ms / 1e3)
        for number, prompt in enumerate(prompts):
            runs: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
            # The first round loads what is loaded once, and does not count.
            for repeat in range(1 + options.repeats):
                for name in list(ways)[:: -1 if repeat % 2 else 1]:
                    request = {"prompt": prompt, "tokens": options.tokens, "strategy": STRATEGIES.get(name)}
                    runs[name].append(ways[name].ask(request))
            for name, own in runs.items():
                yield {"rtt_ms": rtt_ms, "prompt": number, "way": name, **_row(own[1:])}
            say(f"{rtt_ms:g} ms, question {number + 1} of {len(prompts)}")


def _ways(askers: Mapping[str, Asker]) -> list[str]:
    return [way for name in askers for way in (STRATEGIES if name == OURS else (name,))]


def _row(runs: Sequence[Mapping[str, Any]]) -> JsonRow:
    best = min(runs, key=lambda one: float(one["came_s"][-1]))
    came_s = best["came_s"]
    return {
        "first_token_ms": 1e3 * min(one["came_s"][0] for one in runs),
        "ms_per_token": 1e3 * (came_s[-1] - came_s[0]) / max(1, len(came_s) - 1),
        "seconds": came_s[-1],
        "tokens": best["tokens"],
    }


def findings_of(rows: Sequence[JsonRow]) -> dict[str, Any]:
    """For each round trip and way the medians over questions, and how much longer its texts take than ours.

    `same_as_plain` counts the questions whose text is that of our plain decoding.
    """
    ours_s = {(row["rtt_ms"], row["prompt"]): row["seconds"] for row in rows if row["way"] == OURS}
    texts = {(row["rtt_ms"], row["prompt"]): row["tokens"] for row in rows if row["way"] == PLAIN}
    found = []
    for (rtt_ms, way), own in grouped(rows, "rtt_ms", "way").items():
        ratios = [row["seconds"] / ours_s[row["rtt_ms"], row["prompt"]] for row in own] if ours_s else []
        found.append(
            {
                "rtt_ms": rtt_ms,
                "way": way,
                "first_token_ms": median(row["first_token_ms"] for row in own),
                "tokens_per_s": 1e3 / median(row["ms_per_token"] for row in own),
                "times_our_time": median(ratios) if ratios else None,
                "same_as_plain": sum(row["tokens"] == texts.get((row["rtt_ms"], row["prompt"])) for row in own),
            }
        )
    return {"ways": found}
