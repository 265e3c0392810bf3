"""Commands of the documentation that a test cannot run, with the reason."""

import re
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Check(Enum):
    OPTIONS = "our command line understands it"
    TARGET = "the Makefile has the target"
    EXTRAS = "the package has the extras"
    NOTHING = "nothing"


@dataclass(frozen=True, slots=True)
class Exemption:
    """`pattern` has to match a whole command."""

    pattern: str
    check: Check
    reason: str

    def covers(self, command: str) -> bool:
        return re.fullmatch(self.pattern, command, re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class Substitution:
    pattern: str
    replacement: str
    reason: str

    def apply(self, text: str) -> str:
        return re.sub(self.pattern, self.replacement, text)


EXEMPTIONS: Final = (
    Exemption(r"make .*", Check.TARGET, "installs into .venv, or runs all tests, this one among them"),
    Exemption(r"sudo (ufw|firewall-cmd) .*", Check.NOTHING, "changes the firewall of this machine"),
    Exemption(r"cosine-node draft .*/PUBLIC/.*", Check.OPTIONS, "stands for the reader's own address"),
    Exemption(r"cosine-node draft .*#MODEL .*", Check.OPTIONS, "stands for the reader's own server"),
    Exemption(r"pip install .*", Check.EXTRAS, "tests/packaging installs the wheel"),
    Exemption(r"\. \.venv/bin/activate", Check.NOTHING, "there is one only after make install"),
    Exemption(
        r"cosine-node (swarm|ban) .*PEER_ID.*",
        Check.OPTIONS,
        "stands for another's peer id; tests/node/cli runs it",
    ),
    Exemption(
        r"cosine(-node)? .*--swarm friends\.swarm.*", Check.OPTIONS, "tests/e2e runs a private swarm of processes"
    ),
    Exemption(r"export ANTHROPIC_.*|claude", Check.NOTHING, "needs Claude Code; tests/clients runs it"),
    Exemption(r"docker compose .*", Check.NOTHING, "needs Docker; tests/packaging runs what is in compose.yaml"),
    Exemption(r"(systemctl|loginctl|journalctl) .*", Check.NOTHING, "changes the services of this machine"),
    Exemption(r"cosine-node --install-completion", Check.OPTIONS, "changes the shell; tests/node/cli has its test"),
    Exemption(
        r"cosine-node bench (ring-)?here .*", Check.OPTIONS, "takes minutes; tests/lab/experiments measures it"
    ),
    Exemption(r"cosine audit .*--initial-peers.*", Check.OPTIONS, "asks a second verifier; none is here"),
    Exemption(r"cosine-node demo", Check.OPTIONS, "takes a minute and a half; `make demo` is it"),
    Exemption(r"cosine(-node)? (?!bench).*someone/.*", Check.OPTIONS, "stands for a model of the reader's choice"),
    Exemption(r"cosine tui (?!.*--screenshot).*", Check.OPTIONS, "needs a terminal; tests/tui gives it one"),
)

ADDRESS: Final = "{address}"
GATEWAY: Final = "{gateway}"
METRICS: Final = "{metrics}"
FREE_PORT: Final = "{port}"
TOKENIZER: Final = "{tokenizer}"
SUBSTITUTIONS: Final = (
    Substitution(r'(?<=\[)"?ADDRESS"?(?=\])', f'"{ADDRESS}"', "an address that a node printed, in Python"),
    Substitution(r"\bADDRESS\b", ADDRESS, "the same in a command"),
    Substitution(r"http://127\.0\.0\.1:8000", GATEWAY, "the port may be taken"),
    Substitution(r"http://127\.0\.0\.1:9100", METRICS, "the port may be taken"),
    Substitution(r"(?<=--metrics-port )9100|(?<=start_http_server\()9101", FREE_PORT, "the port may be taken"),
    Substitution(
        r'(?<=AutoTokenizer.from_pretrained\()"someone/model"', f'"{TOKENIZER}"', "a model of the reader's"
    ),
    Substitution(r'(?<=SwarmModelForCausalLM.from_pretrained\()"someone/model"', '"zoo:target"', "the same"),
    Substitution(r"/tcp/4001\b", "/tcp/0", "the port may be taken"),
    Substitution(r"--seeds 0:2000", "--seeds 0:3", "2,000 runs take minutes; tests/swarm has its own"),
    Substitution(
        r"--scenario strangers", "--scenario strangers --clients 2", "fewer requests do, in a third of the time"
    ),
    Substitution(r"--out /tmp/", "--out ", "nothing is left outside the test's own folder"),
)
