// Components and functions that several views share.

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { name, short } from "./harmless";

/** A button that copies a text and confirms it. */
export function Copy({ text, label = "Copy" }: { text: string; label?: string }) {
  const [isDone, setDone] = useState(false);
  useEffect(() => {
    if (!isDone) return;
    const timer = setTimeout(() => setDone(false), 1600);
    return () => clearTimeout(timer);
  }, [isDone]);
  async function copy() {
    if (navigator.clipboard) await navigator.clipboard.writeText(text);
    else {
      // The clipboard API is missing over plain HTTP from another machine.
      const area = Object.assign(document.createElement("textarea"), { value: text });
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    setDone(true);
  }
  return (
    <button type="button" class="quiet" onClick={() => void copy()}>
      <span aria-live="polite">{isDone ? "Copied" : label}</span>
    </button>
  );
}

/** A text with a button to copy it. */
export function Snippet({ text, label }: { text: string; label: string }) {
  return (
    <div class="snippet">
      <pre tabIndex={0} aria-label={label}>
        <code>{text}</code>
      </pre>
      <Copy text={text} />
    </div>
  );
}

/** The end of a peer id, with the whole one on hover. */
export const Peer = ({ id }: { id: string }) => (
  <code class="peer" title={name(id, 200)}>
    {short(id)}
  </code>
);

/** A value with its label. */
export const Fact = ({ label, children, hint }: { label: string; children: ComponentChildren; hint?: string }) => (
  <div class="fact" title={hint}>
    <dt>{label}</dt>
    <dd>{children}</dd>
  </div>
);

export function useMedia(query: string): boolean {
  const [matches, setMatches] = useState(() => matchMedia(query).matches);
  useEffect(() => {
    const media = matchMedia(query);
    const changed = () => setMatches(media.matches);
    media.addEventListener("change", changed);
    return () => media.removeEventListener("change", changed);
  }, [query]);
  return matches;
}

/** The current size of an element. */
export function useSize<E extends HTMLElement>() {
  const ref = useRef<E>(null);
  const [size, setSize] = useState({ width: 0, height: 0 });
  useEffect(() => {
    const watcher = new ResizeObserver(([entry]) => {
      const { width, height } = entry!.contentRect;
      setSize({ width, height });
    });
    watcher.observe(ref.current!);
    return () => watcher.disconnect();
  }, []);
  return [ref, size] as const;
}

export const fixed = (value: number | null | undefined, digits = 1): string =>
  value === null || value === undefined || !Number.isFinite(value) ? "–" : value.toFixed(digits);

export const count = (number: number, word: string): string =>
  `${number.toLocaleString("en")} ${word}${number === 1 ? "" : "s"}`;
