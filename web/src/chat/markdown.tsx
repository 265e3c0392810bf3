// Markdown as elements: text never becomes markup, and source positions are kept to colour tokens.

import type { ComponentChildren, VNode } from "preact";
import { memo } from "preact/compat";
import { prose } from "../harmless";

/** Renders a range of the source in the colours of its tokens. */
export type Leaf = (from: number, to: number) => ComponentChildren;

type Line = { from: number; to: number; indent: number };
type Block =
  | { kind: "paragraph" | "quote"; lines: Line[] }
  | { kind: "heading"; level: number; from: number; to: number }
  | { kind: "code"; language: string; from: number; to: number }
  | { kind: "rule"; from: number; to: number }
  | { kind: "table"; rows: [number, number][][] }
  | { kind: "list"; isOrdered: boolean; start: number; items: { lines: Line[]; depth: number }[] };

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/;
const HEADING = /^ {0,3}(#{1,6})\s+/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const ITEM = /^(\s*)(?:[-*+]|(\d{1,9})[.)])\s+/;
const QUOTE = /^ {0,3}>\s?/;
const DIVIDER = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)+\|?\s*$/;

function linesOf(text: string): Line[] {
  const lines: Line[] = [];
  for (let from = 0; from <= text.length; ) {
    const end = text.indexOf("\n", from);
    const to = end < 0 ? text.length : end;
    lines.push({ from, to, indent: 0 });
    from = to + 1;
  }
  return lines;
}

/** Parse the blocks of a text. */
export function blocksOf(text: string): Block[] {
  const lines = linesOf(text);
  const blocks: Block[] = [];
  const of = (line: Line) => text.slice(line.from, line.to);
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at]!;
    const words = of(line);
    let match: RegExpExecArray | null;
    if (!words.trim()) continue;
    if ((match = FENCE.exec(words))) {
      const close = new RegExp(`^ {0,3}${match[1]![0] === "`" ? "`" : "~"}{${match[1]!.length},}\\s*$`);
      let end = at + 1;
      while (end < lines.length && !close.test(of(lines[end]!))) end++;
      const from = Math.min(line.to + 1, text.length);
      const last = lines[Math.min(end, lines.length) - 1]!;
      blocks.push({ kind: "code", language: match[2]!, from, to: Math.max(from, last.to) });
      at = end;
    } else if ((match = HEADING.exec(words))) {
      blocks.push({ kind: "heading", level: match[1]!.length, from: line.from + match[0].length, to: line.to });
    } else if (RULE.test(words)) {
      blocks.push({ kind: "rule", from: line.from, to: line.to });
    } else if (words.includes("|") && at + 1 < lines.length && DIVIDER.test(of(lines[at + 1]!))) {
      const rows = [cellsOf(text, line)];
      at += 2;
      while (at < lines.length && of(lines[at]!).includes("|")) rows.push(cellsOf(text, lines[at++]!));
      at -= 1;
      blocks.push({ kind: "table", rows });
    } else if ((match = ITEM.exec(words))) {
      const isOrdered = match[2] !== undefined;
      const items: { lines: Line[]; depth: number }[] = [];
      const start = Number(match[2] ?? 1);
      while (at < lines.length) {
        const next = ITEM.exec(of(lines[at]!));
        if (next && (next[1]!.length > 0 || (next[2] !== undefined) === isOrdered)) {
          const from = lines[at]!.from + next[0].length;
          items.push({ lines: [{ ...lines[at]!, from }], depth: Math.min(4, Math.floor(next[1]!.length / 2)) });
        } else if (/^\s+\S/.test(of(lines[at]!)) && items.length) {
          const text = of(lines[at]!);
          items.at(-1)!.lines.push({ ...lines[at]!, from: lines[at]!.from + (text.length - text.trimStart().length) });
        } else break;
        at++;
      }
      at -= 1;
      blocks.push({ kind: "list", isOrdered, start, items });
    } else {
      const isQuote = QUOTE.test(words);
      const own: Line[] = [];
      while (at < lines.length) {
        const each = of(lines[at]!);
        if (!each.trim() || FENCE.test(each) || HEADING.test(each) || ITEM.test(each) || QUOTE.test(each) !== isQuote) break;
        own.push({ ...lines[at]!, from: lines[at]!.from + (isQuote ? QUOTE.exec(each)![0].length : 0) });
        at++;
      }
      at -= 1;
      blocks.push({ kind: isQuote ? "quote" : "paragraph", lines: own });
    }
  }
  return blocks;
}

function cellsOf(text: string, line: Line): [number, number][] {
  let { from, to } = line;
  while (from < to && /[\s|]/.test(text[from]!) && !(text[from] === "|" && from > line.from && text[from - 1] === "|")) {
    if (text[from++] === "|") break;
  }
  while (to > from && /\s/.test(text[to - 1]!)) to--;
  if (text[to - 1] === "|") to--;
  const cells: [number, number][] = [];
  let begin = from;
  for (let at = from; at <= to; at++) {
    if (at === to || (text[at] === "|" && text[at - 1] !== "\\")) {
      cells.push(trimmed(text, begin, at));
      begin = at + 1;
    }
  }
  return cells;
}

function trimmed(text: string, from: number, to: number): [number, number] {
  while (from < to && /\s/.test(text[from]!)) from++;
  while (to > from && /\s/.test(text[to - 1]!)) to--;
  return [from, to];
}

const MARKS: [RegExp, "code" | "strong" | "em" | "del" | "link"][] = [
  [/(`+)(?!`)([^]*?[^`])\1(?!`)/y, "code"],
  [/(\*\*|__)(?=\S)([^]*?\S)\1/y, "strong"],
  [/(\*)(?=[^\s*])((?:[^*]|\*\*[^*]*\*\*)*?[^\s*])\1(?!\*)/y, "em"],
  [/(?<![\w])(_)(?=[^\s_])([^_]*?[^\s_])\1(?![\w])/y, "em"],
  [/(~~)(?=\S)([^]*?\S)\1/y, "del"],
  [/(\[)([^[\]\n]{1,400})\]\((https?:\/\/[^\s()<>"]{1,1000})\)/y, "link"],
];

/** Render the inline elements of a range of the source. */
function inline(text: string, from: number, to: number, leaf: Leaf, depth = 0): ComponentChildren[] {
  const out: ComponentChildren[] = [];
  let plain = from;
  const flush = (end: number) => {
    if (end > plain) out.push(leaf(plain, end));
  };
  for (let at = from; at < to; ) {
    const letter = text[at]!;
    if (letter === "\\" && at + 1 < to && /[\\`*_{}[\]()#+.!|~>-]/.test(text[at + 1]!)) {
      flush(at);
      plain = at + 1;
      at += 2;
      continue;
    }
    const found = depth < 6 && "`*_~[".includes(letter) ? markAt(text, at, to) : null;
    if (!found) {
      at++;
      continue;
    }
    flush(at);
    const { kind, match } = found;
    const begin = at + match[1]!.length;
    const end = begin + match[2]!.length;
    const inside = kind === "code" ? leaf(begin, end) : inline(text, begin, end, leaf, depth + 1);
    if (kind === "link") {
      out.push(
        <a href={match[3]!} target="_blank" rel="noopener noreferrer" title={prose(match[3]!)}>
          {inside}
        </a>,
      );
    } else {
      const Tag = kind;
      out.push(<Tag>{inside}</Tag>);
    }
    at += match[0].length;
    plain = at;
  }
  flush(to);
  return out;
}

function markAt(text: string, at: number, to: number) {
  for (const [pattern, kind] of MARKS) {
    pattern.lastIndex = at;
    const match = pattern.exec(text);
    if (match && at + match[0].length <= to) return { kind, match };
  }
  return null;
}

const broken = (text: string, lines: Line[], leaf: Leaf): ComponentChildren[] =>
  lines.flatMap((line, index) => [index ? <br /> : null, ...inline(text, line.from, line.to, leaf)]);

function List({ text, block, leaf }: { text: string; block: Block & { kind: "list" }; leaf: Leaf }): VNode {
  const Tag = block.isOrdered ? "ol" : "ul";
  return (
    <Tag {...(block.isOrdered ? { start: block.start } : {})}>
      {block.items.map((item) => (
        <li class={item.depth ? `deep-${item.depth}` : ""}>{broken(text, item.lines, leaf)}</li>
      ))}
    </Tag>
  );
}

export function showBlock(text: string, block: Block, leaf: Leaf): VNode {
  switch (block.kind) {
    case "code":
      return (
        <figure class="code">
          {block.language && <figcaption>{prose(block.language)}</figcaption>}
          <pre tabIndex={0} aria-label="code">
            <code>{leaf(block.from, block.to)}</code>
          </pre>
        </figure>
      );
    case "heading": {
      // Headings of a text are below those of the page.
      const Tag = `h${Math.min(6, block.level + 2)}` as "h3";
      return <Tag class={`as-h${block.level}`}>{inline(text, block.from, block.to, leaf)}</Tag>;
    }
    case "rule":
      return <hr />;
    case "list":
      return <List text={text} block={block} leaf={leaf} />;
    case "quote":
      return <blockquote>{broken(text, block.lines, leaf)}</blockquote>;
    case "table": {
      const [head, ...rows] = block.rows;
      return (
        <div class="wide" tabIndex={0} role="group" aria-label="table">
          <table>
            <thead>
              <tr>{head!.map(([from, to]) => <th scope="col">{inline(text, from, to, leaf)}</th>)}</tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr>{row.map(([from, to]) => <td>{inline(text, from, to, leaf)}</td>)}</tr>
              ))}
            </tbody>
          </table>
        </div>
      );
    }
    default:
      return <p>{broken(text, block.lines, leaf)}</p>;
  }
}

type Shown = { text: string; leaf: Leaf; version: string };

/** A text, rendered again only if `version` or the text changes. */
export const Markdown = memo(
  ({ text, leaf }: Shown) => <>{blocksOf(text).map((block) => showBlock(text, block, leaf))}</>,
  (one: Shown, other: Shown) => one.text === other.text && one.version === other.version,
);
