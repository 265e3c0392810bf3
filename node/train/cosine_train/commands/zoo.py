"""`cosine-node zoo train`: trains drafters for any target."""

import json
import math
import sys
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from cosine_cli.asking import joining_once
from cosine_node.cli.models import zoo_with
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_protocol.errors import UsageError
from cosine_terminal.help_screen import everyday
from cosine_terminal.options import DEFAULT_TARGET, AsJson, InitialPeers, Network, several, takes_options
from cosine_terminal.printing import say, show

if TYPE_CHECKING:
    from cosine_train.training.target_source import TargetSource

OWN_PROMPTS: Final = "self"
"""The value of `--prompts` with which the target writes its questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingOptions:
    """The options of `zoo train`."""

    target: Annotated[
        str,
        everyday(metavar="MODEL", help="The target. zoo:NAME, a folder, a GGUF file, a Hugging Face id."),
    ] = DEFAULT_TARGET
    texts: Annotated[
        Path | None,
        everyday(
            metavar="PATH",
            help="JSON lines, or a folder of them. With messages or text, .jsonl or .jsonl.xz; .dev. is held out.",
        ),
    ] = None
    prompts: Annotated[
        str | None,
        everyday(
            metavar="self",
            help="self: the target writes the questions. A chat model, in addition to --texts.",
        ),
    ] = None
    questions: Annotated[int, typer.Option(min=1, help="Number of questions that the target writes.")] = 4000
    follow_ups: Annotated[
        int, typer.Option(min=0, help="Number of these that are followed by a second question.")
    ] = 1000
    head: Annotated[
        bool,
        everyday("--head", help="Train a draft head, not a drafter. A verifier holds it with the target."),
    ] = False
    out: Annotated[Path | None, everyday(metavar="FOLDER", help="The drafter's folder.")] = None
    work: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="Folder of the target's answers, shared by drafters. Default: OUT/work."
        ),
    ] = None
    domain: Annotated[
        list[str] | None,
        typer.Option(
            "--domain",
            metavar="NAME[:SHARE]",
            help="Domain to learn from, and its share. May be repeated.",
        ),
    ] = None
    init: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Continue from this drafter.")] = None
    answers: Annotated[int, typer.Option(min=1, help="Number of the target's answers to learn from.")] = 4000
    held_out: Annotated[int, typer.Option(min=1, help="Number of questions to measure with.")] = 32
    new_tokens: Annotated[int, typer.Option(min=1, help="Maximum number of tokens of an answer.")] = 160
    longest_prompt: Annotated[int, typer.Option(min=1, help="Maximum number of tokens of a question.")] = 192
    slots: Annotated[int, typer.Option(min=1, help="Number of answers generated at once.")] = 64
    known_tokens: Annotated[int, typer.Option(min=1, help="Size of the drafter's vocabulary.")] = 6143
    layers: Annotated[str, typer.Option(help="Layers of the target that initialise the drafter.")] = "0,-1"
    width: Annotated[
        int | None,
        typer.Option(min=1, help="Start from an untrained model of this width. Required through a swarm."),
    ] = None
    minutes: Annotated[float | None, everyday(help="Minutes of training. Default: 20, without --steps.")] = None
    steps: Annotated[int | None, typer.Option(min=1, help="Number of training steps.")] = None
    learning_rate: Annotated[float, typer.Option(help="The highest learning rate.")] = 1e-3
    batch_rows: Annotated[int, typer.Option(min=1, help="Number of answers in a batch.")] = 16
    seed: Annotated[int, typer.Option(help="Seed of the batches.")] = 0
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:0 or mps.")] = "auto"
    threads: Annotated[int | None, typer.Option(min=1, help="Number of CPU threads.")] = None

    def run(self, peers: tuple[str, ...], network: str) -> dict[str, Any]:
        """Train a drafter on the answers of a target here, or through a swarm; return its record."""
        from cosine_p2p.access import Access
        from cosine_train.training.drafter_training import DrafterSettings, train_drafter
        from cosine_train.training.head_training import train_head
        from cosine_train.training.loop import TrainingPlan, keep_freed_memory
        from cosine_train.training.target_source import LocalSource, SwarmSource

        if self.prompts not in (None, OWN_PROMPTS):
            raise UsageError(
                f"--prompts takes {OWN_PROMPTS} alone, not {self.prompts!r}; files are given by --texts."
            )
        if self.out is None or (self.texts is None and self.prompts is None):
            raise UsageError(
                "zoo train needs --texts or --prompts self, and --out: what is asked, and the drafter's folder."
            )
        keep_freed_memory()
        try:
            layers = tuple(int(part) for part in self.layers.split(","))
        except ValueError:
            raise UsageError(
                f"--layers must be numbers with commas between, as in 0,-1, not {self.layers!r}."
            ) from None
        source: TargetSource
        if peers:
            source = SwarmSource(
                join=joining_once(peers, Access.parse(network=network)),
                options={"network": network, "target": self.target},
                slots=self.slots,
                new_tokens=self.new_tokens,
                layers=len(layers),
                # About four million weights with two layers.
                width=self.width or 256,
                seed=self.seed,
            )
        else:
            source = LocalSource(
                model=self.target,
                slots=self.slots,
                new_tokens=self.new_tokens,
                layers=layers,
                width=self.width,
                device=self.device,
                seed=self.seed,
            )
        plan = TrainingPlan(
            learning_rate=self.learning_rate,
            # The values of the embedded drafters.
            warmup_steps=20,
            weight_decay=0.1,
            budget_steps=self.steps or math.inf,
            # One processor thread processes about a thousand answers of 100 tokens in 20 minutes.
            budget_minutes=self.minutes or (20.0 if self.steps is None else math.inf),
        )
        own = {field.name for field in fields(self)}
        named = {field.name: getattr(self, field.name) for field in fields(DrafterSettings) if field.name in own}
        named |= {"work": self.work or self.out / "work", "shares": _shares(self.domain or [])}
        named["own_questions"] = 0 if self.prompts is None else self.questions
        make = train_head if self.head else train_drafter
        return make(DrafterSettings(plan=plan, **named), source, lambda line: show(sys.stderr, f"{line}\n"))


@takes_options
def train(
    training: TrainingOptions,
    as_json: AsJson = False,
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
) -> None:
    """Train a drafter of your own.

    It asks the target, here or through a swarm, and learns from its answers. The same command resumes an
    interrupted training.
    """
    record = training.run(several(initial_peers), network)
    if as_json:
        sys.stdout.write(json.dumps(record) + "\n")
        return
    from cosine_train.training.card import agreement_table, steps_table

    table = steps_table if training.head else agreement_table
    sys.stdout.write(f"{table(record['agreement'])}\n{training.out}\n")
    served = f"--role drafter --target {training.target} --model {training.out}"
    if training.head:
        served = f"--role verifier --model {training.target} --draft-model {training.out}"
    say(f"Serve it with: cosine-node join {served} --initial-peers ADDRESS")


zoo = zoo_with(train)


def _shares(domains: list[str]) -> dict[str, float]:
    shares = {}
    for text in domains:
        name, _, share = text.partition(":")
        try:
            shares[name] = float(share or 1)
        except ValueError:
            raise UsageError(
                f"--domain must be a name, or a name and its share as in code:0.7, not {text!r}."
            ) from None
    return shares
