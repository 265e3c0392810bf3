"""The wire without I/O: messages, frames, signed bodies, trees. Accepted data must be equal when it is sent on."""

import base64
import json
from dataclasses import replace
from functools import cache, partial
from hashlib import sha256
from typing import Any, Final

from multiaddr import Multiaddr

from cosine_p2p.dht.postings import (
    PostingChecker,
    RecordOpener,
    RecordStore,
    StoredValue,
    dht_key,
    subkey_bytes,
)
from cosine_p2p.session.drafts import Drafts, SignedDraft
from cosine_p2p.strategy.tree import MAX_LIVE_NODES, LiveTree
from cosine_p2p.transport.full.questions import field, read_dial_back, read_identity, read_reservation, varint
from cosine_p2p.transport.reach import Findings, judge_reach
from cosine_p2p.trust.audit_rule import accuses
from cosine_p2p.trust.evidence import evidence_of_json
from cosine_protocol.audit import AskAudit, Audited, AuditVerdict, open_claim, open_verdict
from cosine_protocol.codec import FrameDecoder, decode, encode, encode_frame
from cosine_protocol.digests import encode_request, extend_digest, request_digest, roll_digest
from cosine_protocol.draft import Draft, Fragment, Mandate, NodeBlock, open_mandate
from cosine_protocol.fields import DIGEST_BYTES, decode_body, encode_body
from cosine_protocol.identity import Identity, Signed, public_key_of, unseal
from cosine_protocol.membership import (
    Certificate,
    Revocations,
    check_certificate,
    from_line,
    read_certificate,
    read_revocations,
)
from cosine_protocol.records import NodeRecord, cell_key, open_record
from cosine_protocol.request import Request
from cosine_protocol.verify import Transcript, Tree
from cosine_protocol.weights import PIECE_BYTES, Manifest
from tests.fuzz.mutation import mutated_json, mutated_message, mutated_moves, mutated_signed
from tests.fuzz.target import FuzzTarget, any_taken, moves, script
from tests.protocol import vectors
from tests.protocol.samples import NOW_S, OTHER, OWNER, SWARM, record_of, request_of
from tests.protocol.strategies import BODIES

NETWORK: Final = "main"
CELL: Final = cell_key(network=NETWORK, role="verifier", target="someone/model", owner=OWNER.peer_id, depth=2)
SIGNED: Final = 1
"""The bit of an input's first byte for a body that its sender signs."""


@cache
def frames() -> tuple[bytes, ...]:
    return tuple(bytes.fromhex(vector["frame"]) for vector in vectors.read("frames"))


def bodies() -> list[bytes]:
    return [frame[4:] for frame in frames()]


def message_of(cls: type) -> Any:
    """The first example of a message in the vectors."""
    return next(found for found in map(decode, bodies()) if isinstance(found, cls))


def check_message(data: bytes) -> None:
    """An accepted message is equal when it is sent on, and a request in it has one digest."""
    message = decode(data)
    assert decode(encode(message)) == message
    request = getattr(message, "request", None)
    if isinstance(request, Request):
        encode_request(request)
        assert len(roll_digest(request_digest(request), request.prompt[:8])) == DIGEST_BYTES


def check_stream(data: bytes) -> None:
    """A stream has the same frames in pieces of any size, which the first byte gives."""
    step, stream = 1 + data[0] if data else 1, data[1:]
    pieces, whole = FrameDecoder(), FrameDecoder()
    found = [frame for at in range(0, len(stream), step) for frame in pieces.feed(stream[at : at + step])]
    assert found == whole.feed(stream) and pieces._buffer == whole._buffer
    assert b"".join(map(encode_frame, found)) == stream[: sum(4 + len(frame) for frame in found)]
    for frame in found:
        check_message(frame)


def check_bodies(data: bytes) -> None:
    """Every body that may be signed."""

    def read(cls: type[Any]) -> None:
        body = decode_body(cls, data)
        assert decode_body(cls, encode_body(body)) == body

    any_taken(partial(read, cls) for cls in (*BODIES, Request, NodeBlock, StoredValue))


def _sealed(body: bytes) -> bytes:
    """A record of any body, signed as in docs/protocol.md."""
    binding = sha256(CELL.encode()).digest()[:DIGEST_BYTES]
    return encode_body(Signed(body, OWNER.sign(kind=NodeRecord.KIND, digest=binding, body=body)))


def check_record(data: bytes) -> None:
    """A record and its value in the DHT, as writers and readers check them."""
    is_signed, rest = bool(data) and data[0] & SIGNED, data[1:]
    if is_signed:
        rest = _sealed(rest[:4096]) if len(rest) < 3900 else rest
        value, subkey = encode_body(StoredValue(CELL, rest[:4096])), subkey_bytes(OWNER.peer_id)
        record = open_record(rest, key=CELL, owner=OWNER.peer_id, now_s=NOW_S)
    else:
        cut = data[0] >> 1 if data else 0
        subkey, value = rest[:cut], rest[cut:]
        record = None
    checker, store = PostingChecker(NETWORK, RecordOpener()), RecordStore()
    until_s = NOW_S + 200.0
    posting = checker.check(key=dht_key(CELL), subkey=subkey, value=value, expires_at_s=until_s, now_s=NOW_S)
    assert store.put(dht_key(CELL), posting, NOW_S) and store.get(dht_key(CELL), NOW_S) == [posting]
    assert record is None or posting.record == record


def record_seeds() -> list[bytes]:
    sealed = encode_body(record_of())
    subkey = subkey_bytes(OWNER.peer_id)
    value = encode_body(StoredValue(CELL, _sealed(sealed)))
    names = ("record_with_generation_defaults", "record_with_certificate", "record_with_coordinate")
    stored = [unseal(NodeRecord, bytes.fromhex(vectors.read(name)["sealed"])).body for name in names]
    return [b"\1" + sealed, bytes([2 * len(subkey)]) + subkey + value, *(b"\1" + body for body in stored)]


def check_membership(data: bytes) -> None:
    kind, rest = data[0] if data else 0, data[1:]
    if kind & SIGNED and len(rest) < 400:
        what = Certificate.KIND if kind & 2 else Revocations.KIND
        signature = SWARM.sign(kind=what, digest=b"", body=rest)
        rest = encode_body(Signed(rest, signature))
    elif kind & 4:
        rest = from_line(rest.decode("latin-1"), prefix="cosine-member:")
    if kind & 2:
        certificate = read_certificate(rest)
        check_certificate(certificate, swarm=SWARM.peer_id, member=OWNER.peer_id, now_s=NOW_S, revoked={})
    else:
        read_revocations(rest)


def membership_seeds() -> list[bytes]:
    certificate = bytes.fromhex(vectors.read("certificate")["certificate"])
    revocations = bytes.fromhex(vectors.read("revocations")["revocations"])
    signed = unseal(Certificate, certificate).body, unseal(Revocations, revocations).body
    return [b"\2" + certificate, b"\0" + revocations, b"\3" + signed[0], b"\1" + signed[1], b"\6cosine-member:AAAA"]


def check_mandate(data: bytes) -> None:
    """Any mandate that a client signs."""
    d_0 = request_digest(request_of())
    signed: Signed[Mandate] = Signed(data, OTHER.sign(kind=Mandate.KIND, digest=d_0, body=data))
    open_mandate(signed, client=OTHER.peer_id, d_0=d_0, delegate=OWNER.peer_id, now_s=NOW_S)


def check_audit(data: bytes) -> None:
    """A claim and an auditor's answer: two moves, each signed if its first bit is set."""
    steps = [*moves(data), (0, b""), (0, b"")]
    (how, asked), (how_answered, body) = steps[:2]
    claim = decode(asked)
    if not isinstance(claim, AskAudit):
        return
    d_0, body = request_digest(claim.request), body[:4096]
    if how & SIGNED:
        signature = OWNER.sign(kind=Transcript.KIND, digest=d_0, body=claim.transcript.body)
        claim = replace(claim, author=OWNER.peer_id, transcript=Signed(claim.transcript.body, signature))
    open_claim(claim)
    signature = OTHER.sign(kind=AuditVerdict.KIND, digest=d_0, body=body) if how_answered & SIGNED else bytes(64)
    answer = Audited(claim.number, body, signature)
    accuses(open_verdict(answer, auditor=OTHER.peer_id, claim=claim), claim.request)


def audit_seeds() -> list[bytes]:
    claim, answer = message_of(AskAudit), message_of(Audited)
    assert isinstance(decode_body(AuditVerdict, answer.body), AuditVerdict)
    return [script((SIGNED, encode(claim)), (SIGNED, answer.body)), script((0, encode(claim)), (0, answer.body))]


def check_evidence(data: bytes) -> None:
    for piece in evidence_of_json(json.loads(data)):
        piece.open()


def evidence_seeds() -> list[bytes]:
    claim, answer = (base64.b64encode(encode(message_of(cls))).decode() for cls in (AskAudit, Audited))
    piece = {"claim": claim, "statements": [{"auditor": OTHER.peer_id, "answer": answer}]}
    others = [piece], [{"claim": claim, "statements": []}], [5, piece]
    return [json.dumps(each).encode() for each in others]


def check_manifest(data: bytes) -> None:
    manifest = Manifest.decode(data)
    assert manifest.encode() == data
    for tensor in manifest.tensors:
        assert tensor.pieces == 0 or 0 < tensor.piece_bytes(tensor.pieces - 1) <= PIECE_BYTES


def check_identity(data: bytes) -> None:
    if data[:1] == b"\x08":
        assert Identity.from_file_bytes(data).to_file_bytes() == data
    else:
        assert len(public_key_of(data.decode("latin-1"))) == 32


def check_tree(data: bytes) -> None:
    """A live tree and the signed fragments of its authors, under any drafts and commits.

    The bits of a move select a draft or a commit, and one of the known prefixes.
    """
    d_0 = request_digest(request_of())
    tree, drafts, known = LiveTree(d_0), Drafts(d_0), [d_0]
    for how, sent in moves(data):
        base = known[(how >> 2) % len(known)]
        if how & 3 == 0:
            token = int.from_bytes(sent[:2]) % 64
            drafts.commit(tree.position, [token], b"\1")
            tree.advance([token])
            known.append(tree.root.digest)
            continue
        message = decode(sent)
        nodes, position = getattr(message, "nodes", None), getattr(message, "position", 0)
        if not isinstance(nodes, NodeBlock):
            continue
        node = next((node for node in (tree.root, *tree.walk()) if node.digest == base), None)
        place = position if how & 2 or node is None else node.position + 1
        draft = Draft(1, 1, base, min(place, 131_072), nodes)
        digests = drafts.add(1, SignedDraft(Fragment(b"", bytes(64))), draft)
        touched = tree.attach(base, place, nodes, [1 + how % 3] * len(nodes), digests if how & 1 else ())
        known += [node.digest for node in touched][:8]
    walked = list(tree.walk())
    assert len(walked) == len(tree) <= MAX_LIVE_NODES
    for node in walked:
        assert node.parent is not None and node.digest == extend_digest(node.parent.digest, node.token)
        assert node.position == node.parent.position + 1


def tree_seeds() -> list[bytes]:
    block = encode(message_of(Tree))
    return [
        script((1, block)),
        script((5, block), (0, b"\0\x0d"), (9, block), (3, block), (0, b"\0\1")),
    ]


def first_of(vector: str) -> bytes:
    return bytes.fromhex(vectors.read(vector)["body"])


def check_answer(data: bytes) -> None:
    """Answers of libp2p's protocols about our reachability; the first byte selects the protocol."""
    kind, answer = data[:1], data[1:]
    if kind == b"r":
        places = read_reservation(answer, OWNER.peer_id, least_bytes=1 << 20).maddrs
    elif kind == b"d":
        places = (read_dial_back(answer, OWNER.peer_id) or "",)
    else:
        told = read_identity(answer, OWNER.peer_id)
        places = (*told.maddrs, told.seen_at)
    for place in places:
        judge_reach(Findings(own=(place,), circuits=(place,), seen_at={"peer": place}, public_peers=1))


def answer_seeds() -> list[bytes]:
    place = Multiaddr("/ip4/203.0.113.1/tcp/4001").to_bytes()
    return [
        b"r\x08\x02" + field(3, field(2, place)) + field(4, b"\x10" + varint(1 << 27)) + b"\x28\x64",
        b"d\x08\x01" + field(3, b"\x08\x00" + field(3, place)),
        b"i" + field(2, place) + field(3, b"/a/1.0.0") + field(4, place),
    ]


TARGETS: Final = {
    "message": FuzzTarget(check=check_message, seeds=bodies, runs=60_000, mutate=mutated_message),
    "stream": FuzzTarget(check=check_stream, seeds=lambda: [b"\0" + frame for frame in frames()], runs=20_000),
    "body": FuzzTarget(
        check=check_bodies,
        seeds=lambda: [*map(first_of, ("audit", "mandate"))],
        runs=20_000,
        mutate=mutated_message,
    ),
    "record": FuzzTarget(check=check_record, seeds=record_seeds, runs=15_000, mutate=mutated_signed),
    "membership": FuzzTarget(check=check_membership, seeds=membership_seeds, runs=20_000, mutate=mutated_signed),
    "mandate": FuzzTarget(
        check=check_mandate, seeds=lambda: [first_of("mandate")], runs=10_000, mutate=mutated_message
    ),
    "audit": FuzzTarget(check=check_audit, seeds=audit_seeds, runs=20_000, mutate=mutated_moves),
    "evidence": FuzzTarget(
        check=check_evidence, seeds=evidence_seeds, runs=20_000, mutate=mutated_json, refusals=(ValueError,)
    ),
    "manifest": FuzzTarget(
        check=check_manifest,
        seeds=lambda: [bytes.fromhex(vectors.read("manifest")["encoded"])],
        runs=10_000,
        mutate=mutated_message,
    ),
    "identity": FuzzTarget(
        check=check_identity, seeds=lambda: [OWNER.to_file_bytes(), OWNER.peer_id.encode()], runs=10_000
    ),
    "answer": FuzzTarget(check=check_answer, seeds=answer_seeds, runs=10_000),
    "tree": FuzzTarget(check=check_tree, seeds=tree_seeds, runs=10_000, mutate=mutated_moves),
}
