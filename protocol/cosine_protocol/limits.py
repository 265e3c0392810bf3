"""The limits of messages. A value beyond its limit is a `RemoteProtocolError`.

A limit bounds the memory and computation that a stranger can cause; the comment names what honest peers need, which
is usually less than half. Messages at their limits fit into a frame. Raising a limit changes the wire.
"""

from typing import Final

MAX_FRAME_BYTES: Final = 1 << 20  # Bounds memory, a frame a stream; an `Open` of the longest prompt fits.
MAX_PROMPT_TOKENS: Final = 131_072  # The longest context of common open models, 128 Ki tokens.
MAX_NEW_TOKENS: Final = MAX_PROMPT_TOKENS  # As many as a prompt may have.
MAX_TREE_NODES: Final = 256  # What a byte tells apart: a node's parent, of which one value is the base.
MAX_COMMIT_TOKENS: Final = MAX_TREE_NODES  # A pass commits the accepted nodes of a tree and one more.
MAX_TREE_DEPTH: Final = 64
"""Drafters draft 24 tokens deep, or as far as they get before news of their drafts (decision 15): 54 where passes
take 60 and 6 ms and all are 100 ms apart."""
MAX_WINDOW_NODES: Final = 4 * MAX_TREE_NODES  # Bounds what a drafter may have under way, at four full trees.
MAX_RARITY: Final = 65_535  # Two bytes. Paths rarer than one in 300 bring a hundredth at most (decision 15).
MAX_AUTHORS: Final = 64  # A byte tells authors apart. A client asks eight drafters by itself (decision 2).
HOME_AUTHOR: Final = 255  # What a verifier's own drafter drafted; no drafter's, above `MAX_AUTHORS`.
FORCED_AUTHOR: Final = 254  # What the constraint left no choice about, so that the verifier drafted it.
MAX_MANDATE_BYTES: Final = 4096  # Room for `MAX_AUTHORS` peer ids of 52 characters and the other fields.
MAX_MANDATE_S: Final = 3600.0
"""Bounds for how long drafters obey a delegate whose client is gone. `MAX_NEW_TOKENS` take so long at 36 tokens a
second."""
TRANSCRIPT_EVERY_TOKENS: Final = 32
"""At most 31 tokens of a stream that is left go unsigned; the 100 bytes of a transcript are three a token."""
MAX_AUDIT_FINDINGS: Final = 64  # Bounds a verdict, in which one wide difference is enough to accuse.
MAX_SCORE_GAP: Final = 1e6  # As good as infinite between two scores, and finite on the wire.
MAX_NAMED_STAGES: Final = 16  # Their peer ids take a fifth of a record, and of a verdict.
MAX_EOS_TOKENS: Final = 64  # Above the handful that models have.
MAX_TEXT_BYTES: Final = 1024  # Bounds an error's sentence.
MAX_NAME_BYTES: Final = 256  # Of names of models, networks and cells: above the 96 characters of a Hugging Face id.
MAX_PEER_ID_BYTES: Final = 64  # An Ed25519 peer id has 52 characters.
MAX_FEATURES: Final = 32  # Three times the present ones (`cosine_protocol.protocols`), of 64 bytes each.
MAX_RECORD_BYTES: Final = 4096  # Bounds what a storing node keeps for one owner of a cell.
MAX_RECORD_TTL_S: Final = 900.0  # Bounds how long a node that is gone is still found.
MAX_RECORD_SKEW_S: Final = 60.0  # Clocks set by NTP differ by less than a second; this bears some that are not.
MAX_CELL_OWNERS: Final = 64  # Bounds one answer of a DHT node: a full cell of the largest records is 256 KiB.
MAX_FIND_KEYS: Final = 8
"""Bounds what one call of the DHT costs its node. Eight full cells of the largest records are 2.6 MiB as they are
stored; libp2p's daemon carries answers of up to 3.9 MiB (measured)."""
MAX_EXPERTISE: Final = 16  # Domains of one drafter. Of 64 bytes each they take a quarter of a record.
MAX_ADDRESSES: Final = 16  # As many as a host with several interfaces and a relay announces.
MAX_FILE_BYTES: Final = 64 << 20  # Bounds a download; a tokenizer.json in common use has at most tens of MB.
MAX_CHUNK_BYTES: Final = MAX_FRAME_BYTES // 4  # So that other messages get between two pieces.
MAX_REQUEST_NUMBER: Final = (1 << 53) - 1  # Whole numbers up to here are exact as doubles, too.
MAX_TOKEN_ID: Final = (1 << 31) - 1  # Fits a signed 32-bit integer.
DIGEST_BYTES: Final = 16  # BLAKE2b-128: collisions would take 2^64 hashes, within the life of one request.
CONTENT_DIGEST_BYTES: Final = 32  # SHA-256.
SIGNATURE_BYTES: Final = 64  # Ed25519 (RFC 8032).
NONCE_BYTES: Final = 16  # 128 random bits never repeat.
CACHE_SCOPE_BYTES: Final = 16  # 128 random bits: nobody else meets them by chance.
USER_BYTES: Final = 8  # The first of a cache scope, which name a user: no client has billions of them.
CHAIN_ID_BYTES: Final = 16  # 128 random bits: nobody who was not told of a chain can name it.
MAX_LAYERS: Final = 4096  # Thirty times as many as the deepest open models have.
MAX_POOL_TOKENS: Final = 1 << 30  # As many as a record may announce.
MAX_FEED_ROWS: Final = 1024  # Far above the requests that one node serves at once.
MAX_FEED_TOKENS: Final = 4096  # Above the chunks of prompts; rows with the longest names take 100 KB.
MAX_FEED_CHOICES: Final = 32_768  # Bounds an answer, choices and candidates, to half a frame.
MAX_CANDIDATES: Final = MAX_TREE_NODES  # As many as a tree may have nodes.
MAX_NAMED_NODES: Final = 65_536  # Bounds a frame: the longest names take 590 KB.
MAX_ACTIVATION_BYTES: Final = MAX_FEED_TOKENS * 8192 * 4  # Of `MAX_FEED_TOKENS`, width 8,192, float32.
MAX_PART_BYTES: Final = MAX_CHUNK_BYTES  # Of activations, between two parts of which heartbeats get.
PROBE_SEED_BYTES: Final = 16  # 128 random bits: nobody guesses what will be asked.
KEPT_TOKENS: Final = 256  # Of its latest passes, for probes: 16 MiB at a width of 8,192 in float32.
MAX_PROBE_PARTS: Final = KEPT_TOKENS  # Each part has at least one of the tokens kept.
PROJECTIONS: Final = 16  # Tell how far two vectors differ within a factor of four, but once in 10**8 times.
PROJECTION_BYTES: Final = 4  # A float 32; those of `MAX_FEED_TOKENS`, in and out, take half a frame.
MARGIN_BYTES: Final = 8  # A float 64, which may be infinite.
MAX_TEMPERATURE: Final = 1e6  # At a million any distribution is all but uniform.
MIN_TOP_P: Final = 1e-9  # Above 0, where no token would be left.
MIN_REPETITION_PENALTY: Final = 1e-6  # Above 0, by which scores would be divided.
MAX_REPETITION_PENALTY: Final = 1 / MIN_REPETITION_PENALTY  # The inverse of the least one.
MAX_PENALTY: Final = 2.0  # As in OpenAI's API.
MAX_BIAS: Final = 100.0  # As in OpenAI's API: above what scores differ by, so that it decides alone.
MAX_BIASES: Final = 300  # As in OpenAI's API; they take 5 KB.
MAX_BAD_WORDS: Final = 512  # With a few tokens each they take 10 KB.
MAX_BAD_WORD_TOKENS: Final = 64  # A longer text is a sentence, and no word.
MAX_CONSTRAINT_BYTES: Final = 1 << 16  # Large JSON schemas of real tools have some 30 KB.
MAX_TOP_LOGPROBS: Final = 20  # As in OpenAI's API.
MAX_SURPRISAL: Final = 1_000_000_000  # A thousand nats in millionths: as good as impossible.
MAX_TOLD_BYTES: Final = 900_000  # Of a request's probabilities: its audit, with all of them, fits a frame.
MAX_TOLD_TOKENS: Final = MAX_COMMIT_TOKENS  # As many as a commit has.
MAX_PREDICTION_TOKENS: Final = MAX_PROMPT_TOKENS // 4
"""A file of some thousand lines. Its 160 KiB fit beside the longest prompt, 640 KiB, and the longest constraint."""
MAX_SWARM_NAME_BYTES: Final = 64  # The name of a private swarm is for people.
MAX_CERTIFICATE_BYTES: Final = 512  # Two peer ids, a name, a signature, and as much for later fields.
MAX_CERTIFICATE_S: Final = 31_622_400.0  # 366 days: for so long at most a revocation must be remembered.
MAX_REVOKED: Final = 1024  # Members revoked whose certificates have not ended by themselves.
MAX_REVOCATIONS_BYTES: Final = 128 * MAX_REVOKED  # Twice what peer ids with their serial numbers take.
MAX_NOT_HONOURED: Final = 16  # Names of options; the longest there are then take an eighth of a record.
MAX_COORDINATE_US: Final = 5_000_000  # 5 s, far above the round-trip times at which drafts are of use.
MAX_TENSORS: Final = 131_072  # Above the 89,000 of 256 experts in 58 layers, three matrices and scales each.
MAX_TENSOR_NAME_BYTES: Final = 256  # Common names have some 60.
MAX_DTYPE_BYTES: Final = 16  # The names of data types in safetensors and GGUF files have at most 9.
MAX_DIMENSIONS: Final = 8  # Above the four of convolutions.
MAX_TENSOR_BYTES: Final = 1 << 36  # 64 GiB: above the largest stacks of experts in one tensor.
MAX_MANIFEST_PARTS: Final = 64  # The configuration and all files that a tokenizer may have.
MAX_MANIFEST_BYTES: Final = 128 * MAX_TENSORS  # Room for rows with names of 60 and digests of 32.
