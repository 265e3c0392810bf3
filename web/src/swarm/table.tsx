// The table of nodes, which renders only visible rows, so that thousands scroll smoothly.

import { memo } from "preact/compat";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { name, short } from "../harmless";
import { fixed, useSize } from "../parts";
import { gift, loadOf, standingOf, STANDINGS, type SwarmNode } from "./state";

const ROW_PX = 40;
const SPARE_ROWS = 6;

type Column = {
  id: string;
  title: string;
  isNumber?: boolean;
  text: (node: SwarmNode) => string;
  key: (node: SwarmNode) => string | number;
};

const COLUMNS: Column[] = [
  { id: "role", title: "role", text: (node) => name(node.role, 16), key: (node) => node.role },
  { id: "peer", title: "peer", text: (node) => short(node.peer_id), key: (node) => node.peer_id.slice(-8) },
  { id: "model", title: "model", text: (node) => name(node.model, 80), key: (node) => node.model },
  { id: "gift", title: "good at", text: (node) => name(gift(node), 80), key: gift },
  { id: "state", title: "state", text: (node) => STANDINGS[standingOf(node)], key: (node) => standingOf(node) },
  { id: "load", title: "load", isNumber: true, text: loadOf, key: (node) => node.busy ?? node.load / Math.max(1, node.capacity) },
  { id: "pass", title: "ms a pass", isNumber: true, text: (node) => fixed(node.pass_ms), key: (node) => node.pass_ms },
  { id: "rtt", title: "RTT ms", isNumber: true, text: (node) => fixed(node.rtt_ms), key: (node) => node.rtt_ms ?? Infinity },
  { id: "way", title: "way", text: (node) => node.way || "–", key: (node) => node.way },
  {
    id: "checks",
    title: "checks",
    isNumber: true,
    text: (node) => (node.checks === null ? "" : String(node.checks)),
    key: (node) => node.checks ?? -1,
  },
];

type RowProps = { node: SwarmNode; index: number; isChosen: boolean; onChoose: (peerId: string) => void };

const Row = memo(({ node, index, isChosen, onChoose }: RowProps) => {
  const standing = standingOf(node);
  return (
    <div
      class={`tr is-${standing}${isChosen ? " chosen" : ""}`}
      role="row"
      aria-rowindex={index + 2}
      aria-selected={isChosen}
      style={{ top: `${index * ROW_PX}px` }}
      onClick={() => onChoose(node.peer_id)}
    >
      {COLUMNS.map((column) => (
        <div class={`td c-${column.id}${column.isNumber ? " number" : ""}`} role="cell">
          {column.id === "role" && <i class={`dot r-${roleClass(node.role)}`} aria-hidden="true" />}
          <span>{column.text(node)}</span>
        </div>
      ))}
    </div>
  );
});

export const roleClass = (role: string): string =>
  role === "verifier" || role === "drafter" || role === "stage" ? role : "other";

type Props = { nodes: SwarmNode[]; chosen: string | null; onChoose: (peerId: string) => void };

export function NodeTable({ nodes, chosen, onChoose }: Props) {
  const [words, setWords] = useState("");
  const [order, setOrder] = useState<{ id: string; isDown: boolean } | null>(null);
  const [first, setFirst] = useState(0);
  const [sizeRef, size] = useSize<HTMLDivElement>();
  const body = useRef<HTMLDivElement>(null);
  const shown = useMemo(() => {
    const asked = words.toLowerCase().split(/\s+/).filter(Boolean);
    const found = asked.length
      ? nodes.filter((node) => {
          const all = COLUMNS.map((column) => column.text(node)).join(" ").toLowerCase() + node.peer_id.toLowerCase();
          return asked.every((word) => all.includes(word));
        })
      : nodes;
    const column = COLUMNS.find((each) => each.id === order?.id);
    if (!column) return found;
    const sign = order!.isDown ? -1 : 1;
    return [...found].sort((one, other) => {
      const [a, b] = [column.key(one), column.key(other)];
      return sign * (a < b ? -1 : a > b ? 1 : 0);
    });
  }, [nodes, words, order]);
  const rows = Math.ceil((size.height || 400) / ROW_PX) + 2 * SPARE_ROWS;
  const from = Math.max(0, Math.min(first, shown.length - rows));
  const visible = shown.slice(from, from + rows);

  useEffect(() => {
    const place = body.current!;
    const scrolled = () => setFirst(Math.max(0, Math.floor(place.scrollTop / ROW_PX) - SPARE_ROWS));
    place.addEventListener("scroll", scrolled, { passive: true });
    return () => place.removeEventListener("scroll", scrolled);
  }, []);

  function walked(event: KeyboardEvent) {
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 10, PageUp: -10 }[event.key];
    if (!step || !shown.length) return;
    event.preventDefault();
    const at = shown.findIndex((node) => node.peer_id === chosen);
    const next = Math.max(0, Math.min(shown.length - 1, at < 0 ? 0 : at + step));
    onChoose(shown[next]!.peer_id);
    const place = body.current!;
    const top = next * ROW_PX;
    if (top < place.scrollTop) place.scrollTop = top;
    else if (top + ROW_PX > place.scrollTop + place.clientHeight) place.scrollTop = top + ROW_PX - place.clientHeight;
  }
  const sort = (id: string) => setOrder(order?.id === id ? (order.isDown ? null : { id, isDown: true }) : { id, isDown: false });
  return (
    <section class="nodes" aria-labelledby="nodes-title">
      <div class="row">
        <h2 id="nodes-title">Nodes</h2>
        <span class="faint" role="status">
          {shown.length === nodes.length ? nodes.length.toLocaleString("en") : `${shown.length} of ${nodes.length}`}
        </span>
        <span class="grow" />
        <input
          type="search"
          placeholder="Find: drafter code silent"
          aria-label="Find nodes by any of their words"
          value={words}
          onInput={(event) => setWords(event.currentTarget.value)}
        />
      </div>
      <div class="table" role="table" aria-label="Nodes" aria-rowcount={shown.length + 1} aria-colcount={COLUMNS.length}>
        <div role="rowgroup">
          <div class="tr head" role="row" aria-rowindex={1}>
            {COLUMNS.map((column) => (
              <div
                class={`td c-${column.id}${column.isNumber ? " number" : ""}`}
                role="columnheader"
                aria-sort={order?.id === column.id ? (order.isDown ? "descending" : "ascending") : "none"}
              >
                <button type="button" onClick={() => sort(column.id)}>
                  {column.title}
                  <i aria-hidden="true">{order?.id === column.id ? (order.isDown ? "↓" : "↑") : ""}</i>
                </button>
              </div>
            ))}
          </div>
        </div>
        <div
          class="tbody"
          role="rowgroup"
          style={{ height: `${shown.length * ROW_PX}px` }}
          tabIndex={0}
          aria-label="Rows; the arrow keys choose one"
          ref={(element) => {
            body.current = element;
            sizeRef.current = element;
          }}
          onKeyDown={walked}
        >
          <div class="all" role="presentation" style={{ height: `${shown.length * ROW_PX}px` }}>
            {visible.map((node, index) => (
              <Row
                key={node.peer_id}
                node={node}
                index={from + index}
                isChosen={node.peer_id === chosen}
                onChoose={onChoose}
              />
            ))}
          </div>
        </div>
      </div>
      {!shown.length && <p class="faint">{nodes.length ? "None is like that." : "Nobody is there."}</p>}
    </section>
  );
}
