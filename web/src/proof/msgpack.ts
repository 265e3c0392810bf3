// msgpack as the protocol has it (docs/protocol.md, section 2): no maps, no extensions, nothing left over.

export class Malformed extends Error {}

export type Value = null | boolean | number | bigint | Uint8Array<ArrayBuffer> | string | Value[] | Real;

/** A float: one with a whole value is still no integer. */
export class Real {
  constructor(readonly value: number) {}
}

const MAX_DEPTH = 16;

export function decode(data: Uint8Array<ArrayBuffer>): Value {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const utf8 = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  let at = 0;

  function take(count: number): number {
    const from = at;
    if (from + count > data.length) throw new Malformed("the bytes end too early");
    at += count;
    return from;
  }
  const bytes = (count: number) => data.slice(take(count), at);
  function text(count: number): string {
    try {
      return utf8.decode(bytes(count));
    } catch (error) {
      if (error instanceof Malformed) throw error;
      throw new Malformed("a text is not UTF-8");
    }
  }
  function array(count: number, depth: number): Value[] {
    if (count > data.length) throw new Malformed("an array is longer than its bytes");
    return Array.from({ length: count }, () => read(depth + 1));
  }
  function wide(value: bigint): number | bigint {
    return value >= -(2n ** 53n) && value <= 2n ** 53n ? Number(value) : value;
  }
  function read(depth: number): Value {
    if (depth > MAX_DEPTH) throw new Malformed("too deep");
    const kind = view.getUint8(take(1));
    if (kind < 0x80) return kind;
    if (kind >= 0xe0) return kind - 0x100;
    if (kind >= 0xa0 && kind < 0xc0) return text(kind & 0x1f);
    if (kind >= 0x90 && kind < 0xa0) return array(kind & 0x0f, depth);
    switch (kind) {
      case 0xc0: return null;
      case 0xc2: return false;
      case 0xc3: return true;
      case 0xc4: return bytes(view.getUint8(take(1)));
      case 0xc5: return bytes(view.getUint16(take(2)));
      case 0xc6: return bytes(view.getUint32(take(4)));
      case 0xca: return new Real(view.getFloat32(take(4)));
      case 0xcb: return new Real(view.getFloat64(take(8)));
      case 0xcc: return view.getUint8(take(1));
      case 0xcd: return view.getUint16(take(2));
      case 0xce: return view.getUint32(take(4));
      case 0xcf: return wide(view.getBigUint64(take(8)));
      case 0xd0: return view.getInt8(take(1));
      case 0xd1: return view.getInt16(take(2));
      case 0xd2: return view.getInt32(take(4));
      case 0xd3: return wide(view.getBigInt64(take(8)));
      case 0xd9: return text(view.getUint8(take(1)));
      case 0xda: return text(view.getUint16(take(2)));
      case 0xdb: return text(view.getUint32(take(4)));
      case 0xdc: return array(view.getUint16(take(2)), depth);
      case 0xdd: return array(view.getUint32(take(4)), depth);
      default: throw new Malformed("a type that the protocol has not");
    }
  }
  const value = read(0);
  if (at !== data.length) throw new Malformed("bytes are left over");
  return value;
}

/** Reads the fields of a structure one after the other; each raises `Malformed` for another type. */
export class Fields {
  private at = 0;
  constructor(
    private readonly values: Value[],
    private readonly what: string,
  ) {}

  static of(value: Value, what: string): Fields {
    if (!Array.isArray(value)) throw new Malformed(`${what} is no array`);
    return new Fields(value, what);
  }

  private next(): Value {
    if (this.at >= this.values.length) throw new Malformed(`${this.what} lacks a field`);
    return this.values[this.at++]!;
  }

  private wrong(): never {
    throw new Malformed(`${this.what}: field ${this.at} is of another type`);
  }

  whole(most = Number.MAX_SAFE_INTEGER): number {
    const value = this.next();
    return typeof value === "number" && value >= 0 && value <= most ? value : this.wrong();
  }

  word(): bigint {
    const value = this.next();
    if (typeof value === "number" && value >= 0) return BigInt(value);
    return typeof value === "bigint" && value >= 0n && value < 2n ** 64n ? value : this.wrong();
  }

  real(): number {
    const value = this.next();
    return value instanceof Real && Number.isFinite(value.value) ? value.value : this.wrong();
  }

  bytes(length?: number): Uint8Array<ArrayBuffer> {
    const value = this.next();
    return value instanceof Uint8Array && (length === undefined || value.length === length) ? value : this.wrong();
  }

  text(): string {
    const value = this.next();
    return typeof value === "string" ? value : this.wrong();
  }

  flag(): boolean {
    const value = this.next();
    return typeof value === "boolean" ? value : this.wrong();
  }

  list<T>(read: (item: Value) => T): T[] {
    const value = this.next();
    return Array.isArray(value) ? value.map(read) : this.wrong();
  }

  tokens(): number[] {
    return this.list((item) => (typeof item === "number" && item >= 0 && item <= 0x7fffffff ? item : this.wrong()));
  }

  struct(what: string): Fields {
    return Fields.of(this.next(), what);
  }

  /** A field that older peers leave out: null then, and where it is nil. */
  added<T>(read: (fields: Fields) => T): T | null {
    if (this.at >= this.values.length) return null;
    if (this.values[this.at] === null) {
      this.at++;
      return null;
    }
    return read(this);
  }
}
