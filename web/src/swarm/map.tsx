// A map by network coordinates: distances are round-trip times, not geography.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { name, short } from "../harmless";
import { count, useSize } from "../parts";
import { gift, standingOf, STANDINGS, type SwarmNode } from "./state";
import { roleClass } from "./table";

const MARGIN_PX = 28;
const LEAST_SPAN_MS = 4;
const NEAR_PX = 14;
const COLOURS = ["--grid", "--bad", "--surface", "--ink", "--r-verifier", "--r-drafter", "--r-stage", "--r-other"];

type Place = { node: SwarmNode; x: number; y: number };
type Frame = { places: Place[]; pixelsPerMs: number };

/** The positions of nodes with a reliable coordinate, fitted into a picture. */
function framed(nodes: SwarmNode[], width: number, height: number): Frame {
  const known = nodes.filter((node) => node.coordinate && node.coordinate.error <= 0.5);
  const xs = known.map((node) => node.coordinate!.x_ms);
  const ys = known.map((node) => node.coordinate!.y_ms);
  const [left, right, top, bottom] = [Math.min(...xs), Math.max(...xs), Math.min(...ys), Math.max(...ys)];
  const span = Math.max(LEAST_SPAN_MS, (right - left) * 1.02, ((bottom - top) * width) / Math.max(1, height));
  const pixelsPerMs = Math.max(0.001, Math.min((width - 2 * MARGIN_PX) / span, (height - 2 * MARGIN_PX) / Math.max(LEAST_SPAN_MS, bottom - top)));
  const [midX, midY] = [(left + right) / 2, (top + bottom) / 2];
  const places = known.map((node) => ({
    node,
    x: width / 2 + (node.coordinate!.x_ms - midX) * pixelsPerMs,
    y: height / 2 + (node.coordinate!.y_ms - midY) * pixelsPerMs,
  }));
  return { places, pixelsPerMs };
}

function ruler(pixelsPerMs: number): number {
  const wanted = 90 / pixelsPerMs;
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [5, 2, 1].map((step) => step * power).find((step) => step <= wanted) ?? power;
}

/** A colour of the style sheet in the current theme. */
function colourOf(element: HTMLElement, property: string): string {
  element.style.color = `var(${property})`;
  return getComputedStyle(element).color;
}

function draw(canvas: HTMLCanvasElement, { places, pixelsPerMs }: Frame, chosen: string | null, near: string | null): void {
  const scale = devicePixelRatio;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  const pen = canvas.getContext("2d")!;
  pen.scale(scale, scale);
  const colours = new Map(COLOURS.map((each) => [each, colourOf(canvas, each)]));
  const ink = (property: string) => colours.get(property)!;
  const step = ruler(pixelsPerMs) * pixelsPerMs;
  pen.strokeStyle = ink("--grid");
  pen.lineWidth = 1;
  pen.beginPath();
  for (let x = (width / 2) % step; x < width; x += step) pen.rect(Math.round(x), -1, 0, height + 2);
  for (let y = (height / 2) % step; y < height; y += step) pen.rect(-1, Math.round(y), width + 2, 0);
  pen.stroke();
  const radius = places.length > 400 ? 3 : places.length > 100 ? 4 : 6;
  for (const { node, x, y } of places) {
    const standing = standingOf(node);
    const colour = standing === "convicted" ? ink("--bad") : ink(`--r-${roleClass(node.role)}`);
    pen.beginPath();
    if (node.role === "verifier") pen.rect(x - radius, y - radius, 2 * radius, 2 * radius);
    else if (node.role === "stage") {
      pen.moveTo(x, y - 1.3 * radius);
      pen.lineTo(x + 1.2 * radius, y + radius);
      pen.lineTo(x - 1.2 * radius, y + radius);
      pen.closePath();
    } else pen.arc(x, y, radius, 0, 2 * Math.PI);
    if (standing === "silent") {
      pen.lineWidth = 1.5;
      pen.strokeStyle = colour;
      pen.stroke();
    } else {
      pen.fillStyle = colour;
      pen.fill();
    }
    if (standing === "convicted") {
      pen.lineWidth = 2;
      pen.strokeStyle = ink("--surface");
      pen.beginPath();
      pen.moveTo(x - radius, y - radius);
      pen.lineTo(x + radius, y + radius);
      pen.moveTo(x + radius, y - radius);
      pen.lineTo(x - radius, y + radius);
      pen.stroke();
    }
    if (node.peer_id === chosen || node.peer_id === near) {
      pen.beginPath();
      pen.arc(x, y, radius + 5, 0, 2 * Math.PI);
      pen.lineWidth = 2;
      pen.strokeStyle = ink("--ink");
      pen.stroke();
    }
  }
}

type Props = { nodes: SwarmNode[]; chosen: string | null; onChoose: (peerId: string) => void };

export function NodeMap({ nodes, chosen, onChoose }: Props) {
  const [boxRef, size] = useSize<HTMLDivElement>();
  const canvas = useRef<HTMLCanvasElement>(null);
  const [near, setNear] = useState<Place | null>(null);
  const frame = useMemo(() => framed(nodes, size.width, size.height), [nodes, size.width, size.height]);
  const theme = document.documentElement.dataset["theme"];
  useEffect(() => {
    if (size.width) draw(canvas.current!, frame, chosen, near?.node.peer_id ?? null);
  }, [frame, chosen, near, theme]);
  function nearest(event: MouseEvent): Place | null {
    const box = canvas.current!.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    let best: Place | null = null;
    let least = NEAR_PX;
    for (const place of frame.places) {
      const away = Math.hypot(place.x - x, place.y - y);
      if (away < least) [best, least] = [place, away];
    }
    return best;
  }
  const unplaced = nodes.length - frame.places.length;
  const step = ruler(frame.pixelsPerMs);
  return (
    <section class="card map" aria-labelledby="map-title">
      <div class="row">
        <h2 id="map-title">Near and far</h2>
        <span class="grow" />
        <ul class="key" aria-label="Shapes">
          <li class="k-verifier">verifier</li>
          <li class="k-drafter">drafter</li>
          <li class="k-stage">stage</li>
        </ul>
      </div>
      <div class="canvas" ref={boxRef}>
        <canvas
          ref={canvas}
          role="img"
          aria-label={`${count(frame.places.length, "node")} by network coordinates; the table below has all of them`}
          onMouseMove={(event) => setNear(nearest(event))}
          onMouseLeave={() => setNear(null)}
          onClick={(event) => {
            const place = nearest(event);
            if (place) onChoose(place.node.peer_id);
          }}
        />
        {near && (
          <div class="told" style={{ left: `${Math.min(near.x, size.width - 200)}px`, top: `${near.y + 12}px` }}>
            <b>
              {name(near.node.role, 16)} {short(near.node.peer_id)}
            </b>
            <span>{name(gift(near.node) || near.node.model, 60)}</span>
            <span>{STANDINGS[standingOf(near.node)]}</span>
          </div>
        )}
      </div>
      <p class="faint">
        {frame.places.length
          ? `A square is ${step >= 1 ? step : step.toPrecision(1)} ms wide, by round trips, not by geography.`
          : "No node has told a network coordinate that is sure enough yet."}
        {unplaced > 0 && frame.places.length > 0 && ` ${count(unplaced, "node")} without one.`}
      </p>
    </section>
  );
}
