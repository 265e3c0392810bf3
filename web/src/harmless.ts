// Texts of other peers as they may be shown: every letter visible, none that turns others around, none without end.

/** Controls, marks of direction, and what has no width: a name could use them to look like another. */
const HIDDEN =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

const code = (letter: string): string => `‹U+${letter.codePointAt(0)!.toString(16).toUpperCase().padStart(4, "0")}›`;

/** A short text of a peer, such as a name, on one line. */
export function name(text: unknown, most = 120): string {
  const given = typeof text === "string" ? text : String(text);
  const cut = given.length > most ? `${given.slice(0, most)}…` : given;
  return cut.replace(/[\n\t]+/g, " ").replace(HIDDEN, code);
}

/** A text that a model wrote: line breaks stay, and so do the joiners of scripts and of emoji. */
export function prose(text: string): string {
  return text.replace(HIDDEN, (letter) => (letter === "\u200c" || letter === "\u200d" ? letter : code(letter)));
}

/** The end of a peer id, which is what differs. */
export const short = (peerId: string): string => `…${name(peerId.slice(-8))}`;

/** A word of a POSIX shell that means exactly this text. */
export function shellWord(text: string): string {
  return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
