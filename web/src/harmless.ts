// Texts of other peers made safe to show: invisible and direction-changing characters are escaped, names are cut.

/** Control, direction and zero-width characters, which could make a name look like another. */
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

const code = (letter: string): string => `‹U+${letter.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}›`;

/** A short text of a peer, such as a name, on one line. */
export function name(text: unknown, most = 120): string {
  const given = typeof text === "string" ? text : String(text);
  const cut = given.length > most ? `${given.slice(0, most)}…` : given;
  return cut.replace(/[\n\t]+/g, " ").replace(HIDDEN, code);
}

/** A text of a model: line breaks, and the joiners of scripts and emoji, are kept. */
export function prose(text: string): string {
  return text.replace(HIDDEN, (letter) => (letter === "\u200c" || letter === "\u200d" ? letter : code(letter)));
}

/** The end of a peer id, as all begin alike. */
export const short = (peerId: string): string => `…${name(peerId.slice(-8))}`;

/** Quote a text for a POSIX shell. */
export function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
