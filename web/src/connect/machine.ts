// The machine that serves the page, where whoever looks sits at it.

import { useEffect, useState } from "preact/hooks";
import { getJson, Refused } from "../gateway";

/** What of the target fits into what a machine has free; `layers` are those that the swarm lacks most. */
export type Fits = {
  layers: string | null;
  bytes: number;
  is_whole: boolean;
  whole_bytes: number;
  of: number;
};
export type Machine = {
  cores: number;
  memory_bytes: number;
  devices: { name: string; memory_bytes: number }[];
  disk_bytes: number;
  lacks: string[];
  reach: { result: string; found: string; fix: string };
  fits: Fits | null;
};
/** `isElsewhere` where the page is of another machine than the one that shows it. */
export type Asked = { machine: Machine | null; isElsewhere: boolean; problem: string };

export const sizeOf = (bytes: number): string =>
  bytes >= 2 ** 29 ? `${(bytes / 2 ** 30).toFixed(1)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;

/** How many layers fit. */
export function layersIn({ layers, is_whole, of }: Fits): number {
  if (is_whole) return of;
  const [first, end] = (layers ?? "0:0").split(":").map(Number);
  return end! - first!;
}

/** Asks once. */
export function useMachine(): Asked {
  const [asked, setAsked] = useState<Asked>({ machine: null, isElsewhere: false, problem: "" });
  useEffect(() => {
    let isGone = false;
    getJson<Machine>("/v1/machine").then(
      (machine) => isGone || setAsked({ machine, isElsewhere: false, problem: "" }),
      (error: unknown) => {
        if (isGone) return;
        const isElsewhere = error instanceof Refused && error.status === 403;
        setAsked({ machine: null, isElsewhere, problem: error instanceof Refused ? error.message : "It does not say." });
      },
    );
    return () => {
      isGone = true;
    };
  }, []);
  return asked;
}
