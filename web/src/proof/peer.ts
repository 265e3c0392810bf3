// Peer ids, which hold Ed25519 public keys, and signatures by them (docs/protocol.md, section 9).

import { Malformed } from "./msgpack";

const ALPHABET = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";
const PREFIX = [0x00, 0x24, 0x08, 0x01, 0x12, 0x20];
const KEY_BYTES = 32;

export class BadSignature extends Error {}

function base58(text: string): Uint8Array<ArrayBuffer> {
  let value = 0n;
  for (const letter of text) {
    const digit = ALPHABET.indexOf(letter);
    if (digit < 0) throw new Malformed("a peer id has a letter that base58 has not");
    value = 58n * value + BigInt(digit);
  }
  const bytes: number[] = [];
  for (; value; value >>= 8n) bytes.unshift(Number(value & 0xffn));
  for (const letter of text) {
    if (letter !== "1") break;
    bytes.unshift(0);
  }
  return new Uint8Array(bytes);
}

/** The public key inside a peer id. Raises `Malformed` if it holds none. */
export function publicKeyOf(peerId: string): Uint8Array<ArrayBuffer> {
  if (peerId.length > 64) throw new Malformed("a peer id is too long");
  const raw = base58(peerId);
  if (raw.length !== PREFIX.length + KEY_BYTES || !PREFIX.every((byte, index) => raw[index] === byte)) {
    throw new Malformed("a peer id holds no Ed25519 key");
  }
  return raw.slice(PREFIX.length);
}

const utf8 = new TextEncoder();

/** Bytes one after the other, each part with its length before it. */
export function counted(...parts: Uint8Array[]): Uint8Array<ArrayBuffer> {
  const out = new Uint8Array(parts.reduce((sum, part) => sum + 4 + part.length, 0));
  const view = new DataView(out.buffer);
  let at = 0;
  for (const part of parts) {
    view.setUint32(at, part.length);
    out.set(part, at + 4);
    at += 4 + part.length;
  }
  return out;
}

/** True where a browser lets a page check signatures: from this machine, or over HTTPS. */
export const canVerify = (): boolean => globalThis.crypto?.subtle !== undefined;

/** Check a signature of that kind by a peer, bound to a digest. Raises `BadSignature`. */
export async function verify(
  kind: string,
  signer: string,
  digest: Uint8Array,
  body: Uint8Array,
  signature: Uint8Array<ArrayBuffer>,
): Promise<void> {
  const key = await crypto.subtle.importKey("raw", publicKeyOf(signer), "Ed25519", false, ["verify"]);
  const signed = counted(utf8.encode(`cosine/${kind}/1`), utf8.encode(signer), digest, body);
  if (!(await crypto.subtle.verify("Ed25519", key, signature, signed))) {
    throw new BadSignature(`The signature of a ${kind} by ${signer} does not hold.`);
  }
}
