"""`cosine generate`: text from the swarm."""

import json
import os
import sys
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from cosine_cli.asking import client_that_asks_once
from cosine_p2p.replies.parts import CallBegun, Part
from cosine_p2p.request.chat import Chat, NamedTool, ToolChoice
from cosine_p2p.request.options import ClientOptions, Prompt
from cosine_p2p.request.origins import told_origins
from cosine_p2p.request.results import AppliedConfig, Generation, Progress
from cosine_protocol.errors import UsageError
from cosine_protocol.numerics import numerics_text, repeats, repetition_text
from cosine_terminal.help_screen import everyday
from cosine_terminal.interrupts import run_interruptibly
from cosine_terminal.options import ENTRANCE, SERVED_BY, AsJson, InitialPeers, several, takes_options
from cosine_terminal.printing import json_safe, printable, short_peer_id, show
from cosine_terminal.waiting import Stage, WaitingLine, telling_stages

AUDIT_SENTENCES: Final = {
    "passed": "audited: another verifier would have written the same",
    "no auditor": "not audited: no other verifier of this target and numerics may be asked",
    "unanswered": "not audited: no other verifier had time",
    "unsigned": "not audited: the verifier signs nothing",
    "under way": "not audited yet: it takes long",
    "suspected": "AUDIT: another verifier would have written something else, and there is no third one to ask",
    "disputed": "AUDIT: of two other verifiers one would have written something else; either may lie",
    "convicted": "AUDIT: two other verifiers would have written something else; this one is asked last from now on",
}
"""The line of the summary by `AuditState`; other states have none."""

TEXT: Final = (
    *("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty"),
    *("presence_penalty", "frequency_penalty", "bad_words", "min_tokens", "ignore_eos"),
    *("schema", "regex", "grammar", "logprobs", "prompt_logprobs", "prediction"),
    *("seed", "stop", "dtype", "verifier"),
)
"""Client options of a single text."""


@takes_options
def generate(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The prompt, or - to read it from stdin.")],
    options: Annotated[ClientOptions, (*ENTRANCE, *SERVED_BY, *TEXT)],
    chat: Annotated[bool, everyday("--chat", help="Apply the target's chat template.")] = False,
    tools: Annotated[
        Path | None,
        typer.Option(
            "--tools", metavar="FILE", help="JSON file with the tools of a chat, a list as in OpenAI's API."
        ),
    ] = None,
    tool_choice: Annotated[
        str,
        typer.Option("--tool-choice", metavar="CHOICE", help="auto, none, required, or the name of a function."),
    ] = "auto",
    initial_peers: InitialPeers = None,
    as_json: AsJson = False,
) -> None:
    """Generate a text; it is exactly what the target alone would write."""
    line = WaitingLine(sys.stderr)
    if tools is not None and not chat:
        raise UsageError("Tools are for chats; give --chat as well.")
    asked_logprobs = [name for name in ("logprobs", "prompt_logprobs") if options.get(name) is not None]
    if asked_logprobs and not as_json:
        raise UsageError(f"--{asked_logprobs[0].replace('_', '-')} requires --json.")
    text = _read_prompt(prompt, line)
    asked: Prompt = Chat([{"role": "user", "content": text}]) if chat else text
    if isinstance(asked, Chat) and tools is not None:
        words = {each.value for each in ToolChoice}
        choice = ToolChoice(tool_choice) if tool_choice in words else NamedTool(tool_choice)
        asked = replace(asked, tools=_read_tools(tools), tool_choice=choice)
    done = run_interruptibly(_generate(several(initial_peers), asked, options, line, as_json))
    told = json.dumps(json_safe(done)) if as_json else _summary(done)
    if not (as_json or done.text or chat):
        told += "\nThe target ended the text immediately. For a chat model use --chat."
    show(sys.stdout if as_json else sys.stderr, told + "\n")


def _read_prompt(given: str, line: WaitingLine) -> str:
    """The given prompt, or for - the text on stdin. Raises `UsageError` if it is empty."""
    if given == "-" and sys.stdin.isatty():
        line.say("Reading the prompt from the terminal, to its end (Ctrl-D)")
    if given == "-":
        text = _read_stdin()
    else:
        try:
            # Python has not decoded it as UTF-8 in another locale.
            text = os.fsencode(given).decode()
        except UnicodeError:
            text = given
    if not text:
        raise UsageError("The prompt is empty; give at least one character.")
    return text


def _read_tools(file: Path) -> list[dict[str, Any]]:
    """The tools in a file. Raises `UsageError` if it does not hold a list of them."""
    try:
        tools = json.loads(file.read_text("utf-8-sig"))
    except OSError as error:
        raise UsageError(f"{file} cannot be read ({error.strerror}).") from None
    except (ValueError, RecursionError):
        raise UsageError(f"{file} is not JSON.") from None
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise UsageError(f"{file} must hold a list of tools, as in OpenAI's API.")
    return tools


def _read_stdin() -> str:
    """The text on stdin: UTF-8 with or without a byte order mark, else in the terminal's encoding."""
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode(sys.stdin.encoding, "surrogateescape")
    return text.replace("\r\n", "\n")


async def _generate(
    initial_peers: tuple[str, ...], prompt: Prompt, options: ClientOptions, line: WaitingLine, is_quiet: bool
) -> Generation:
    """Generate, and print the text unless `is_quiet`. Shows what it waits for until there is text."""
    joining = Stage("Looking for peers")
    client = client_that_asks_once(initial_peers, options, note=joining.change)
    is_calling, is_begun = isinstance(prompt, Chat) and bool(prompt.tools), False
    async with AsyncExitStack() as stack:
        async with telling_stages(line, lambda: joining.sentence):
            await stack.enter_async_context(client)
        async with telling_stages(line, lambda: f"Looking for verifiers of {client.target}"):
            run = await client.start(prompt)
        chunks = await stack.enter_async_context(aclosing(run.chunks()))
        async with telling_stages(line, lambda: stage_of(run.progress(), run.verifiers)):
            async for chunk in chunks:
                text = _with_calls(chunk.parts, is_begun=is_begun) if is_calling else chunk.text
                is_begun = is_begun or bool(text)
                if text and not is_quiet:
                    line.end()
                    show(sys.stdout, text)
        line.end()
        if not is_quiet:
            show(sys.stdout, "\n")
        async with telling_stages(line, lambda: "Another verifier audits the text"):
            await run.audited()
        line.end()
        return run.result()


def _with_calls(parts: Iterable[Part], *, is_begun: bool) -> str:
    """The text of a reply. A call is on a separate line: the name of the function, then its arguments."""
    text = "".join(f"\n{part.name} " if isinstance(part, CallBegun) else part.text for part in parts)
    return text if is_begun else text.removeprefix("\n")


def stage_of(progress: Progress, verifiers: Sequence[str]) -> str:
    """The stage of a generation. `verifiers` are the candidates, best first."""
    lost = len(progress.tried)
    after = f", after {lost} failed attempt{'' if lost == 1 else 's'}" if lost else ""
    if not progress.serving:
        return f"Asking verifier {short_peer_id(verifiers[lost % len(verifiers)])}{after}"
    if not progress.tokens:
        return f"Waiting for the first token of verifier {short_peer_id(progress.serving[0])}{after}"
    return f"Generating with verifier {short_peer_id(progress.serving[0])}{after}"


def _summary(done: Generation) -> str:
    tokens, swarm = done.usage.completion_tokens, done.swarm
    rate = tokens / done.seconds if done.seconds else 0.0
    return "\n".join(
        [
            f"{tokens} tokens in {done.seconds:.2f} s ({rate:.1f} tokens/s), {swarm.rounds} passes; "
            f"tokens by origin: {told_origins(swarm.origins)}; finished by {done.finish_reason}, seed {done.seed}",
            *(
                []
                if not swarm.numerics or repeats(swarm.numerics)
                else [f"{repetition_text(swarm.numerics)}: its verifier has {numerics_text(swarm.numerics)}"]
            ),
            *dict.fromkeys(
                f"verifier {short_peer_id(one.peer_id)}: {one.drafts}" for one in swarm.verifiers if one.drafts
            ),
            *prediction_lines(done),
            *config_lines(done.generation_config),
            *([AUDIT_SENTENCES[done.audit.state]] if done.audit and done.audit.state in AUDIT_SENTENCES else []),
        ]
    )


def prediction_lines(done: Generation) -> list[str]:
    """A line about the accepted share of a prediction, if there was one."""
    came, did_not = done.usage.accepted_prediction_tokens, done.usage.rejected_prediction_tokens
    return [f"of {came + did_not} predicted tokens {came} came"] if came + did_not else []


def config_lines(applied: AppliedConfig) -> list[str]:
    """Lines about the options of the model's generation config, and about those that are not supported."""
    lines = []
    if applied.options:
        given = ", ".join(applied.options_text())
        lines.append(f"the model's own generation config gave {given}; --generation-config none is without it")
    if applied.not_honoured:
        lost = printable(", ".join(applied.not_honoured))
        lines.append(f"the model's own generation config sets {lost}, which a swarm cannot honour")
    return lines
