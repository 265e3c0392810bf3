"""Rolling prefix digests: `d_0 = H(request)`, `d_{i+1} = H(d_i || token)` with H = BLAKE2b-128."""

import struct
from collections.abc import Iterable
from hashlib import blake2b

from cosine_protocol.fields import DIGEST_BYTES
from cosine_protocol.request import Constraint, Request, Sampling, Shaping

# Plain names and formats: big-endian, as the request digest is defined in docs/protocol.md.
_MAGIC = b"cosine/request/1"
_TOKEN = struct.Struct(">I")
_SAMPLING = struct.Struct(">dIdddQ")
_SHAPING = struct.Struct(">ddII")
_BIAS = struct.Struct(">Id")
_NO_CONSTRAINT = bytes(12)  # kind 0, no text, no ends


def _hash(data: bytes) -> bytes:
    return blake2b(data, digest_size=DIGEST_BYTES).digest()


def _counted(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def _tokens(tokens: tuple[int, ...]) -> bytes:
    return struct.pack(f">I{len(tokens)}I", len(tokens), *tokens)


def _sampling(of: Sampling) -> bytes:
    return _SAMPLING.pack(of.temperature, of.top_k, of.top_p, of.min_p, of.repetition_penalty, of.seed)


def _shaping(of: Shaping) -> bytes:
    numbers = (of.presence_penalty, of.frequency_penalty, of.min_tokens, len(of.logit_bias))
    parts = [_SHAPING.pack(*numbers), *(_BIAS.pack(one.token, one.bias) for one in of.logit_bias)]
    words = [struct.pack(">I", len(of.bad_words)), *map(_tokens, of.bad_words)]
    return b"".join([*parts, *words, _tokens(of.held_back)])


def _constraint(of: Constraint) -> bytes:
    return b"".join([struct.pack(">I", of.kind), _counted(of.text.encode()), _tokens(of.ends)])


def _added(request: Request) -> bytes:
    """The later parts, which older peers do not know. Absent parts before the last one are encoded as empty."""
    shaping, constraint, logprobs = request.sampling.shaping, request.sampling.constraint, request.logprobs
    if shaping is None and constraint is None and logprobs is None:
        return b""
    parts = [_shaping(shaping or Shaping())]
    if constraint is not None or logprobs is not None:
        parts.append(_NO_CONSTRAINT if constraint is None else _constraint(constraint))
    if logprobs is not None:
        parts.append(struct.pack(">II", logprobs.top, logprobs.of_prompt))
    return b"".join(parts)


def encode_request(request: Request) -> bytes:
    """The canonical encoding of a request without `max_new_tokens`, big-endian."""
    return b"".join(
        (
            _MAGIC,
            _counted(request.target_digest),
            _counted(request.numerics.encode()),
            _counted(request.tokenizer_digest),
            _tokens(request.prompt),
            _sampling(request.sampling),
            _tokens(request.eos),
            _counted(request.client.encode()),
            _counted(request.nonce),
            _added(request),
        )
    )


def request_digest(request: Request) -> bytes:
    """`d_0` of a request, 16 bytes."""
    return _hash(encode_request(request))


def extend_digest(digest: bytes, token: int) -> bytes:
    return _hash(digest + _TOKEN.pack(token))


def roll_digest(digest: bytes, tokens: Iterable[int]) -> bytes:
    for token in tokens:
        digest = extend_digest(digest, token)
    return digest
