"""Options of a generation: names, types, defaults and checks; and the seeds of several outputs."""

import inspect
import math
import reprlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from difflib import get_close_matches
from hashlib import blake2b
from numbers import Integral, Real
from os import PathLike, fspath
from typing import Any, Final, Generic, TypedDict, TypeVar, cast

from cosine_p2p.request.results import Observer
from cosine_p2p.transport.config import DEFAULT_NETWORK
from cosine_p2p.trust.mandates import Coordination
from cosine_protocol.errors import UsageError
from cosine_protocol.limits import MAX_EOS_TOKENS, MAX_TOKEN_ID
from cosine_protocol.request import Sampling

# --------------------
# Arguments as programs give them: made plain values, or refused in one sentence that says what is allowed.


_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ArgumentKind(Generic[_T]):
    """`meaning` completes "... must be"; `read` raises `ValueError` or `TypeError` for what means nothing."""

    meaning: str
    read: Callable[[Any], _T]


def read_argument(name: str, value: object, kind: ArgumentKind[_T]) -> _T:
    """The plain value of an argument. Raises `UsageError` naming the argument and what is allowed."""
    try:
        return kind.read(value)
    except (TypeError, ValueError, OverflowError) as error:
        # A reader says more only where the usual sentence would leave a user wondering.
        advice = f"; {error}" if isinstance(error, _Advice) else ""
        raise UsageError(f"{name} must be {kind.meaning}, not {reprlib.repr(value)}{advice}.") from None


def refuse_unknown(name: str, known: Iterable[str], *, what: str = "option") -> None:
    """Raises `UsageError` for a name that is none of those known; it tells the nearest, or all if none is near."""
    names = list(known)
    if name not in names:
        nearest = get_close_matches(name, names, n=1) or names
        raise UsageError(f"There is no {what} {name!r}; there is {', '.join(nearest)}.")


def plain_number(value: object) -> int | float:
    """A Python number for any that is real, numpy's among them. Raises `TypeError`, also for a truth value."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError
    return int(value) if isinstance(value, Integral) else float(value)


def whole(low: int, high: int | None = None) -> ArgumentKind[int]:
    """Whole numbers between two bounds, both included; a float is none, even without a fraction."""

    def read(value: object) -> int:
        number = plain_number(value)
        if not isinstance(number, int) or number < low or (high is not None and number > high):
            raise ValueError
        return number

    bounds = f"of at least {low}" if high is None else f"from {low} to {high}"
    return ArgumentKind(f"a whole number {bounds}", read)


def text(noun: str) -> ArgumentKind[str]:
    """Text that is not empty."""

    def read(value: object) -> str:
        if isinstance(value, bytes | bytearray):
            raise _Advice("decode bytes to text first")
        if isinstance(value, Collection) and not isinstance(value, str):
            raise _Advice("give one, not several")
        if not isinstance(value, str) or not value:
            raise ValueError
        return value

    return ArgumentKind(noun, read)


def texts(noun: str) -> ArgumentKind[tuple[str, ...]]:
    """Texts in a list, tuple or set; one text alone would be taken for its letters."""

    def read(value: object) -> tuple[str, ...]:
        if isinstance(value, str):
            raise _Advice(f"write [{reprlib.repr(value)}]")
        return tuple(text(noun).read(each) for each in _items(value))

    return ArgumentKind(f"a list of {noun}", read)


def _read_seconds(value: object) -> float:
    seconds = float(plain_number(value))
    if math.isnan(seconds) or seconds <= 0:
        raise ValueError
    return seconds


def _read_share(value: object) -> float:
    share = float(plain_number(value))
    if not 0 <= share <= 1:
        raise ValueError
    return share


def _read_stop(value: object) -> tuple[str, ...]:
    stops = (value,) if isinstance(value, str) else tuple(_items(value))
    if not all(isinstance(stop, str) for stop in stops):
        raise TypeError
    return stops


def _read_token_ids(value: object) -> tuple[int, ...]:
    ids = tuple(TOKEN_ID.read(token) for token in _items(value))
    if len(ids) > MAX_EOS_TOKENS:
        raise ValueError
    return ids


def _read_flag(value: object) -> bool:
    if value not in (True, False):
        raise ValueError
    return bool(value)


def _items(value: object) -> Collection[Any]:
    """What a list, tuple, set or array holds. Raises `TypeError` for text, bytes, mappings and single values."""
    items = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(items, str | bytes | bytearray | Mapping) or not isinstance(items, Collection):
        raise TypeError
    return items


class _Advice(ValueError):
    """What to do about a value that many a user gives by mistake."""


FLAG = ArgumentKind("True or False", _read_flag)
SECONDS = ArgumentKind("a number of seconds above 0", _read_seconds)
SHARE = ArgumentKind("a number from 0 to 1", _read_share)
STOP = ArgumentKind("a text or a list of texts", _read_stop)
TOKEN_ID = whole(0, MAX_TOKEN_ID)
TOKEN_IDS = ArgumentKind(f"a list of at most {MAX_EOS_TOKENS} token ids from 0 to {MAX_TOKEN_ID}", _read_token_ids)


# --------------------


Prompt = str | Sequence[int] | Sequence[Mapping[str, str]]
"""Plain text, the target's token ids, or a chat as `{"role", "content"}` messages."""

_Function = TypeVar("_Function", bound=Callable[..., object])


class GenerationOptions(TypedDict, total=False):
    """Options of one generation. Those given to a client hold wherever a call gives no other.

    None is as good as absent.
    """

    max_new_tokens: int | None
    """Generate at most so many tokens; 128."""
    temperature: float | None
    """0, the default, is greedy decoding."""
    top_p: float | None
    """Sample from the likeliest tokens that hold this probability together; 1 is off."""
    top_k: int | None
    """Sample from so many of the likeliest tokens; 0 is off."""
    min_p: float | None
    """Sample from tokens at least this fraction as likely as the likeliest; 0 is off."""
    repetition_penalty: float | None
    """Divides the scores of tokens that were there before; 1 is off."""
    generation_config: str
    """`auto`, the default: of the options above the model's own generation config sets the defaults; or `none`."""
    seed: int | None
    """The same request with the same seed gives the same text; drawn if not given."""
    stop: str | Sequence[str]
    """End before this text, or any of several."""
    eos: Sequence[int] | None
    """Token ids that end the output, instead of those that the target announces."""
    strategy: str
    """`cosine`, or another of `cosine_p2p.strategy.registry`."""
    dtype: str | None
    """Only verifiers that compute so, as in `float32`."""
    max_drafters: int | None
    """Ask at most so many drafters, 8 if not given; 0 asks none."""
    prompt_window_tokens: int | None
    """Show drafters so many of the last tokens of the prompt, 0 for all of it. If not given it is 256, and all for
    peers that `trust` names or `swarm` admits."""
    coordination: str
    """Coordinates the drafters: `client`; `verifier`, by a signed mandate; or `auto`, the default: the verifier
    where it is far away."""
    audit: float
    """The share of streams that another verifier audits once the text is there, 0.05; 0 is off."""
    share_receipts: bool
    """Send drafters a signed receipt for their tokens, which they may show to others; True."""
    share_feedback: bool | None
    """Let drafters keep the text, and what they see of the prompt, to learn from it; if not given, only those of a
    private swarm."""
    warm_spare: bool
    """Keep a second verifier ready to go on with a long request at once; it sees the prompt too. False."""
    trust: Sequence[str]
    """Only these peers, by peer id."""
    verifier: str | None
    """Only this verifier, by peer id."""
    timeout_s: float
    """Seconds for the whole generation; 600."""


class ClientOptions(GenerationOptions, total=False):
    """Options of a client."""

    target: str
    """The name that verifiers announce, with `@DIGEST` for one of several, or a folder; `zoo:target`."""
    network: str
    """The network's name; `main`."""
    swarm: str | PathLike[str] | None
    """The swarm file of a private swarm that this client is a member of."""
    identity: str | PathLike[str] | None
    """The client's key file; else it is somebody new in each run, or in a private swarm the user's default."""
    deny: Sequence[str]
    """Peers that are not talked to, by peer id, or files of peer ids."""
    transport: str | None
    """`full` (hivemind) or `light` (py-libp2p); `COSINE_TRANSPORT` decides, else full where it is installed."""
    observer: Observer | None
    """Is told of every generation."""


AUTO: Final = "auto"
NONE: Final = "none"
TEXT_DEFAULTS: Final[GenerationOptions] = {
    "max_new_tokens": 128,
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""Where neither a user nor the model's own generation config says otherwise: sampling is off; 128 is a choice."""
DEFAULTS: Final[ClientOptions] = {
    "generation_config": AUTO,
    "stop": (),
    "strategy": "cosine",
    "coordination": Coordination.AUTO.value,
    "audit": 0.05,
    "share_receipts": True,
    "warm_spare": False,
    "trust": (),
    "deny": (),
    "timeout_s": 600.0,
    "target": "zoo:target",
    "network": DEFAULT_NETWORK,
}
"""Choices."""


def merge_options(base: ClientOptions, given: Mapping[str, Any], kind: type) -> ClientOptions:
    """`base` with the options given in their place; `kind` is the TypedDict that names those there are.

    Raises `UsageError` naming an option that is unknown or whose value means nothing.
    """
    known = kind.__annotations__
    merged: dict[str, Any] = dict(base)
    for name, value in given.items():
        if name not in known and name in ClientOptions.__annotations__:
            raise UsageError(f"There is no option {name!r} of a single generation; give it to the client.")
        refuse_unknown(name, known)
        if value is None:
            continue
        if name in SAMPLING:
            merged[name] = read_sampling(name, value)
        else:
            merged[name] = read_argument(name, value, _KINDS[name])
    return cast(ClientOptions, merged)


def shares_feedback(options: ClientOptions) -> bool:
    """True if drafters may keep the text; where the user says nothing, only the members of a private swarm."""
    given = options.get("share_feedback")
    return bool(options.get("swarm")) if given is None else given


def read_sampling(name: str, value: object) -> int | float:
    """The plain value of a parameter of `Sampling`, which raises `UsageError`."""
    given: Any = value
    with suppress(TypeError, OverflowError):
        given = plain_number(value)
    return cast(int | float, getattr(Sampling(**{name: given}), name))


def _read_observer(value: object) -> object:
    if not (callable(getattr(value, "observe", None)) and callable(getattr(value, "observe_abandoned", None))):
        raise TypeError
    return value


SAMPLING: Final = frozenset(field.name for field in fields(Sampling))
"""The options that shape the distribution that tokens are drawn from."""


def _read_coordination(value: object) -> str:
    return Coordination(str(value))


def _read_path(value: object) -> str:
    path = fspath(value) if isinstance(value, PathLike) else value
    if not isinstance(path, str) or not path:
        raise ValueError
    return path


def _read_source(value: object) -> str:
    if value not in (AUTO, NONE):
        raise ValueError
    return str(value)


_KINDS: Final[Mapping[str, ArgumentKind[Any]]] = {
    "generation_config": ArgumentKind(f"{AUTO!r} or {NONE!r}", _read_source),
    "coordination": ArgumentKind("'auto', 'client' or 'verifier'", _read_coordination),
    "max_new_tokens": whole(1),
    "stop": STOP,
    "eos": TOKEN_IDS,
    "strategy": text("the name of a strategy"),
    "dtype": text("the name of a data type, such as 'float32'"),
    "max_drafters": whole(0),
    "prompt_window_tokens": whole(0),
    "audit": SHARE,
    "share_receipts": FLAG,
    "share_feedback": FLAG,
    "warm_spare": FLAG,
    "trust": texts("peer ids"),
    "verifier": text("a peer id"),
    "timeout_s": SECONDS,
    "target": text("the name of a target"),
    "network": text("the name of a network"),
    "swarm": ArgumentKind("the path of a swarm file", _read_path),
    "identity": ArgumentKind("the path of a key file", _read_path),
    "deny": texts("peer ids or files of them"),
    "transport": text("'full' or 'light'"),
    "observer": ArgumentKind("an object with `observe` and `observe_abandoned`", _read_observer),
}
"""What makes sense for each other option."""


def lists_options(kind: type) -> Callable[[_Function], _Function]:
    """Make `help` and `inspect` list the options of a TypedDict one by one in place of `**options`."""

    def decorate(function: _Function) -> _Function:
        signature = inspect.signature(function)
        named = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        options = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=DEFAULTS.get(name), annotation=annotation
            )
            for name, annotation in kind.__annotations__.items()
        ]
        vars(function)["__signature__"] = signature.replace(parameters=[*named, *options])
        return function

    return decorate


SEED_BYTES: Final = 8
"""The width of a seed."""
_MARK: Final = b"cosine/choice/1"  # keeps these hashes apart from others


def choice_seed(seed: int, index: int) -> int:
    """H(seed, index), the seed of choice `index`; choice 0 has the request's own.

    For the others it is BLAKE2b with a digest of 8 bytes over a mark and both numbers in 8 bytes each, all of them
    big-endian, so that anybody can ask for one choice alone and get the same text.
    """
    if index == 0:
        return seed
    data = _MARK + seed.to_bytes(SEED_BYTES) + index.to_bytes(SEED_BYTES)
    return int.from_bytes(blake2b(data, digest_size=SEED_BYTES).digest())
