// Builds the bundle that ships with Quire: `node build.mjs [FOLDER]`. The same sources give the same bytes.
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import { build } from "esbuild";

const out = process.argv[2] ?? "../src/quire/server/static";
await build({
  entryPoints: { app: "src/main.tsx" },
  bundle: true,
  minify: true,
  format: "esm",
  target: "es2022",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "none",
  charset: "utf8",
  outdir: out,
});
const parts = ["preact", "@preact/signals", "@preact/signals-core", "@tanstack/virtual-core", "uplot"];
const licence = (name) => {
  const folder = join("node_modules", name);
  const { version } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  return `${name} ${version}\n\n${readFileSync(join(folder, "LICENSE"), "utf8").trim()}\n`;
};
writeFileSync(join(out, "licenses.txt"), parts.map(licence).join(`\n${"-".repeat(72)}\n\n`));
