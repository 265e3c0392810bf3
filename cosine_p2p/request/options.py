"""Options, each declared once with type, check, help and default (`OPTIONS`); and seeds of choices. Pure."""

import inspect
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from hashlib import blake2b
from os import PathLike, fspath
from typing import Annotated, Any, Final, TypedDict, TypeVar, cast, get_type_hints

from cosine_p2p.request.arguments import (
    FLAG,
    SECONDS,
    SHARE,
    STOP,
    TOKEN_ID,
    TOKEN_IDS,
    ArgumentKind,
    one_of,
    plain_number,
    read_argument,
    refuse_unknown,
    text,
    texts,
    whole,
    with_methods,
)
from cosine_p2p.request.chat import Chat, Message
from cosine_p2p.request.results import Observer
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_p2p.trust.mandates import Coordination
from cosine_protocol.errors import UsageError
from cosine_protocol.fields import MAX_PROMPT_TOKENS, Real, Whole, fields_of
from cosine_protocol.request import MAX_BIAS, MAX_BIASES, MAX_TOP_LOGPROBS, Sampling, Shaping

Prompt = str | Sequence[int] | Sequence[Message] | Chat
"""Plain text, the target's token ids, or a chat: its messages, or a `Chat` with options of the template."""

AUTO: Final = "auto"
NONE: Final = "none"
KEEP: Final = "keep"
FORGET: Final = "forget"
COORDINATORS: Final = tuple(each.value for each in Coordination)


class Purpose(StrEnum):
    """The topic of an option; the command line's help has a panel for each."""

    TEXT = "Text"
    PEERS = "Who serves"
    NETWORK = "Network"
    RUN = "Run"


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of an option.

    yields: The model's generation config overrides the default.
    everyday: A short help shows the option, with the first sentence of `help`.
    """

    kind: ArgumentKind[Any]
    default: Any = None
    yields: bool = False
    everyday: bool = False
    purpose: Purpose = Purpose.TEXT
    help: str = ""


def _of_sampling(name: str, kind: type = Sampling) -> ArgumentKind[int | float]:
    (field,) = (of for each, of in fields_of(kind) if each == name)
    assert isinstance(field, Whole | Real)

    def read(value: Any) -> int | float:
        with suppress(TypeError, OverflowError):
            value = plain_number(value)
        return cast(int | float, getattr(kind(**{name: value}), name))

    of = int if isinstance(field, Whole) else float
    return ArgumentKind(f"a number from {field.low} to {field.high}", read, of, field.low, field.high)


def _filter(name: str, *, everyday: bool = False) -> Option:
    return Option(_of_sampling(name), getattr(Sampling(), name), yields=True, everyday=everyday)


def _shaper(name: str) -> Option:
    return Option(_of_sampling(name, Shaping), getattr(Shaping(), name))


def _read_biases(value: object) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise TypeError
    biases = {TOKEN_ID.read(token): float(plain_number(bias)) for token, bias in value.items()}
    if len(biases) > MAX_BIASES or not all(abs(bias) <= MAX_BIAS for bias in biases.values()):
        raise ValueError
    return biases


def _read_prediction(value: object) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return value
    if isinstance(value, bytes | bytearray) or not isinstance(value, Sequence):
        raise TypeError
    return tuple(map(TOKEN_ID.read, value))


def _read_schema(value: object) -> str:
    try:
        schema = json.loads(value) if isinstance(value, str) else value
        if not isinstance(schema, Mapping | bool):
            raise TypeError
        return json.dumps(dict(schema) if isinstance(schema, Mapping) else schema, ensure_ascii=False)
    except RecursionError:
        raise ValueError from None


_ASCII: Final = {r"\d": "[0-9]", r"\D": "[^0-9]", r"\w": "[0-9A-Za-z_]", r"\W": "[^0-9A-Za-z_]"}


def _read_regex(value: object) -> str:
    """Convert a regular expression of ECMAScript or xgrammar to Rust: classes are ASCII."""
    return re.sub(r"\\.", lambda found: _ASCII.get(found[0], found[0]), text("").read(value), flags=re.DOTALL)


def _path(noun: str) -> ArgumentKind[str]:
    def read(value: object) -> str:
        path = fspath(value) if isinstance(value, PathLike) else value
        if not isinstance(path, str) or not path:
            raise ValueError
        return path

    return ArgumentKind(f"the path of {noun}", read)


_BIASES: Final = ArgumentKind(
    f"a mapping of at most {MAX_BIASES} token ids to numbers from -{MAX_BIAS:g} to {MAX_BIAS:g}", _read_biases, dict
)
_LIKELIEST: Final = whole(0, MAX_TOP_LOGPROBS)
_OBSERVER: Final = with_methods("observe", "observe_abandoned")
_PREDICTION: Final = ArgumentKind("a text, or token ids", _read_prediction, str)
_REGEX: Final = ArgumentKind("a regular expression", _read_regex)
_SCHEMA: Final = ArgumentKind("a JSON schema: an object, or its text", _read_schema, dict)


class GenerationOptions(TypedDict, total=False):
    r"""Options of one generation. A client's options are the defaults of its calls; None means absent.

    Text:
        max_new_tokens: Maximum number of new tokens. Default: the model's, else 128.
        temperature: Sampling temperature; 0 is greedy. Default: the model's, else 0.
        top_p: Cumulative probability of the tokens to sample from; 1 is off. Default: the model's, else 1.
        top_k: Number of likeliest tokens to sample from; 0 is off. Default: the model's, else 0.
        min_p: Minimum probability of a token, relative to the likeliest; 0 is off. Default: the model's, else 0.
        repetition_penalty: Divide the logits of tokens seen before; 1 is off. Default: the model's, else 1.
        presence_penalty: Lower the logits of tokens in the output; 0 is off.
        frequency_penalty: Lower the logits of tokens in the output, once for each occurrence; 0 is off.
        logit_bias: Add these numbers to the logits of tokens.
        bad_words: Texts not to generate, as the target tokenizes them.
        min_tokens: Minimum number of new tokens before the text may end.
        schema: Generate only JSON that this JSON schema allows.
        regex: Generate a text that this regular expression matches entirely; classes such as \d are ASCII.
        grammar: Generate a text of this Lark grammar; its first rule is start.
        logprobs: Return the log-probability of each token and of the likeliest tokens, 0 to 20.
        prompt_logprobs: Return log-probabilities of the prompt's tokens too, computed without the prefix cache.
        prediction: Predicted output to draft from, for example code before a change.
        generation_config: auto: defaults come from the model's generation_config.json; none: they do not.
        seed: Seed of sampling. The same seed gives the same text. Default: random.
        stop: Text before which to stop.
        eos: Token ids that end the output in place of the target's.
        stop_token_ids: Further token ids that end the output; its text excludes them.
        ignore_eos: Ignore the target's end-of-sequence tokens.
    Who serves:
        strategy: cosine, or plain for the target alone.
        dtype: Use only verifiers with this data type, for example float32.
        max_drafters: Maximum number of drafters; 0 sends the prompt to none.
        prompt_window_tokens: Number of prompt tokens that drafters see, from its end; 0 is all. Default: 256; all
            in --swarm.
        coordination: Who coordinates drafters: client, verifier, or auto (the verifier if it is far away).
        audit: Share of texts that another verifier audits; 0 is none.
        warm_spare: Keep a second verifier ready to continue a long request; it sees the prompt.
        trust: Use only these peers.
        verifier: Use only this verifier.
    Run:
        timeout_s: Timeout of the whole generation in seconds.
    """

    max_new_tokens: Annotated[int | None, Option(whole(1), 128, yields=True, everyday=True)]
    temperature: Annotated[float | None, _filter("temperature", everyday=True)]
    top_p: Annotated[float | None, _filter("top_p")]
    top_k: Annotated[int | None, _filter("top_k")]
    min_p: Annotated[float | None, _filter("min_p")]
    repetition_penalty: Annotated[float | None, _filter("repetition_penalty")]
    presence_penalty: Annotated[float | None, _shaper("presence_penalty")]
    frequency_penalty: Annotated[float | None, _shaper("frequency_penalty")]
    logit_bias: Annotated[Mapping[int, float] | None, Option(_BIASES, {})]
    bad_words: Annotated[Sequence[str], Option(texts("texts"), ())]
    min_tokens: Annotated[int | None, _shaper("min_tokens")]
    schema: Annotated[Mapping[str, Any] | str | None, Option(_SCHEMA)]
    regex: Annotated[str | None, Option(_REGEX)]
    grammar: Annotated[str | None, Option(text("a Lark grammar"))]
    logprobs: Annotated[int | None, Option(_LIKELIEST)]
    prompt_logprobs: Annotated[int | None, Option(_LIKELIEST)]
    prediction: Annotated[str | Sequence[int] | None, Option(_PREDICTION)]
    generation_config: Annotated[str, Option(one_of(AUTO, NONE), AUTO)]
    seed: Annotated[int | None, Option(_of_sampling("seed"), everyday=True)]
    stop: Annotated[str | Sequence[str], Option(STOP, (), everyday=True)]
    eos: Annotated[Sequence[int] | None, Option(TOKEN_IDS)]
    stop_token_ids: Annotated[Sequence[int], Option(TOKEN_IDS, ())]
    ignore_eos: Annotated[bool, Option(FLAG, False)]
    strategy: Annotated[str, Option(text("the name of a strategy"), "cosine")]
    dtype: Annotated[str | None, Option(text("the name of a data type, such as 'float32'"))]
    max_drafters: Annotated[int | None, Option(whole(0))]
    prompt_window_tokens: Annotated[int | None, Option(whole(0))]
    coordination: Annotated[str, Option(one_of(*COORDINATORS), COORDINATORS[0])]
    audit: Annotated[float, Option(SHARE, 0.05)]
    warm_spare: Annotated[bool, Option(FLAG, False)]
    trust: Annotated[Sequence[str], Option(texts("peer ids"), ())]
    verifier: Annotated[str | None, Option(text("a peer id"))]
    timeout_s: Annotated[float, Option(SECONDS, 600.0)]


class ClientOptions(GenerationOptions, total=False):
    """Options of a client.

    Text:
        draft_from: Folder of your own text files to draft from; only drafts leave this machine.
        past_replies: keep: keep replies on this machine and draft from them; forget: delete those that were kept.
    Who serves:
        target: Target model. As its verifiers announce it: zoo:NAME, a Hugging Face id, NAME@DIGEST; or a folder.
            Default: the only one that the network serves.
    Network:
        network: Name of the network.
        swarm: Swarm file of a private swarm, with this peer's certificate; takes the place of --network.
        identity: Key file; created if it does not exist.
        deny: Do not talk to this peer, or to those in this file, one peer id a line.
        lan: Without initial peers, find nodes in the local network. Default: yes.
        transport: full (hivemind) or light (py-libp2p); COSINE_TRANSPORT decides, else full where it is installed.
        listen: Listen on ports, for direct connections to nodes behind routers; for long-lived clients.
    Run:
        observer: Object that is notified of every generation.
    """

    target: Annotated[str | None, Option(text("the name of a target"), everyday=True)]
    draft_from: Annotated[Sequence[str], Option(texts("folders"), ())]
    past_replies: Annotated[str | None, Option(one_of(KEEP, FORGET))]
    network: Annotated[str, Option(text("the name of a network"), DEFAULT_NETWORK)]
    swarm: Annotated[str | PathLike[str] | None, Option(_path("a swarm file"))]
    identity: Annotated[str | PathLike[str] | None, Option(_path("a key file"))]
    deny: Annotated[Sequence[str], Option(texts("peer ids or files of them"), ())]
    lan: Annotated[bool | None, Option(FLAG)]
    transport: Annotated[str | None, Option(text("'full' or 'light'"))]
    listen: Annotated[bool, Option(FLAG, False)]
    observer: Annotated[Observer | None, Option(_OBSERVER)]


def _documented(kind: type) -> Iterator[tuple[str, Purpose, str]]:
    """Yield the name, purpose and help of each option in the docstring of a TypedDict."""
    for title, options in re.findall(r"^(\w[\w ]*):\n((?:    .*\n?)+)", inspect.getdoc(kind) or "", re.MULTILINE):
        for name, told in re.findall(r"^    (\w+): (.*(?:\n     .*)*)", options, re.MULTILINE):
            yield name, Purpose(title), re.sub(r"\s+", " ", told)


def _declared() -> Mapping[str, Option]:
    hints = get_type_hints(ClientOptions, include_extras=True)
    documented = {name: rest for kind in (GenerationOptions, ClientOptions) for name, *rest in _documented(kind)}
    found = {}
    for name, hint in hints.items():
        purpose, told = documented.get(name, (Purpose.RUN, ""))  # Docstrings are missing with `python -OO`.
        found[name] = replace(hint.__metadata__[0], purpose=purpose, help=told)
    return found


OPTIONS: Final = _declared()
"""The declaration of every option, by name."""
TEXT_DEFAULTS: Final = cast(
    GenerationOptions, {name: option.default for name, option in OPTIONS.items() if option.yields}
)
"""Defaults of options that the model's generation config may set: greedy."""
DEFAULTS: Final = cast(
    ClientOptions,
    {name: option.default for name, option in OPTIONS.items() if option.default is not None and not option.yields},
)
"""Defaults of the other options."""


def read_option(name: str, value: object) -> Any:
    """Return the plain value of an option. Raises `UsageError`."""
    return read_argument(name, value, OPTIONS[name].kind)


def merge_options(base: ClientOptions, given: Mapping[str, Any], kind: type) -> ClientOptions:
    """Return `base` updated by `given`; `kind` has the valid names. Raises `UsageError`."""
    known = kind.__annotations__
    merged: dict[str, Any] = dict(base)
    for name, value in given.items():
        if name not in known and name in OPTIONS:
            raise UsageError(f"There is no option {name!r} of a single generation; give it to the client.")
        refuse_unknown(name, known)
        if value is not None:
            merged[name] = read_option(name, value)
    return cast(ClientOptions, merged)


USUAL_WINDOW_TOKENS: Final = 256  # Measured (decision 34): small models draft as well after 128 as after all.


def window_of(options: ClientOptions) -> int | None:
    """Return the number of prompt tokens that drafters see; None for all, as trusted and private peers."""
    given = options.get("prompt_window_tokens")
    if given is None:
        given = 0 if options["trust"] or options.get("swarm") else USUAL_WINDOW_TOKENS
    return min(given, MAX_PROMPT_TOKENS) or None


_Function = TypeVar("_Function", bound=Callable[..., object])


def explained(kind: type) -> str:
    """Return the help of the options of a TypedDict, grouped by purpose."""
    lines = []
    for purpose in Purpose:
        named = [name for name in kind.__annotations__ if OPTIONS[name].purpose is purpose]
        lines += [f"{purpose}:", *(f"    {name}: {OPTIONS[name].help}" for name in named), ""] if named else []
    return "\n".join(lines)


def lists_options(kind: type) -> Callable[[_Function], _Function]:
    """Make `help` and `inspect` list and explain the options of a TypedDict instead of `**options`."""

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        # Without types, which the help would show as a page of unions.
        options = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name))
            for name in kind.__annotations__
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*named, *options])
        function.__doc__ = f"{inspect.getdoc(function) or ''}\n\n{explained(kind)}".strip()
        return function

    return decorate


SEED_BYTES: Final = 8  # The width of a seed.
_MARK: Final = b"cosine/choice/1"  # Domain separation.


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of choice `index`; choice 0 has the request's seed.

    For others it is the 8-byte BLAKE2b digest of a mark and both numbers, 8 bytes each, all big-endian, so that a
    single choice can be requested.
    """
    if index == 0:
        return seed
    data = _MARK + seed.to_bytes(SEED_BYTES) + index.to_bytes(SEED_BYTES)
    return int.from_bytes(blake2b(data, digest_size=SEED_BYTES).digest())
