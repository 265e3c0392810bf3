"""`cosine-node generate`: text from the swarm."""

import json
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack, aclosing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cosine_node.cli.asking import client_that_asks_once
from cosine_node.cli.interrupts import run_interruptibly
from cosine_node.cli.options import (
    DEFAULT_TARGET,
    PEERS_PANEL,
    SAMPLING_PANEL,
    AsJson,
    InitialPeers,
    Network,
    Target,
    TrustedPeers,
    several,
)
from cosine_node.cli.printing import json_safe, short_peer_id, without_controls
from cosine_node.cli.waiting import WaitingLine, telling_stages
from cosine_p2p.options import ClientOptions, Prompt
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_protocol.errors import UsageError

if TYPE_CHECKING:
    from cosine_p2p.generation import Generation, Progress


def text_option(metavar: str, envvar: str | None, help_text: str) -> Any:
    """An option that says how the text is written."""
    return typer.Option(metavar=metavar, envvar=envvar, help=help_text, rich_help_panel=SAMPLING_PANEL)


MaxNewTokens = Annotated[int, text_option("TOKENS", "COSINE_MAX_NEW_TOKENS", "Generate at most so many.")]
Temperature = Annotated[float, text_option("NUMBER", "COSINE_TEMPERATURE", "0 is greedy.")]
TopP = Annotated[float, text_option("SHARE", "COSINE_TOP_P", "Sample from the likeliest tokens that hold so much.")]
TopK = Annotated[int, text_option("COUNT", "COSINE_TOP_K", "Sample from so many of the likeliest; 0 is off.")]
MinP = Annotated[
    float, text_option("SHARE", "COSINE_MIN_P", "Sample from tokens at least so likely, by the likeliest.")
]
RepetitionPenalty = Annotated[
    float, text_option("NUMBER", "COSINE_REPETITION_PENALTY", "Divides scores of tokens seen before; 1 is off.")
]
Seed = Annotated[int | None, text_option("NUMBER", None, "Same seed, same text; drawn and printed if absent.")]
Stop = Annotated[list[str] | None, text_option("TEXT", None, "Stop before this text; may be repeated.")]
StrategyName = Annotated[
    str,
    typer.Option(
        metavar="NAME",
        envvar="COSINE_STRATEGY",
        help="cosine, plain, or one of those it is measured against (docs/strategies.md).",
        rich_help_panel=PEERS_PANEL,
    ),
]
VerifierDtype = Annotated[
    str | None,
    typer.Option(
        metavar="DTYPE",
        envvar="COSINE_DTYPE",
        help="Only verifiers that run in it, for example float32.",
        rich_help_panel=PEERS_PANEL,
    ),
]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", envvar="COSINE_TIMEOUT", help="For the whole generation.")
]
MaxDrafters = Annotated[
    int | None,
    typer.Option(
        metavar="COUNT",
        envvar="COSINE_MAX_DRAFTERS",
        help="Ask at most so many; 0 sends the prompt to no drafter.",
        rich_help_panel=PEERS_PANEL,
    ),
]
OnlyVerifier = Annotated[
    str | None, typer.Option(metavar="PEER", help="Only this verifier.", rich_help_panel=PEERS_PANEL)
]


def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt, or - to read it from stdin.")],
    chat: Annotated[bool, typer.Option("--chat", metavar="", help="Apply the target's chat template.")] = False,
    initial_peers: InitialPeers = None,
    network: Network = DEFAULT_NETWORK,
    target: Target = DEFAULT_TARGET,
    max_new_tokens: MaxNewTokens = 128,
    temperature: Temperature = 0.0,
    top_p: TopP = 1.0,
    top_k: TopK = 0,
    min_p: MinP = 0.0,
    repetition_penalty: RepetitionPenalty = 1.0,
    seed: Seed = None,
    stop: Stop = None,
    strategy: StrategyName = "cosine",
    dtype: VerifierDtype = None,
    timeout: Timeout = 600.0,
    max_drafters: MaxDrafters = None,
    trust: TrustedPeers = None,
    verifier: OnlyVerifier = None,
    as_json: AsJson = False,
) -> None:
    """Generate text with a swarm; it is exactly what the target alone would write."""
    line = WaitingLine(sys.stderr)
    text = _read_prompt(line) if prompt == "-" else prompt
    if not text:
        raise UsageError("The prompt is empty; give at least one character.")
    options: ClientOptions = {
        "network": network,
        "target": target,
        "strategy": strategy,
        "dtype": None if dtype == "auto" else dtype,
        "max_drafters": max_drafters,
        "trust": several(trust),
        "verifier": verifier,
        "timeout_s": timeout,
        "max_new_tokens": max_new_tokens,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
        "seed": seed,
        "stop": several(stop),
    }
    asked: Prompt = [{"role": "user", "content": text}] if chat else text
    done = run_interruptibly(_generate(several(initial_peers), asked, options, line, is_quiet=as_json))
    if as_json:
        sys.stdout.write(json.dumps(json_safe(done)) + "\n")
    else:
        sys.stderr.write(_summary(done) + "\n")


def _read_prompt(line: WaitingLine) -> str:
    """The text on stdin."""
    if sys.stdin.isatty():
        line.say("Reading the prompt from the terminal, to its end (Ctrl-D)")
    return sys.stdin.read()


async def _generate(
    initial_peers: tuple[str, ...], prompt: Prompt, options: ClientOptions, line: WaitingLine, *, is_quiet: bool
) -> "Generation":
    """Generate, telling what is waited for until there is text; all of the time with `is_quiet`, without text."""
    client = client_that_asks_once(initial_peers, options)
    async with AsyncExitStack() as stack:
        async with telling_stages(line, lambda: "Looking for peers"):
            await stack.enter_async_context(client)
        async with telling_stages(line, lambda: f"Looking for verifiers of {options['target']}"):
            run = await client.start(prompt)
        chunks = await stack.enter_async_context(aclosing(run.chunks()))
        async with telling_stages(line, lambda: stage_of(run.progress(), run.verifiers)):
            async for chunk in chunks:
                if chunk.text and not is_quiet:
                    line.end()
                    # A verifier writes what it likes; a pipe gets every byte of it, a terminal what it can show.
                    sys.stdout.write(without_controls(chunk.text) if sys.stdout.isatty() else chunk.text)
                    sys.stdout.flush()
        line.end()
        if not is_quiet:
            sys.stdout.write("\n")
        return run.result()


def stage_of(progress: "Progress", verifiers: Sequence[str]) -> str:
    """The stage of a generation: whom it asks or waits for. `verifiers` are those that may be asked, best first."""
    lost = len(progress.tried)
    after = f", after {lost} attempt{'' if lost == 1 else 's'} in vain" if lost else ""
    if not progress.serving:
        return f"Asking verifier {short_peer_id(verifiers[lost % len(verifiers)])}{after}"
    if not progress.tokens:
        return f"Waiting for the first token of verifier {short_peer_id(progress.serving[0])}{after}"
    return f"Generating with verifier {short_peer_id(progress.serving[0])}{after}"


def _summary(done: "Generation") -> str:
    rate = done.tokens / done.seconds if done.seconds else 0.0
    helpers = ", ".join(f"{d.domain} {d.accepted}" for d in done.drafters if d.accepted) or "nobody"
    return (
        f"{done.tokens} tokens in {done.seconds:.2f} s ({rate:.1f} tokens/s), {done.rounds} passes, "
        f"accepted drafts from {helpers}; finished by {done.finish_reason}, seed {done.seed}"
    )
