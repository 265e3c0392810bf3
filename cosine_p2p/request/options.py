"""Options, each declared once with type, check, help and default (`OPTIONS`); and seeds of outputs."""

import inspect
import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
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


TEXT, PEERS, NETWORK, RUN = Purpose


@dataclass(frozen=True, slots=True)
class Option:
    """The declaration of an option.

    yields: The model's generation config overrides the default.
    everyday: A short help shows the option, with the first sentence of `help`.
    """

    kind: ArgumentKind[Any]
    purpose: Purpose
    help: str
    default: Any = None
    yields: bool = False
    everyday: bool = False


def _of_sampling(name: str, kind: type = Sampling) -> ArgumentKind[int | float]:
    (field,) = (of for each, of in fields_of(kind) if each == name)
    assert isinstance(field, Whole | Real)

    def read(value: Any) -> int | float:
        with suppress(TypeError, OverflowError):
            value = plain_number(value)
        return cast(int | float, getattr(kind(**{name: value}), name))

    of = int if isinstance(field, Whole) else float
    return ArgumentKind(f"a number from {field.low} to {field.high}", read, of, field.low, field.high)


def _filter(name: str, told: str, *, everyday: bool = False) -> Option:
    return Option(_of_sampling(name), TEXT, told, getattr(Sampling(), name), yields=True, everyday=everyday)


def _penalty(name: str, told: str) -> Option:
    return Option(_of_sampling(name, Shaping), TEXT, told, getattr(Shaping(), name))


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


class GenerationOptions(TypedDict, total=False):
    """Options of one generation. A client's options are the defaults of its calls; None means absent."""

    max_new_tokens: Annotated[
        int | None,
        Option(
            whole(1),
            TEXT,
            "Maximum number of new tokens. Default: the model's, else 128.",
            128,
            yields=True,
            everyday=True,
        ),
    ]
    temperature: Annotated[
        float | None,
        _filter("temperature", "Sampling temperature; 0 is greedy. Default: the model's, else 0.", everyday=True),
    ]
    top_p: Annotated[
        float | None,
        _filter(
            "top_p", "Cumulative probability of the tokens to sample from; 1 is off. Default: the model's, else 1."
        ),
    ]
    top_k: Annotated[
        int | None,
        _filter("top_k", "Number of likeliest tokens to sample from; 0 is off. Default: the model's, else 0."),
    ]
    min_p: Annotated[
        float | None,
        _filter(
            "min_p",
            "Minimum probability of a token, relative to the likeliest; 0 is off. Default: the model's, else 0.",
        ),
    ]
    repetition_penalty: Annotated[
        float | None,
        _filter(
            "repetition_penalty", "Divide the logits of tokens seen before; 1 is off. Default: the model's, else 1."
        ),
    ]
    presence_penalty: Annotated[
        float | None, _penalty("presence_penalty", "Lower the logits of tokens in the output; 0 is off.")
    ]
    frequency_penalty: Annotated[
        float | None,
        _penalty(
            "frequency_penalty", "Lower the logits of tokens in the output, once for each occurrence; 0 is off."
        ),
    ]
    logit_bias: Annotated[
        Mapping[int, float] | None,
        Option(
            ArgumentKind(
                f"a mapping of at most {MAX_BIASES} token ids to numbers from -{MAX_BIAS:g} to {MAX_BIAS:g}",
                _read_biases,
                dict,
            ),
            TEXT,
            "Add these numbers to the logits of tokens.",
            {},
        ),
    ]
    bad_words: Annotated[
        Sequence[str], Option(texts("texts"), TEXT, "Texts not to generate, as the target tokenizes them.", ())
    ]
    min_tokens: Annotated[
        int | None,
        Option(
            _of_sampling("min_tokens", Shaping), TEXT, "Minimum number of new tokens before the text may end.", 0
        ),
    ]
    schema: Annotated[
        Mapping[str, Any] | str | None,
        Option(
            ArgumentKind("a JSON schema: an object, or its text", _read_schema, dict),
            TEXT,
            "Generate only JSON that this JSON schema allows.",
        ),
    ]
    regex: Annotated[
        str | None,
        Option(
            ArgumentKind("a regular expression", _read_regex),
            TEXT,
            "Generate a text that this regular expression matches entirely; classes such as \\d are ASCII.",
        ),
    ]
    grammar: Annotated[
        str | None,
        Option(text("a Lark grammar"), TEXT, "Generate a text of this Lark grammar; its first rule is start."),
    ]
    logprobs: Annotated[
        int | None,
        Option(
            whole(0, MAX_TOP_LOGPROBS),
            TEXT,
            f"Return the log-probability of each token and of the likeliest tokens, 0 to {MAX_TOP_LOGPROBS}.",
        ),
    ]
    prompt_logprobs: Annotated[
        int | None,
        Option(
            whole(0, MAX_TOP_LOGPROBS),
            TEXT,
            "Return log-probabilities of the prompt's tokens too, computed without the prefix cache.",
        ),
    ]
    prediction: Annotated[
        str | Sequence[int] | None,
        Option(
            ArgumentKind("a text, or token ids", _read_prediction, str),
            TEXT,
            "Predicted output to draft from, for example code before a change.",
        ),
    ]
    generation_config: Annotated[
        str,
        Option(
            one_of(AUTO, NONE),
            TEXT,
            "auto: defaults come from the model's generation_config.json; none: they do not.",
            AUTO,
        ),
    ]
    seed: Annotated[
        int | None,
        Option(
            _of_sampling("seed"),
            TEXT,
            "Seed of sampling. The same seed gives the same text. Default: random.",
            everyday=True,
        ),
    ]
    stop: Annotated[str | Sequence[str], Option(STOP, TEXT, "Text before which to stop.", (), everyday=True)]
    eos: Annotated[
        Sequence[int] | None, Option(TOKEN_IDS, TEXT, "Token ids that end the output in place of the target's.")
    ]
    stop_token_ids: Annotated[
        Sequence[int], Option(TOKEN_IDS, TEXT, "Further token ids that end the output; its text excludes them.", ())
    ]
    ignore_eos: Annotated[bool, Option(FLAG, TEXT, "Ignore the target's end-of-sequence tokens.", False)]
    strategy: Annotated[
        str, Option(text("the name of a strategy"), PEERS, "cosine, or plain for the target alone.", "cosine")
    ]
    dtype: Annotated[
        str | None,
        Option(
            text("the name of a data type, such as 'float32'"),
            PEERS,
            "Use only verifiers with this data type, for example float32.",
        ),
    ]
    max_drafters: Annotated[
        int | None, Option(whole(0), PEERS, "Maximum number of drafters; 0 sends the prompt to none.")
    ]
    prompt_window_tokens: Annotated[
        int | None,
        Option(
            whole(0),
            PEERS,
            "Number of prompt tokens that drafters see, from its end; 0 is all. Default: 256; all in --swarm.",
        ),
    ]
    coordination: Annotated[
        str,
        Option(
            one_of(*COORDINATORS),
            PEERS,
            "Who coordinates drafters: client, verifier, or auto (the verifier if it is far away).",
            COORDINATORS[0],
        ),
    ]
    audit: Annotated[float, Option(SHARE, PEERS, "Share of texts that another verifier audits; 0 is none.", 0.05)]
    warm_spare: Annotated[
        bool,
        Option(FLAG, PEERS, "Keep a second verifier ready to continue a long request; it sees the prompt.", False),
    ]
    trust: Annotated[Sequence[str], Option(texts("peer ids"), PEERS, "Use only these peers.", ())]
    verifier: Annotated[str | None, Option(text("a peer id"), PEERS, "Use only this verifier.")]
    timeout_s: Annotated[float, Option(SECONDS, RUN, "Timeout of the whole generation in seconds.", 600.0)]


class ClientOptions(GenerationOptions, total=False):
    """Options of a client."""

    target: Annotated[
        str | None,
        Option(
            text("the name of a target"),
            PEERS,
            "Target model. As its verifiers announce it: zoo:NAME, a Hugging Face id, NAME@DIGEST; or a folder. "
            "Default: the only one that the network serves.",
            everyday=True,
        ),
    ]
    draft_from: Annotated[
        Sequence[str],
        Option(
            texts("folders"),
            TEXT,
            "Folder of your own text files to draft from; only drafts leave this machine.",
            (),
        ),
    ]
    past_replies: Annotated[
        str | None,
        Option(
            one_of(KEEP, FORGET),
            TEXT,
            "keep: keep replies on this machine and draft from them; forget: delete those that were kept.",
        ),
    ]
    network: Annotated[str, Option(text("the name of a network"), NETWORK, "Name of the network.", DEFAULT_NETWORK)]
    swarm: Annotated[
        str | PathLike[str] | None,
        Option(
            _path("a swarm file"),
            NETWORK,
            "Swarm file of a private swarm, with this peer's certificate; takes the place of --network.",
        ),
    ]
    identity: Annotated[
        str | PathLike[str] | None, Option(_path("a key file"), NETWORK, "Key file; created if it does not exist.")
    ]
    deny: Annotated[
        Sequence[str],
        Option(
            texts("peer ids or files of them"),
            NETWORK,
            "Do not talk to this peer, or to those in this file, one peer id a line.",
            (),
        ),
    ]
    lan: Annotated[
        bool | None, Option(FLAG, NETWORK, "Without initial peers, find nodes in the local network. Default: yes.")
    ]
    transport: Annotated[
        str | None,
        Option(
            text("'full' or 'light'"),
            NETWORK,
            "full (hivemind) or light (py-libp2p); COSINE_TRANSPORT decides, else full where it is installed.",
        ),
    ]
    listen: Annotated[
        bool,
        Option(
            FLAG,
            NETWORK,
            "Listen on ports of this machine, for direct ways to nodes behind routers; for a client that stays.",
            False,
        ),
    ]
    observer: Annotated[
        Observer | None,
        Option(
            with_methods("observe", "observe_abandoned"),
            RUN,
            "Is told of every generation.",
        ),
    ]


OPTIONS: Final[Mapping[str, Option]] = {
    name: hint.__metadata__[0] for name, hint in get_type_hints(ClientOptions, include_extras=True).items()
}
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
DRAWN_SEED_BITS: Final = 53  # JSON is often read as float64, which is exact up to that size.
_MARK: Final = b"cosine/choice/1"  # Domain separation.


def draw_seed() -> int:
    """Return a random seed for a request without one."""
    return secrets.randbits(DRAWN_SEED_BITS)


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of choice `index`; choice 0 has the request's seed.

    For others it is the 8-byte BLAKE2b digest of a mark and both numbers, 8 bytes each, all big-endian, so that a
    single choice can be requested.
    """
    if index == 0:
        return seed
    data = _MARK + seed.to_bytes(SEED_BYTES) + index.to_bytes(SEED_BYTES)
    return int.from_bytes(blake2b(data, digest_size=SEED_BYTES).digest())
