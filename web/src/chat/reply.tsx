// The text of a message with its tokens in the colours of their origins, and the facts about a token.

import { useMemo, useRef, useState } from "preact/hooks";
import { prose } from "../harmless";
import type { Message, Token } from "./conversation";
import { type Leaf, Markdown } from "./markdown";
import { colourOf, draftersOf, sharesOf, told } from "./origins";

/** The end of each token in the text. */
function endsOf(tokens: Token[], length: number): number[] {
  let at = 0;
  const ends = tokens.map((each) => (at += each.content.length));
  // Text that was held back to the end belongs to the last token.
  if (ends.length) ends[ends.length - 1] = Math.max(ends.at(-1)!, length);
  return ends;
}

function tokenAt(ends: number[], position: number): number {
  let low = 0;
  let high = ends.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (ends[middle]! <= position) low = middle + 1;
    else high = middle;
  }
  return low;
}

function colouredLeaf(text: string, tokens: Token[]): Leaf {
  const ends = endsOf(tokens, text.length);
  const drafters = draftersOf(tokens);
  return (from, to) => {
    const spans = [];
    for (let at = from; at < to; ) {
      const index = tokenAt(ends, at);
      const end = Math.min(to, ends[index] ?? to);
      const token = tokens[index];
      const blank = text.slice(at, end).trim() ? "" : " blank";
      spans.push(
        token ? (
          <span class={`token ${colourOf(token, drafters)}${blank}`} data-token={index}>
            {prose(text.slice(at, end))}
          </span>
        ) : (
          prose(text.slice(at, end))
        ),
      );
      at = end;
    }
    return spans;
  };
}

/** The characters of a token, with invisible ones made visible. */
function letters(content: string): string {
  const seen = content.slice(0, 40).replaceAll("\n", "⏎").replaceAll("\t", "⇥");
  return prose(seen.trim() ? seen : seen.replaceAll(" ", "␣")) || "no letter yet";
}

type Told = { index: number; x: number; y: number };

/** The text of a reply. With the focus, arrow keys move from token to token. */
export function Reply({ message, isColoured }: { message: Message; isColoured: boolean }) {
  const { content: text, tokens = [], account } = message;
  const box = useRef<HTMLDivElement>(null);
  const [seen, setSeen] = useState<Told | null>(null);
  const hasTokens = isColoured && tokens.length > 0;
  const version = `${hasTokens}:${tokens.length}`;
  const leaf = useMemo<Leaf>(
    () => (hasTokens ? colouredLeaf(text, tokens) : (from, to) => prose(text.slice(from, to))),
    [text, version],
  );
  function look(index: number) {
    const span = box.current?.querySelector<HTMLElement>(`[data-token="${index}"]`);
    const place = span?.getClientRects()[0];
    if (!place) return;
    const outer = box.current!.getBoundingClientRect();
    const x = Math.min(Math.max(place.left - outer.left, 0), Math.max(0, outer.width - 220));
    setSeen({ index, x, y: place.bottom - outer.top });
  }
  function hovered(event: MouseEvent) {
    const span = (event.target as HTMLElement).closest<HTMLElement>("[data-token]");
    if (span) look(Number(span.dataset["token"]));
    else setSeen(null);
  }
  function walked(event: KeyboardEvent) {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (event.key === "Escape") setSeen(null);
    if (!step || !hasTokens) return;
    event.preventDefault();
    let index = (seen?.index ?? (step > 0 ? -1 : tokens.length)) + step;
    // Markdown syntax is not shown, so its tokens have no elements.
    while (tokens[index] && !box.current?.querySelector(`[data-token="${index}"]`)) index += step;
    if (tokens[index]) look(index);
  }
  const token = seen && hasTokens ? tokens[seen.index] : undefined;
  return (
    <div
      class="text"
      ref={box}
      onMouseOver={hasTokens ? hovered : undefined}
      onMouseLeave={() => setSeen(null)}
      onKeyDown={walked}
      onBlur={() => setSeen(null)}
      {...(hasTokens
        ? { tabIndex: 0, role: "group", "aria-label": "Reply; the arrow keys tell of each token whose it is" }
        : {})}
    >
      <Markdown text={text} leaf={leaf} version={version} />
      <div class="told-place" aria-live="polite">
        {seen && token && (
          <div class="told" style={{ left: `${seen.x}px`, top: `${seen.y}px` }}>
            <b>{letters(token.content)}</b>
            {told(token, account).map((line) => (
              <span>{line}</span>
            ))}
          </div>
        )}
      </div>
    </div>
  );
}

/** The origins of a reply's tokens, as a bar and in words. */
export function Shares({ message }: { message: Message }) {
  const { tokens = [], account } = message;
  const shares = sharesOf(tokens, account);
  if (!tokens.length) return null;
  return (
    <div class="shares">
      <svg viewBox={`0 0 ${tokens.length} 1`} preserveAspectRatio="none" aria-hidden="true">
        {shares.map((share, index) => {
          const before = shares.slice(0, index).reduce((sum, each) => sum + each.tokens, 0);
          return <rect class={share.colour || "of-target"} x={before} width={share.tokens} height={1} />;
        })}
      </svg>
      <ul>
        {shares.map((share) => (
          <li>
            <i class={`swatch ${share.colour || "of-target"}`} aria-hidden="true" />
            <span>{share.label}</span>
            <b>{Math.round((100 * share.tokens) / tokens.length)} %</b>
          </li>
        ))}
      </ul>
    </div>
  );
}

