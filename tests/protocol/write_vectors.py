"""Writes `protocol/vectors`: `python -m tests.protocol.write_vectors`. The same code writes the same files.

Run it only for a deliberate change of the protocol; `test_vectors` checks the files as they lie.
"""

import hashlib
import math
import struct
import zlib
from dataclasses import replace
from itertools import product
from typing import Any, Final

from cosine_protocol import messages as m
from cosine_protocol import stage_messages as s
from cosine_protocol import weight_messages as w
from cosine_protocol.codec import decode_body, encode, encode_body, encode_frame
from cosine_protocol.digests import encode_request, request_digest, roll_digest
from cosine_protocol.errors import ErrorCode
from cosine_protocol.identity import Identity
from cosine_protocol.likelihoods import told_digest
from cosine_protocol.manifest import (
    PIECE_BYTES,
    Manifest,
    ManifestPart,
    ManifestTensor,
    manifest_digest,
    pieces_root,
)
from cosine_protocol.membership import read_certificate, read_revocations, sign_certificate, sign_revocations
from cosine_protocol.nodes import Node, NodeBlock
from cosine_protocol.noise import gumbel, noise_bits, position_key
from cosine_protocol.protocols import TAG_OF, VERSION
from cosine_protocol.records import Role, cell_key, seal_record
from cosine_protocol.request import MAX_SEED, AskedLogprobs, Request, Sampling
from cosine_protocol.statements import (
    TRANSCRIPT_KIND,
    VERDICT_KIND,
    sign_transcript,
    sign_verdict,
)
from tests.protocol.samples import (
    CONSTRAINED_SAMPLING,
    COORDINATE,
    GENERATION_DEFAULTS,
    LIFETIME_S,
    LIKELIHOODS,
    NOW_S,
    OTHER,
    OWNER,
    SHAPED_SAMPLING,
    SPEC_SEED,
    STAGE_OFFER,
    SWARM,
    SWARM_SEED,
    record_of,
    request_of,
)
from tests.protocol.strategies import WIRE_CLASSES
from tests.protocol.vectors import as_json, schema, write

NUMBER: Final = 3
REQUEST: Final = request_of()
SHAPED: Final = request_of(sampling=SHAPED_SAMPLING)
CONSTRAINED: Final = request_of(sampling=CONSTRAINED_SAMPLING)
BOTH: Final = request_of(sampling=replace(CONSTRAINED_SAMPLING, shaping=SHAPED_SAMPLING.shaping))
TOLD: Final = request_of(logprobs=AskedLogprobs(2))
TOLD_WHOLE: Final = replace(CONSTRAINED, logprobs=AskedLogprobs(0, of_prompt=True))
D_0: Final = request_digest(REQUEST)
TOKENS: Final = (3, 5, 8)
DIGEST: Final = roll_digest(D_0, TOKENS)
NODES: Final = NodeBlock.of([Node(-1, 13, 0.9), Node(0, 21, 0.5), Node(0, 34, 0.25), Node(1, 55, 1.0)])
AUTHORS: Final = bytes([1, 1, 2, 1])
STATS: Final = m.PassStats(nodes=4, near_ties=0, pass_us=21_500)
DRAFT: Final = encode_body(m.Draft(NUMBER, 1, DIGEST, len(TOKENS), NODES))
ACCOUNT: Final = encode_body(m.Account(NUMBER, m.FinishReason.EOS, len(TOKENS), DIGEST, (2, 0)))
MANDATE: Final = encode_body(m.Mandate(OWNER.peer_id, (OTHER.peer_id,), 128, NOW_S, LIFETIME_S))
SIGNED_MANDATE: Final = m.SignedMandate(MANDATE, OTHER.sign(kind="mandate", digest=D_0, body=MANDATE))
WINDOWED: Final = replace(REQUEST, prompt=REQUEST.prompt[-2:], nonce=bytes(16))
WINDOW_MANDATE: Final = encode_body(
    replace(decode_body(m.Mandate, MANDATE), prompt_window_tokens=2, shown=request_digest(WINDOWED))
)
SIGNED_WINDOW_MANDATE: Final = m.SignedMandate(
    WINDOW_MANDATE, OTHER.sign(kind="mandate", digest=D_0, body=WINDOW_MANDATE)
)
SHARING_MANDATE: Final = encode_body(
    replace(decode_body(m.Mandate, MANDATE), shares_feedback=True, pupil=OTHER.peer_id)
)
SIGNED_SHARING_MANDATE: Final = m.SignedMandate(
    SHARING_MANDATE, OTHER.sign(kind="mandate", digest=D_0, body=SHARING_MANDATE)
)
TRANSCRIPT: Final = m.Transcript(1, len(TOKENS), DIGEST)
SIGNED_TRANSCRIPT: Final = sign_transcript(OWNER, TRANSCRIPT, d_0=D_0)
CLAIM: Final = m.AskAudit(NUMBER, REQUEST, TOKENS, OWNER.peer_id, SIGNED_TRANSCRIPT)
VERDICT: Final = m.AuditVerdict(OWNER.peer_id, 1, len(TOKENS), DIGEST, 1, 0, 1, (m.AuditFinding(2, 13, 4.5),))
AUDITED: Final = sign_verdict(OTHER, VERDICT, number=NUMBER, d_0=D_0)
TOLD_D_0: Final = request_digest(TOLD)
TOLD_TRANSCRIPT: Final = m.Transcript(1, len(TOKENS), roll_digest(TOLD_D_0, TOKENS), told_digest(LIKELIHOODS))
SIGNED_TOLD: Final = sign_transcript(OWNER, TOLD_TRANSCRIPT, d_0=TOLD_D_0)
TOLD_CLAIM: Final = m.AskAudit(NUMBER, TOLD, TOKENS, OWNER.peer_id, SIGNED_TOLD, LIKELIHOODS)
TOLD_VERDICT: Final = replace(
    VERDICT, digest=TOLD_TRANSCRIPT.digest, equal=2, different=0, findings=(), widest_gap=0.5, mean_gap=-0.25
)
TOLD_AUDITED: Final = sign_verdict(OTHER, TOLD_VERDICT, number=NUMBER, d_0=TOLD_D_0)
STAGED_AUDITED: Final = sign_verdict(OTHER, replace(VERDICT, stages=(SWARM.peer_id,)), number=NUMBER, d_0=D_0)
KEY: Final = cell_key(network="main", role=Role.VERIFIER, target="someone/model", owner=OWNER.peer_id, depth=2)
SEALED: Final = seal_record(record_of(), OWNER, key=KEY)

CHAIN: Final = bytes(range(64, 80))
JOIN: Final = s.Join(
    chain=CHAIN,
    target_digest=REQUEST.target_digest,
    numerics="float32",
    first_layer=8,
    end_layer=16,
    layers=24,
    pool_tokens=4096,
    window_pool_tokens=1024,
    window_tokens=512,
    first_sequence=NUMBER,
    source=OTHER.peer_id,
    target=SWARM.peer_id,
    addresses=("/ip4/192.0.2.1/tcp/4001",),
)
LAST_JOIN: Final = replace(
    JOIN,
    first_layer=16,
    end_layer=24,
    window_pool_tokens=None,
    window_tokens=None,
    target=None,
    addresses=(),
)
FED: Final = s.FedRow(NUMBER, TOKENS, (4, 5, 6), (-1, 4, 4), 1, 2, wants_nll=False)
ESTIMATES: Final = ((s.TokenEstimate(13, 0.75), s.TokenEstimate(21, 0.25)), (s.TokenEstimate(34, 0.5),))
ANSWER: Final = s.RowAnswer(s.RowFault.NONE, (13, 34), struct.pack("<2d", 0.5, math.inf), ESTIMATES, 2.5)

TENSOR: Final = bytes(range(256)) * 1025
"""The bytes of a tensor of two pieces."""
PIECES: Final = [hashlib.sha256(TENSOR[at : at + PIECE_BYTES]).digest() for at in (0, PIECE_BYTES)]
MANIFEST: Final = Manifest(
    (ManifestPart("config.json", 2, hashlib.sha256(b"{}").digest()),),
    (ManifestTensor("layers.0.weight", "BF16", (41, 3200), len(TENSOR), pieces_root(PIECES)),),
)

CERTIFICATE: Final = sign_certificate(
    SWARM, name="friends", member=OWNER.peer_id, serial=7, starts_at_s=NOW_S, lifetime_s=LIFETIME_S
)
REVOCATIONS: Final = sign_revocations(SWARM, sequence=3, serials={OTHER.peer_id: 5})


def _upkeep() -> list[m.Message]:
    return [
        m.Hello(VERSION, ("later",), "cosine-p2p/0.1.0"),
        m.Ping(1, 40, 512),
        m.Pong(1),
        m.Error(NUMBER, ErrorCode.OVERLOADED, "all 16 places are taken", 2.0),
        m.Error(0, ErrorCode.MALFORMED, "unknown message tag 99", None),
        m.Final(ACCOUNT, OWNER.sign(kind="final", digest=D_0, body=ACCOUNT)),
    ]


def _verify_messages() -> list[m.Message]:
    commit = (len(TOKENS), (13, 21), roll_digest(DIGEST, (13, 21)), b"\1\0", STATS)
    return [
        m.Open(NUMBER, REQUEST, TOKENS, m.Pacing.FREE, (OWNER.peer_id, OTHER.peer_id)),
        m.Open(NUMBER, REQUEST, (), m.Pacing.FREE, (), cache_scope=bytes(range(16))),
        m.Open(NUMBER, SHAPED, TOKENS, m.Pacing.FREE, ()),
        m.Open(NUMBER, CONSTRAINED, TOKENS, m.Pacing.FREE, ()),
        m.Opened(NUMBER, 21_500),
        m.Opened(NUMBER, 21_500, break_even=750),
        m.Tree(NUMBER, DIGEST, len(TOKENS), NODES, AUTHORS),
        m.Commit(NUMBER, *commit),
        m.Commit(NUMBER, *commit, transcript=SIGNED_TRANSCRIPT),
        m.Commit(NUMBER, *commit[:-1], replace(STATS, cached_tokens=48)),
        m.Open(NUMBER, TOLD, (), m.Pacing.FREE, ()),
        m.Open(NUMBER, REQUEST, (), m.Pacing.FREE, (), prediction=(13, 21, 34)),
        m.Commit(NUMBER, *commit, likelihoods=LIKELIHOODS),
        m.PromptLikelihoods(NUMBER, 2, LIKELIHOODS),
        m.Cancel(NUMBER),
        m.Delegate(NUMBER, SIGNED_MANDATE),
        m.Declined(NUMBER, "too many requests are coordinated here"),
        m.Revoke(NUMBER),
        m.Credit(NUMBER, 2, DRAFT, OTHER.sign(kind="fragment", digest=D_0, body=DRAFT)),
        m.Report(NUMBER, 1, 40, 20_300, "asked to draft, 20 ms away"),
        m.Report(NUMBER, 1, 40, 20_300, "", offered=12),
    ]


def _draft_messages() -> list[m.Message]:
    return [
        m.Start(NUMBER, REQUEST, TOKENS),
        m.Start(NUMBER, REQUEST, TOKENS, SIGNED_MANDATE),
        m.Start(NUMBER, WINDOWED, TOKENS, None, D_0),
        m.Start(NUMBER, WINDOWED, TOKENS, SIGNED_WINDOW_MANDATE, D_0),
        m.Start(NUMBER, REQUEST, TOKENS, shares_feedback=True),
        m.Start(NUMBER, REQUEST, TOKENS, SIGNED_SHARING_MANDATE),
        m.Started(NUMBER, 2.5, 900),
        m.Assign(NUMBER, DIGEST, len(TOKENS), depth=8, width=2, window=32),
        m.Assign(NUMBER, DIGEST, len(TOKENS), depth=8, width=2, window=32, rarity=300),
        m.Fragment(DRAFT, OWNER.sign(kind="fragment", digest=D_0, body=DRAFT)),
        m.Advance(NUMBER, len(TOKENS), (13, 21)),
        m.Busy(NUMBER, 2.0),
        m.Release(NUMBER),
        m.Release(NUMBER, 12, 40, m.ReleaseReason.SELDOM_RIGHT),
    ]


def _other_messages() -> list[m.Message]:
    return [
        m.AskRecords(NUMBER, KEY),
        m.Records(NUMBER, (SEALED,)),
        m.AskFile(NUMBER, bytes(range(32, 64)), "tokenizer.json", 262_144),
        m.AskFile(NUMBER, bytes(range(32, 64)), "tokenizer.json", 262_144, compresses=True),
        m.FilePiece(NUMBER, 262_150, b"ending"),
        m.FilePiece(NUMBER, 262_150, zlib.compress(b"ending", 0), is_compressed=True),
        m.AskStatus(NUMBER),
        m.Status(NUMBER, SEALED, 3, 40, 12.5),
        m.Status(NUMBER, SEALED, 3, 40, 12.5, COORDINATE),
        m.Status(NUMBER, SEALED, 3, 40, 12.5, COORDINATE, 120, 400),
        CLAIM,
        AUDITED,
        TOLD_CLAIM,
        TOLD_AUDITED,
        STAGED_AUDITED,
        m.Member(CERTIFICATE, 3),
        m.Revoked(REVOCATIONS),
        w.AskWeights(NUMBER, manifest_digest(MANIFEST.encode()), w.WeightKind.TENSOR, 0, PIECE_BYTES),
        w.WeightBytes(NUMBER, len(TENSOR), b"ending"),
    ]


def _stage_messages() -> list[m.Message]:
    return [
        JOIN,
        LAST_JOIN,
        s.Joined(CHAIN),
        s.Follow(CHAIN),
        s.OpenSequence(NUMBER, REQUEST.sampling, 4, "everyone"),
        s.OpenSequence(NUMBER, SHAPED.sampling, 4, "everyone"),
        s.OpenSequence(NUMBER, CONSTRAINED.sampling, 4, "everyone"),
        s.ReusePrefix(NUMBER, TOKENS),
        s.ReserveRoom(NUMBER, 32),
        s.FeedPass(NUMBER, (FED,), 24),
        s.Activations(struct.pack("<6f", *range(6))),
        s.KeepPath(NUMBER, (4, 6)),
        s.PruneNodes(NUMBER, (5,)),
        s.ReleaseSequence(NUMBER),
        s.Passed(NUMBER, 1500, is_left_out=False),
        s.Passed(NUMBER, 1500, is_left_out=False, came_us=840_000),
        s.Results(NUMBER, (ANSWER, s.RowAnswer(s.RowFault.NOT_COMPUTED, (), b"", (), None))),
        s.Probe(bytes(range(16)), (s.FeedPart(NUMBER, 0, 1), s.FeedPart(NUMBER + 1, 2, 3))),
        s.Probed((s.PartTrace(struct.pack("<16f", *range(16)), b""), s.PartTrace(b"", b""))),
    ]


def _frame(message: m.Message) -> dict[str, Any]:
    return {
        "message": type(message).__name__,
        "tag": TAG_OF[type(message)],
        "fields": as_json(message),
        "frame": encode_frame(encode(message)).hex(),
    }


def _noise(seed: int, position: int, token: int) -> dict[str, Any]:
    # Words of 64 bits are written in hex: many JSON readers know doubles only.
    return {
        "seed": f"{seed:016x}",
        "position": position,
        "token": token,
        "position_key": f"{position_key(seed=seed, position=position):016x}",
        "bits": f"{noise_bits(seed=seed, position=position, token=token):016x}",
        "gumbel": gumbel(seed=seed, position=position, token=token),
    }


def _request(request: Request) -> dict[str, Any]:
    d_0 = request_digest(request)
    return {
        "request": as_json(request),
        "encoded": encode_request(request).hex(),
        "d_0": d_0.hex(),
        "tokens": list(TOKENS),
        "digest_after_tokens": roll_digest(d_0, TOKENS).hex(),
    }


def _requests() -> list[Request]:
    greedy = replace(REQUEST, sampling=Sampling(), eos=())
    largest = replace(REQUEST, sampling=Sampling(temperature=1.0, seed=MAX_SEED), numerics="bfloat16", prompt=(0,))
    return [
        REQUEST,
        replace(REQUEST, max_new_tokens=1),
        greedy,
        largest,
        SHAPED,
        CONSTRAINED,
        BOTH,
        TOLD,
        TOLD_WHOLE,
    ]


def _signed(
    kind: str, signer: Identity, body: bytes, cls: type, signature: bytes, *, d_0: bytes = D_0
) -> dict[str, Any]:
    """A signed body of the request with what it decodes to."""
    where = {"kind": kind, "signer": signer.peer_id, "d_0": d_0.hex(), "body": body.hex()}
    return {**where, "fields": as_json(decode_body(cls, body)), "signature": signature.hex()}


def main() -> None:
    """Write every vector file."""
    seeds, positions, tokens = (0, 1, 42, MAX_SEED), (0, 1, 4095), (0, 1, 50_256, (1 << 31) - 1)
    write("noise", [_noise(*where) for where in product(seeds, positions, tokens)])
    write("request_digests", [_request(request) for request in _requests()])
    messages = [*_upkeep(), *_verify_messages(), *_draft_messages(), *_other_messages(), *_stage_messages()]
    write("frames", [_frame(message) for message in messages])
    write("schema", {cls.__name__: schema(cls) for cls in WIRE_CLASSES})
    key_file, peer_id = OWNER.to_file_bytes().hex(), OWNER.peer_id
    write("identity", {"seed": SPEC_SEED.hex(), "key_file": key_file, "peer_id": peer_id})
    signed = {"kind": "fragment", "signer": peer_id, "d_0": D_0.hex(), "body": DRAFT.hex()}
    signature = OWNER.sign(kind="fragment", digest=D_0, body=DRAFT).hex()
    write("fragment", {"private_seed": SPEC_SEED.hex(), **signed, "signature": signature})
    write("mandate", _signed("mandate", OTHER, MANDATE, m.Mandate, SIGNED_MANDATE.signature))
    transcript = SIGNED_TRANSCRIPT
    write("transcript", _signed(TRANSCRIPT_KIND, OWNER, transcript.body, m.Transcript, transcript.signature))
    write("audit", _signed(VERDICT_KIND, OTHER, AUDITED.body, m.AuditVerdict, AUDITED.signature))
    where = {"key": KEY, "owner": peer_id, "now_s": NOW_S}
    for name, record in {
        "record": record_of(),
        "record_with_generation_defaults": record_of(generation_defaults=GENERATION_DEFAULTS),
        "record_with_certificate": record_of(certificate=CERTIFICATE),
        "record_with_coordinate": record_of(coordinate=COORDINATE),
        "record_of_stage": record_of(role=Role.STAGE, stage=STAGE_OFFER),
        "record_of_learner": record_of(learns=True),
        "record_with_draft_cost": record_of(four_tokens_permille=4020),
        "record_of_head": record_of(stages=(OTHER.peer_id, SWARM.peer_id)),
    }.items():
        write(name, {**where, "fields": as_json(record), "sealed": seal_record(record, OWNER, key=KEY).hex()})
    swarm = {"swarm_seed": SWARM_SEED.hex()}
    shown = {"member": OWNER.peer_id, "now_s": NOW_S, "fields": as_json(read_certificate(CERTIFICATE))}
    write("certificate", {**swarm, **shown, "certificate": CERTIFICATE.hex()})
    revoked = as_json(read_revocations(REVOCATIONS))
    write("revocations", {**swarm, "fields": revoked, "revocations": REVOCATIONS.hex()})
    encoded = MANIFEST.encode()
    named = {
        "fields": as_json(MANIFEST),
        "encoded": encoded.hex(),
        "content_digest": manifest_digest(encoded).hex(),
    }
    write("manifest", {**named, "pieces": [digest.hex() for digest in PIECES]})


if __name__ == "__main__":
    main()
