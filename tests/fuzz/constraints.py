"""Strangers' constraints: tried and compiled as a node does, and a text generated under each.

An input is a byte for the kind, and the text of the constraint. Compiled code cannot be stopped, so each input runs
in a separate process, forked from this one, within a node's bounds:

- The trial may take any time and memory, as in a node's trial process; a constraint that takes too much is refused.
- A constraint that passes is compiled within `COMPILE_S` and takes at most `FREE_BYTES`, including its text.
- The masks of a small tree take at most `TREE_S` at every place of the text, and allowed tokens may follow.
"""

import os
import resource
import signal
import time
from collections.abc import Callable
from functools import cache
from random import Random
from typing import Final, NoReturn

import numpy as np
from llguidance import LLTokenizer

from cosine_engine import zoo
from cosine_engine.constraints import trial
from cosine_engine.constraints.grammars import Grammars, GrammarTooComplex, Guide, Tried
from cosine_lab.emulation.virtual_loop import call_at_once
from cosine_p2p.text.tokenizer import load_tokenizer
from cosine_protocol.errors import MalformedMessage
from cosine_protocol.request import Constraint, ConstraintKind
from tests.fuzz.mutation import Bytewise, mutated_json
from tests.fuzz.target import FuzzTarget, json_seeds

TRIAL_S: Final = 2.0
"""Processor time, less than a node's limit."""
COMPILE_S: Final = 4.0
"""Processor time: with all tokens at most twice the trial's."""
TREE_S: Final = 0.25
"""Processor time for a tree of `NODES`: the fuel of each mask is 0.1 s of work, and few take 1 ms."""
FREE_BYTES: Final = 256 << 20
"""Address space: eight times the limit of one constraint."""
TOKENS: Final = 24
NODES: Final = 8
END: Final = 0
"""The embedded target's EOS token."""
SPECIAL: Final = frozenset((1, 2, 3))
"""Its other special tokens, which are allowed only if a grammar names them."""
REFUSED: Final = "refused"
WORDS: Final = (
    *("{1,9}", "{1000}", "{190000}", "{3,}", "(", ")", "(?i)", "*", "+?", "|", "[^a]", "[a-z0-9]", "\\p{L}"),
    *("\\b", ".", "(?P<n>a)", "é", "\\x00", "start:", "a:", "A:", "a", "A", '"x"', '"x"i', "/x/", "~3..9", "&"),
    *("~", "?", "<[1-9]>", "<[*]>", "<end>", "<|user|>", "[lazy]", "[max_tokens=3]", '[suffix="x"]'),
    *('[stop="y"]', "[capture]", "%import common.INT", "%ignore", '%json {"type": "object"}'),
    *('%regex {"substring_words": "a b c"}', '%llguidance {"no_forcing": true}'),
)
"""Words of expressions and grammars, which single letters would hardly ever form."""


@cache
def _tokenizer() -> LLTokenizer:
    return LLTokenizer(load_tokenizer(zoo.tokenizer_folder()).library.to_str())


def check_constraint(data: bytes) -> None:
    """Raises `MalformedMessage` if a node refuses the constraint, and other errors if it should have."""
    if not data:
        raise MalformedMessage("no kind")
    constraint = Constraint(data[0] % len(ConstraintKind) + 1, data[1:].decode(), (END,))
    # Loaded here once, not in each fork.
    _tokenizer()
    said = _apart(lambda tell: _use(constraint, tell))
    if said[:1] == ["tried"]:
        assert said[1:] != [], "what passed its trial took too much time or memory, or crashed"
        assert len(said) == 2, said
    if said[-1:] != ["written"]:
        assert said in ([], ["tried", REFUSED], [REFUSED]), said[-1]
        raise MalformedMessage("refused")


def _apart(work: Callable[[Callable[[str], None]], None]) -> list[str]:
    """The lines that a fork of this process writes until it ends or is killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _run_and_end(work, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(child, 0)
    return said.splitlines()


def _run_and_end(work: Callable[[Callable[[str], None]], None], writing: int) -> NoReturn:
    def tell(line: str) -> None:
        os.write(writing, f"{line}\n".encode())

    try:
        # A crash is told by the parent; a message about it would be one for each input.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for each in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGPROF):
            signal.signal(each, signal.SIG_DFL)
        work(tell)
    except BaseException as error:  # it is told, and this process ends
        tell(f"{error!r:.300}".replace("\n", " "))
    os._exit(0)


def _bound(cpu_s: float) -> None:
    """Limit the processor time of this process, and its additional memory to `FREE_BYTES`."""
    signal.setitimer(signal.ITIMER_PROF, cpu_s)
    with open("/proc/self/statm") as file:
        used_bytes = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used_bytes + FREE_BYTES, resource.RLIM_INFINITY))


def _use(constraint: Constraint, tell: Callable[[str], None]) -> None:
    _bound(TRIAL_S)
    try:
        fault = trial.fault_of(constraint.kind, constraint.text)
    except MemoryError:
        # The trial's process ends by it.
        fault = "it is too large"
    if fault:
        tell(REFUSED)
        return
    tell("tried")
    _bound(COMPILE_S + TOKENS * TREE_S)
    grammars = Grammars(_tokenizer(), offload=call_at_once, tried=lambda _: Tried(""))
    began_s = time.thread_time()
    grammars._try(constraint)
    assert time.thread_time() - began_s < COMPILE_S, "it takes long to compile"
    known = grammars.fault(constraint)
    assert known is not None and "\n" not in known
    try:
        names_tokens = constraint.kind == ConstraintKind.GRAMMAR and "<" in constraint.text
        _write(grammars.guide(constraint), Random(constraint.text), names_tokens=names_tokens)
    except GrammarTooComplex:
        tell(REFUSED)
        return
    tell("written")


def _write(guide: Guide, random: Random, *, names_tokens: bool) -> None:
    """Write a text that the masks allow, and check their cost."""
    output: list[int] = []
    for _ in range(TOKENS):
        [mask] = guide.masks(output, [()])
        allowed = [] if mask is None else np.flatnonzero(np.unpackbits(mask, bitorder="little")).tolist()
        assert allowed, "nothing may follow what was allowed"
        assert names_tokens or SPECIAL.isdisjoint(allowed), "a special token comes unasked"
        assert max(allowed) < _tokenizer().vocab_size
        place = guide.place(output)
        assert place is not None
        forced = place.forced()[: NODES - 1]
        paths = [forced[:length] for length in range(len(forced) + 1)]
        paths += [(random.choice(allowed),) for _ in range(NODES - len(paths))]
        began_s = time.thread_time()
        guide.masks(output, paths)
        assert time.thread_time() - began_s < TREE_S, "the masks of a tree take long"
        # Half of the time a text ends where it may, or it would hardly ever.
        token = END if END in allowed and random.random() < 0.5 else random.choice(allowed)
        if token == END:
            return
        output.append(token)


def mutated_constraint(data: bytes, random: Random, bytewise: Bytewise, max_bytes: int) -> bytes:
    """Another schema, or an expression or grammar with words put in, doubled or taken out.

    Coverage sees neither compiled code nor other processes, so no input is kept; half of them start from a seed.
    """
    if not data[1:] or random.random() < 0.5:
        data = random.choice(_seeds())
    kind, text = data[:1], data[1:]
    if random.random() < 0.05:
        kind = random.randbytes(1)
    if kind[0] % len(ConstraintKind) == 0 and random.random() < 0.8:
        return kind + mutated_json(text, random, bytewise, max_bytes - 1)
    for _ in range(random.randint(1, 6)):
        at = random.randint(0, len(text))
        to = random.randint(at, min(len(text), at + 24))
        word = random.choice(("", " ", "\n")) + random.choice(WORDS) + random.choice(("", " "))
        fresh = random.choice((word.encode(), word.encode(), text[at:to] * 2, b""))
        text = text[:at] + fresh + text[random.choice((at, to)) :]
    return (kind + text)[:max_bytes]


def _seeds() -> list[bytes]:
    expressions = [r"(ab|c){2,3}\d?", r"[^a]+x*", r"(?i)\w{3}", r"a{1,9}(b|c)*"]
    grammars = [
        'start: "a" start "b" | A\nA: /[xy]+/',
        "start: a ~ 2..4\na: INT | B\nB: /a.*/ & ~/ab/\n%import common.INT",
        'start: "x" j\nj: %json {"type": "integer"}',
        "start: w[lazy] <end> | w\nw: /[a-z]+/\n%ignore /[ ]+/",
    ]
    return [
        *(b"\0" + schema for schema in json_seeds("constraint")),
        *(b"\1" + one.encode() for one in expressions),
        *(b"\2" + one.encode() for one in grammars),
    ]


TARGETS: Final = {
    "constraint": FuzzTarget(
        check=check_constraint,
        seeds=_seeds,
        runs=4_000,
        mutate=mutated_constraint,
        refusals=(UnicodeDecodeError,),
        max_bytes=2000,
    ),
}
