// Builds the page into a folder. Default: that of the node package.
import { build } from "esbuild";
import { copyFile, mkdir } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

const here = dirname(fileURLToPath(import.meta.url));
const out = resolve(process.argv[2] ?? join(here, "../node/cosine_gateway/page/assets"));
await mkdir(out, { recursive: true });
await build({
  absWorkingDir: here,
  entryPoints: ["src/page.tsx", "src/page.css"],
  outdir: out,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  logLevel: "warning",
});
for (const name of ["index.html", "mark.svg", "licences.txt"]) {
  await copyFile(join(here, "src", name), join(out, name));
}
