// BLAKE2b (RFC 7693) without a key, on pairs of 32-bit halves.

const IV = new Uint32Array([
  0xf3bcc908, 0x6a09e667, 0x84caa73b, 0xbb67ae85, 0xfe94f82b, 0x3c6ef372, 0x5f1d36f1, 0xa54ff53a, 0xade682d1,
  0x510e527f, 0x2b3e6c1f, 0x9b05688c, 0xfb41bd6b, 0x1f83d9ab, 0x137e2179, 0x5be0cd19,
]);
const SIGMA = [
  [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15],
  [14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3],
  [11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4],
  [7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8],
  [9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13],
  [2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9],
  [12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11],
  [13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10],
  [6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5],
  [10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0],
] as const;
const LANES = [
  [0, 4, 8, 12],
  [1, 5, 9, 13],
  [2, 6, 10, 14],
  [3, 7, 11, 15],
  [0, 5, 10, 15],
  [1, 6, 11, 12],
  [2, 7, 8, 13],
  [3, 4, 9, 14],
] as const;
const BLOCK_BYTES = 128;

function add(v: Uint32Array, to: number, low: number, high: number): void {
  const sum = v[to]! + low;
  v[to] = sum;
  v[to + 1] = v[to + 1]! + high + (sum > 0xffffffff ? 1 : 0);
}

function mix(v: Uint32Array, m: Uint32Array, lane: readonly number[], x: number, y: number): void {
  const [a, b, c, d] = lane.map((word) => 2 * word) as [number, number, number, number];
  add(v, a, v[b]!, v[b + 1]!);
  add(v, a, m[x]!, m[x + 1]!);
  let low = v[d]! ^ v[a]!;
  let high = v[d + 1]! ^ v[a + 1]!;
  v[d] = high;
  v[d + 1] = low;
  add(v, c, v[d]!, v[d + 1]!);
  low = v[b]! ^ v[c]!;
  high = v[b + 1]! ^ v[c + 1]!;
  v[b] = (low >>> 24) ^ (high << 8);
  v[b + 1] = (high >>> 24) ^ (low << 8);
  add(v, a, v[b]!, v[b + 1]!);
  add(v, a, m[y]!, m[y + 1]!);
  low = v[d]! ^ v[a]!;
  high = v[d + 1]! ^ v[a + 1]!;
  v[d] = (low >>> 16) ^ (high << 16);
  v[d + 1] = (high >>> 16) ^ (low << 16);
  add(v, c, v[d]!, v[d + 1]!);
  low = v[b]! ^ v[c]!;
  high = v[b + 1]! ^ v[c + 1]!;
  v[b] = (high >>> 31) ^ (low << 1);
  v[b + 1] = (low >>> 31) ^ (high << 1);
}

function compress(h: Uint32Array, block: DataView, count: number, isLast: boolean): void {
  const v = new Uint32Array(32);
  const m = new Uint32Array(32);
  v.set(h);
  v.set(IV, 16);
  v[24]! ^= count >>> 0;
  v[25]! ^= Math.floor(count / 0x100000000);
  if (isLast) {
    v[28] = ~v[28]!;
    v[29] = ~v[29]!;
  }
  for (let word = 0; word < 32; word++) m[word] = block.getUint32(4 * word, true);
  for (let round = 0; round < 12; round++) {
    const order = SIGMA[round % 10]!;
    LANES.forEach((lane, index) => mix(v, m, lane, 2 * order[2 * index]!, 2 * order[2 * index + 1]!));
  }
  for (let word = 0; word < 16; word++) h[word]! ^= v[word]! ^ v[word + 16]!;
}

/** The digest of some bytes, of so many bytes. */
export function blake2b(data: Uint8Array, digestBytes = 16): Uint8Array<ArrayBuffer> {
  const h = new Uint32Array(IV);
  h[0]! ^= 0x01010000 ^ digestBytes;
  const blocks = Math.max(1, Math.ceil(data.length / BLOCK_BYTES));
  for (let index = 0; index < blocks; index++) {
    const block = new Uint8Array(BLOCK_BYTES);
    block.set(data.subarray(index * BLOCK_BYTES, (index + 1) * BLOCK_BYTES));
    const isLast = index === blocks - 1;
    compress(h, new DataView(block.buffer), isLast ? data.length : (index + 1) * BLOCK_BYTES, isLast);
  }
  const out = new DataView(new ArrayBuffer(64));
  h.forEach((word, index) => out.setUint32(4 * index, word, true));
  return new Uint8Array(out.buffer.slice(0, digestBytes));
}
