"""The limits of messages. A value beyond its limit is a `RemoteProtocolError`.

A limit bounds the memory and computation that a stranger can cause; the comment names what honest peers need, which
is usually less than half. Messages at their limits fit into a frame. Raising a limit changes the wire.
"""

from typing import Final

MAX_FRAME_BYTES: Final = 1 << 20  # Bounds memory, a frame a stream; an `Open` of the longest prompt fits.
MAX_PROMPT_TOKENS: Final = 131_072  # The longest context of common open models, 128 Ki tokens.
MAX_NEW_TOKENS: Final = MAX_PROMPT_TOKENS  # The same as for a prompt.
MAX_TREE_NODES: Final = 256  # A node's parent is one byte, of which one value is the base.
MAX_COMMIT_TOKENS: Final = MAX_TREE_NODES  # A pass commits the accepted nodes of a tree and one more.
MAX_TREE_DEPTH: Final = 64
"""Drafters draft 24 tokens deep, or until the next commit arrives (decision 15): 54 with passes of 60 and 6 ms and
100 ms between all peers."""
MAX_WINDOW_NODES: Final = 4 * MAX_TREE_NODES  # Bounds the unresolved nodes of a drafter to four full trees.
MAX_RARITY: Final = 65_535  # Two bytes. Paths rarer than one in 300 bring a hundredth at most (decision 15).
MAX_AUTHORS: Final = 64  # An author is one byte. A client asks eight drafters by default (decision 2).
HOME_AUTHOR: Final = 255  # Nodes of a verifier's own drafter; above `MAX_AUTHORS`.
FORCED_AUTHOR: Final = 254  # Nodes that a verifier drafted because the constraint forces them.
MAX_MANDATE_BYTES: Final = 4096  # Room for `MAX_AUTHORS` peer ids of 52 characters and the other fields.
MAX_MANDATE_S: Final = 3600.0
"""Bounds the time for which drafters obey a delegate whose client is gone: `MAX_NEW_TOKENS` at 36 tokens/s."""
TRANSCRIPT_EVERY_TOKENS: Final = 32
"""At most 31 tokens of an abandoned stream are unsigned; a transcript of 100 bytes adds three bytes per token."""
MAX_AUDIT_FINDINGS: Final = 64  # Bounds a verdict; one large difference is enough to accuse.
MAX_SCORE_GAP: Final = 1e6  # Stands for infinity.
MAX_NAMED_STAGES: Final = 16  # Their peer ids take a fifth of a record, and of a verdict.
MAX_EOS_TOKENS: Final = 64  # Models have a handful.
MAX_TEXT_BYTES: Final = 1024  # Bounds an error's sentence.
MAX_NAME_BYTES: Final = 256  # Names of models, networks and cells; a Hugging Face id has up to 96 characters.
MAX_PEER_ID_BYTES: Final = 64  # An Ed25519 peer id has 52 characters.
MAX_FEATURES: Final = 32  # Three times the present ones (`cosine_protocol.protocols`), of 64 bytes each.
MAX_RECORD_BYTES: Final = 4096  # Bounds the memory of a storing node for one owner of a cell.
MAX_RECORD_TTL_S: Final = 900.0  # Bounds the time for which a lost node is still found.
MAX_RECORD_SKEW_S: Final = 60.0  # Clocks set by NTP differ by less than a second; others may differ more.
MAX_CELL_OWNERS: Final = 64  # Bounds one answer of a DHT node: a full cell of the largest records is 256 KiB.
MAX_FIND_KEYS: Final = 8
"""Bounds the cost of one DHT call. Eight full cells of the largest records are 2.6 MiB; libp2p's daemon carries
answers of up to 3.9 MiB (measured)."""
MAX_EXPERTISE: Final = 16  # Domains of one drafter. With 64 bytes each they take a quarter of a record.
MAX_ADDRESSES: Final = 16  # Enough for a host with several interfaces and a relay.
MAX_FILE_BYTES: Final = 64 << 20  # Bounds a download; a tokenizer.json has at most tens of MB.
MAX_CHUNK_BYTES: Final = MAX_FRAME_BYTES // 4  # Lets other messages pass between two pieces.
MAX_REQUEST_NUMBER: Final = (1 << 53) - 1  # Integers up to this are exact as doubles.
MAX_TOKEN_ID: Final = (1 << 31) - 1  # Fits a signed 32-bit integer.
DIGEST_BYTES: Final = 16  # BLAKE2b-128: a collision would take 2^64 hashes during one request.
CONTENT_DIGEST_BYTES: Final = 32  # SHA-256.
SIGNATURE_BYTES: Final = 64  # Ed25519 (RFC 8032).
NONCE_BYTES: Final = 16  # 128 random bits never repeat.
CACHE_SCOPE_BYTES: Final = 16  # 128 random bits cannot be guessed.
USER_BYTES: Final = 8  # The first bytes of a cache scope, which identify a user.
CHAIN_ID_BYTES: Final = 16  # 128 random bits cannot be guessed.
MAX_LAYERS: Final = 4096  # Thirty times the depth of the deepest open models.
MAX_POOL_TOKENS: Final = 1 << 30  # The maximum in a record.
MAX_FEED_ROWS: Final = 1024  # Far above the number of concurrent requests of a node.
MAX_FEED_TOKENS: Final = 4096  # Above the size of prompt chunks; rows take up to 100 KB.
MAX_FEED_CHOICES: Final = 32_768  # Bounds an answer, choices and candidates, to half a frame.
MAX_CANDIDATES: Final = MAX_TREE_NODES  # The maximum of a tree.
MAX_NAMED_NODES: Final = 65_536  # Bounds a frame: the longest names take 590 KB.
MAX_ACTIVATION_BYTES: Final = MAX_FEED_TOKENS * 8192 * 4  # `MAX_FEED_TOKENS` of width 8,192 in float32.
MAX_PART_BYTES: Final = MAX_CHUNK_BYTES  # Lets heartbeats pass between two parts of activations.
PROBE_SEED_BYTES: Final = 16  # 128 random bits cannot be guessed.
KEPT_TOKENS: Final = 256  # Tokens kept for probes: 16 MiB at a width of 8,192 in float32.
MAX_PROBE_PARTS: Final = KEPT_TOKENS  # Each part has at least one of the tokens kept.
PROJECTIONS: Final = 16  # Estimate the distance of two vectors within a factor of four, except once in 10**8 times.
PROJECTION_BYTES: Final = 4  # A float32; inputs and outputs of `MAX_FEED_TOKENS` take half a frame.
MARGIN_BYTES: Final = 8  # A float64, which may be infinite.
MAX_TEMPERATURE: Final = 1e6  # Any distribution is nearly uniform.
MIN_TOP_P: Final = 1e-9  # With 0 no token would remain.
MIN_REPETITION_PENALTY: Final = 1e-6  # Scores are divided by it.
MAX_REPETITION_PENALTY: Final = 1 / MIN_REPETITION_PENALTY  # The inverse of the minimum.
MAX_PENALTY: Final = 2.0  # As in OpenAI's API.
MAX_BIAS: Final = 100.0  # As in OpenAI's API: larger than differences of scores.
MAX_BIASES: Final = 300  # As in OpenAI's API; they take 5 KB.
MAX_BAD_WORDS: Final = 512  # With a few tokens each they take 10 KB.
MAX_BAD_WORD_TOKENS: Final = 64  # A longer text is not a word.
MAX_CONSTRAINT_BYTES: Final = 1 << 16  # Large JSON schemas of real tools have some 30 KB.
MAX_TOP_LOGPROBS: Final = 20  # As in OpenAI's API.
MAX_SURPRISAL: Final = 1_000_000_000  # A thousand nats in millionths: practically impossible.
MAX_TOLD_BYTES: Final = 900_000  # An audit with all likelihoods of a request fits a frame.
MAX_TOLD_TOKENS: Final = MAX_COMMIT_TOKENS  # The maximum of a commit.
MAX_PREDICTION_TOKENS: Final = MAX_PROMPT_TOKENS // 4
"""A file of some thousand lines. Its 160 KiB fit into a frame with the longest prompt, 640 KiB, and constraint."""
MAX_SWARM_NAME_BYTES: Final = 64  # The display name of a private swarm.
MAX_CERTIFICATE_BYTES: Final = 512  # Two peer ids, a name, a signature, and room for later fields.
MAX_CERTIFICATE_S: Final = 31_622_400.0  # 366 days, which also bounds the life of revocations.
MAX_REVOKED: Final = 1024  # Revoked members with unexpired certificates.
MAX_REVOCATIONS_BYTES: Final = 128 * MAX_REVOKED  # Twice the size of peer ids with serial numbers.
MAX_NOT_HONOURED: Final = 16  # Names of options; the longest ones take an eighth of a record.
MAX_COORDINATE_US: Final = 5_000_000  # 5 s, far above the round-trip times at which drafts are useful.
MAX_TENSORS: Final = 131_072  # 256 experts in 58 layers with three matrices and scales each are 89,000.
MAX_TENSOR_NAME_BYTES: Final = 256  # Common names have some 60.
MAX_DTYPE_BYTES: Final = 16  # Data types in safetensors and GGUF files have at most 9.
MAX_DIMENSIONS: Final = 8  # Convolutions have four.
MAX_TENSOR_BYTES: Final = 1 << 36  # 64 GiB: more than the largest stack of experts.
MAX_MANIFEST_PARTS: Final = 64  # The configuration and all possible tokenizer files.
MAX_MANIFEST_BYTES: Final = 128 * MAX_TENSORS  # Rows with names of 60 and digests of 32 bytes.
