// Bundle the libraries of the console into src/trace_etl/console/static/vendor, with their licences.
import { build } from "esbuild";
import { readdirSync, readFileSync, rmSync, mkdirSync, copyFileSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const PREACT_TYPES = `export type { Signal } from "@preact/signals";
export declare const html: (strings: TemplateStringsArray, ...values: any[]) => any;
`;
const here = dirname(fileURLToPath(import.meta.url));
const target = join(here, "../src/trace_etl/console/static/vendor");
rmSync(target, { recursive: true, force: true });
mkdirSync(target, { recursive: true });
const result = await build({
  entryPoints: readdirSync(join(here, "bundles")).map((name) => join(here, "bundles", name)),
  outdir: target,
  bundle: true,
  format: "esm",
  minify: true,
  target: "es2022",
  legalComments: "none",
  metafile: true,
  absWorkingDir: here,
});
copyFileSync(join(here, "node_modules/uplot/dist/uPlot.min.css"), join(target, "uplot.css"));

const packages = new Set(["uplot"]);
for (const input of Object.keys(result.metafile.inputs)) {
  const found = input.match(/^node_modules\/((?:@[^/]+\/)?[^/]+)\//);
  if (found) packages.add(found[1]);
}
const texts = [...packages].sort().map((name) => {
  const folder = join(here, "node_modules", name);
  const about = JSON.parse(readFileSync(join(folder, "package.json"), "utf8"));
  const file = readdirSync(folder).find((entry) => /^licen[cs]e/i.test(entry));
  if (!file) throw new Error(`${name} has no licence file`);
  return `${name} ${about.version} (${about.license})\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
});
writeFileSync(join(target, "LICENSES.txt"), texts.join(`\n${"-".repeat(80)}\n\n`));

// What each bundle exports, for the type check: its statements are valid as declarations.
for (const name of readdirSync(join(here, "bundles"))) {
  const statements = readFileSync(join(here, "bundles", name), "utf8").replace(/^(import|export const) .*\n/gm, "");
  const extra = name === "preact.js" ? PREACT_TYPES : "";
  writeFileSync(join(target, name.replace(".js", ".d.ts")), `${statements.trim()}\n${extra}`);
}
