"""Asking a target all that a drafter shall learn from, and going on where an earlier time was interrupted."""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, Protocol

from cosine_node.distillation.answers import Answer, AnswerStore
from cosine_node.distillation.local_target import TargetPrompt
from cosine_node.distillation.questions import Question, in_turns
from cosine_p2p.tokenizer import TextCodec
from cosine_protocol.request import Sampling

TEMPERATURE: Final = 0.8
"""A choice: half of the answers are sampled at it, the others are greedy."""
SAY_EVERY_S: Final = 20.0
"""A choice: the time between two lines of progress."""

Say = Callable[[str], None]


class AnsweringTarget(Protocol):
    """A target that can be asked many questions: on this machine, or through a swarm."""

    def answers(self, prompts: Iterator[TargetPrompt]) -> Iterator[Answer]:
        """The answers as they end, in no order."""
        ...

    def readings(self, prompts: Iterator[TargetPrompt]) -> Iterator[Answer]:
        """The answers that were given, with what the target finds likely in them."""
        ...


def prompts_of(
    questions: Sequence[Question], codec: TextCodec, *, answers: int, longest_prompt: int, is_asked_twice: bool
) -> list[TargetPrompt]:
    """Prompts for so many answers, domains in turn, greedy and sampled in turn or each question both ways.

    Questions of more than `longest_prompt` tokens are passed over.
    """
    found: list[TargetPrompt] = []
    for question in in_turns(questions):
        if len(found) >= answers:
            break
        asked = question.asked
        tokens = codec.encode(asked) if isinstance(asked, str) else codec.encode_chat(asked)
        if not 0 < len(tokens) <= longest_prompt:
            continue
        sampled = Sampling(temperature=TEMPERATURE, seed=question.number)
        ways = [Sampling(), sampled] if is_asked_twice else [sampled if question.number % 2 else Sampling()]
        found += [TargetPrompt(question.number, question.domain, tokens, way) for way in ways]
    return found


def readings_of(
    questions: Sequence[Question], codec: TextCodec, *, readings: int, longest_prompt: int, longest_answer: int
) -> list[TargetPrompt]:
    """Prompts with what follows them where they were found, domains in turn, cut after so many tokens."""
    found: list[TargetPrompt] = []
    for question in in_turns(questions):
        if len(found) >= readings:
            break
        if not question.follows:
            continue
        asked = question.asked
        if isinstance(asked, str):
            prompt, whole = codec.encode(asked), codec.encode(asked + question.follows)
        else:
            prompt = codec.encode_chat(asked)
            whole = codec.encode_chat([*asked, {"role": "assistant", "content": question.follows}])
        # The last tokens of a prompt may be others once more text follows.
        common = next(
            (i for i, pair in enumerate(zip(prompt, whole, strict=False)) if pair[0] != pair[1]), len(prompt)
        )
        given = whole[common : common + longest_answer]
        if 0 < common <= longest_prompt and given:
            found.append(TargetPrompt(question.number, question.domain, whole[:common], Sampling(), given))
    return found


def ask_all(
    prompts: Sequence[TargetPrompt],
    folder: Path,
    ask: Callable[[Iterator[TargetPrompt]], Iterator[Answer]],
    say: Say,
) -> list[Answer]:
    """All answers in `folder`, once `ask` has brought those to `prompts` that are missing."""
    store = AnswerStore(folder)
    missing = {(prompt.question, prompt.sampling): prompt for prompt in prompts}
    for answer in store.read():
        missing.pop((answer.question, answer.sampling), None)
    if missing:
        began_s = said_s = time.monotonic()
        done = tokens = 0
        try:
            for answer in ask(iter(missing.values())):
                store.add(answer)
                done, tokens = done + 1, tokens + len(answer.tokens)
                if (now_s := time.monotonic()) - said_s > SAY_EVERY_S:
                    rate = tokens / (now_s - began_s)
                    say(f"{done} of {len(missing)} answers, {rate:.0f} tokens/s")
                    said_s = now_s
        finally:
            store.flush()
    return store.read()
