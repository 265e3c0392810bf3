// The speed of generations over time: a point for each, and a line of the running median.

import { count, fixed } from "../parts";
import type { Point } from "./state";

type Curve = { title: string; unit: string; of: (point: Point) => number | null; digits: number; most?: number };

const CURVES: Curve[] = [
  { title: "Speed", unit: "tokens/s", of: (point) => point.tokens_per_s, digits: 1 },
  { title: "A pass", unit: "tokens", of: (point) => point.tokens_per_pass, digits: 2 },
  { title: "Acceptance", unit: "%", of: (point) => (point.acceptance === null ? null : 100 * point.acceptance), digits: 0, most: 100 },
];
const SMOOTH = 5;

function middle(values: number[]): number {
  const sorted = [...values].sort((one, other) => one - other);
  const half = sorted.length >> 1;
  return sorted.length % 2 ? sorted[half]! : (sorted[half - 1]! + sorted[half]!) / 2;
}

function Chart({ curve, points }: { curve: Curve; points: Point[] }) {
  const values = points.map(curve.of).filter((value): value is number => value !== null);
  const most = curve.most ?? Math.max(1e-9, ...values) * 1.08;
  const x = (index: number) => (values.length > 1 ? (100 * index) / (values.length - 1) : 50);
  const y = (value: number) => 40 - (38 * value) / most;
  const line = values
    .map((_, index) => middle(values.slice(Math.max(0, index - SMOOTH + 1), index + 1)))
    .map((value, index) => `${index ? "L" : "M"}${x(index).toFixed(2)} ${y(value).toFixed(2)}`)
    .join("");
  const latest = values.at(-1);
  return (
    <figure class="chart">
      <figcaption>
        <span>{curve.title}</span>
        <b>{latest === undefined ? "–" : fixed(latest, curve.digits)}</b> <small>{curve.unit}</small>
      </figcaption>
      <svg viewBox="0 0 100 42" preserveAspectRatio="none" role="img" aria-label={
        values.length
          ? `${curve.title} of the latest ${count(values.length, "reply").replace("replys", "replies")}: from ${fixed(Math.min(...values), curve.digits)} to ${fixed(Math.max(...values), curve.digits)} ${curve.unit}`
          : `${curve.title}: nothing yet`
      }>
        <path class="base" d="M0 40H100" />
        <path class="line" d={line} />
        {values.map((value, index) => (
          <path class="point" d={`M${x(index).toFixed(2)} ${y(value).toFixed(2)}h0`} />
        ))}
      </svg>
    </figure>
  );
}

export function Trends({ points }: { points: Point[] }) {
  return (
    <section class="card trends" aria-labelledby="trend-title">
      <h2 id="trend-title">Replies of this gateway</h2>
      <div class="charts">
        {CURVES.map((curve) => (
          <Chart curve={curve} points={points} />
        ))}
      </div>
      {!points.length && <p class="faint">Nothing was asked here yet.</p>}
    </section>
  );
}
