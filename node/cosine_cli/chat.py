"""`cosine chat`: a conversation with a target in the terminal."""

import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Annotated, Final

from cosine_cli.asking import client_that_asks_once
from cosine_cli.generate import TEXT
from cosine_p2p.blocking import LoopThread, TextStream
from cosine_p2p.replies.parts import Content
from cosine_p2p.request.chat import Message
from cosine_p2p.request.options import ClientOptions
from cosine_protocol.errors import CosineError
from cosine_terminal.help_screen import everyday
from cosine_terminal.options import ENTRANCE, SERVED_BY, InitialPeers, Link, peers_of, takes_options
from cosine_terminal.printing import show
from cosine_terminal.waiting import WaitingLine

PROMPT: Final = "> "
OF_ONE_TEXT: Final = frozenset({"schema", "regex", "grammar", "logprobs", "prompt_logprobs", "prediction"})
"""Options of `generate` that make no sense for every answer of a conversation."""

Answering = Callable[[Sequence[Message]], TextStream]


@takes_options
def chat(
    options: Annotated[ClientOptions, (*ENTRANCE, *SERVED_BY, *(name for name in TEXT if name not in OF_ONE_TEXT))],
    link: Link = None,
    initial_peers: InitialPeers = None,
    system: Annotated[str | None, everyday(metavar="TEXT", help="The system message: how to answer.")] = None,
) -> None:
    """Talk with a target; Ctrl-C stops an answer, Ctrl-D ends.

    The target's chat template is applied to the whole conversation at each answer.
    """
    line = WaitingLine(sys.stderr)
    client = client_that_asks_once(peers_of(link, initial_peers), options, note=line.say)
    line.say("Looking for peers")
    with closing(LoopThread(client.close, name="cosine-chat")) as thread:
        thread.wait(thread.submit(client.connect))
        line.end()
        begun: list[Message] = [{"role": "system", "content": system}] if system else []
        converse(begun, lambda messages: TextStream(thread, client.stream(messages)))


def converse(messages: list[Message], answering: Answering) -> None:
    """Read questions and show answers until the end of the input. Raises what the first answer raises."""
    is_seen = sys.stdin.isatty()
    if is_seen:
        # Lets the user edit the line.
        import readline  # noqa: F401
    is_first = True
    while (question := _read_question(PROMPT if is_seen else "")) is not None:
        if not question.strip():
            continue
        messages.append({"role": "user", "content": question})
        try:
            answer = _answer(answering(messages))
        except CosineError as error:
            if is_first or not is_seen:
                raise
            show(sys.stderr, f"{error}\n")
            answer = ""
        is_first = False
        if answer:
            messages.append({"role": "assistant", "content": answer})
        else:
            messages.pop()


def _read_question(prompt: str) -> str | None:
    """A line of the user, or None at the end of the input. Ctrl-C discards what was typed."""
    try:
        return input(prompt)
    except EOFError:
        return None
    except KeyboardInterrupt:
        show(sys.stdout, "\n")
        return ""


def _answer(stream: TextStream) -> str:
    """Show an answer as it comes, until its end or Ctrl-C, and return its content."""
    content, line = "", WaitingLine(sys.stderr)
    line.say("Waiting for an answer")
    try:
        with stream:
            for chunk in stream:
                if chunk.text:
                    line.end()
                    show(sys.stdout, chunk.text)
                content += "".join(part.text for part in chunk.parts if isinstance(part, Content))
    except KeyboardInterrupt:
        line.end()
        show(sys.stdout, " [stopped]")
    finally:
        line.end()
    show(sys.stdout, "\n")
    return content
