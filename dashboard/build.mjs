// Builds the pages into the Python package: index.html, app.js, app.css, icon.svg. `--out FOLDER` puts them elsewhere,
// `--tests` builds the unit tests instead, into build/test.
import { build } from "esbuild";
import { copyFile, mkdir, readdir, readFile, rm } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
const GZIP_BYTES_MAX = 80_000;

const common = {
  bundle: true,
  format: "esm",
  target: ["es2022"],
  // `h(…)` packs better than what the newer way of JSX makes; the types are checked the newer way (see tsconfig.json).
  jsx: "transform",
  jsxFactory: "h",
  jsxFragment: "Fragment",
  inject: [join(here, "src/h.ts")],
  tsconfigRaw: "{}",
  charset: "utf8",
  legalComments: "none",
  logLevel: "warning",
};

/** Build what browsers load; a bundle that has grown beyond its bound is refused. */
export async function buildPages(out, { minify = true } = {}) {
  await mkdir(out, { recursive: true });
  await build({
    ...common,
    entryPoints: { app: join(here, "src/main.tsx") },
    outdir: out,
    minify,
    define: { "process.env.NODE_ENV": '"production"' },
  });
  await copyFile(join(here, "index.html"), join(out, "index.html"));
  await copyFile(join(here, "icon.svg"), join(out, "icon.svg"));
  const sizes = await Promise.all(["app.js", "app.css"].map(async (name) => gzipSync(await readFile(join(out, name)), { level: 9 }).length));
  console.log(`${out}: app.js ${kb(sizes[0])}, app.css ${kb(sizes[1])} gzipped`);
  if (minify && sizes[0] > GZIP_BYTES_MAX) throw new Error(`app.js has ${kb(sizes[0])} gzipped; at most ${kb(GZIP_BYTES_MAX)} are allowed`);
}

async function buildTests() {
  const out = join(here, "build/test");
  await rm(out, { recursive: true, force: true });
  const names = (await readdir(join(here, "test"))).filter((name) => name.endsWith(".test.ts"));
  await build({
    ...common,
    entryPoints: names.map((name) => join(here, "test", name)),
    outdir: out,
    outExtension: { ".js": ".mjs" },
    platform: "node",
    sourcemap: "inline",
  });
}

function kb(bytes) {
  return `${(bytes / 1000).toFixed(1)} KB`;
}

if (process.argv[1] && resolve(process.argv[1]) === fileURLToPath(import.meta.url)) {
  const given = process.argv.indexOf("--out");
  const out = given > 0 ? resolve(process.argv[given + 1] ?? "") : join(here, "../src/headway/status/static/dashboard");
  await (process.argv.includes("--tests") ? buildTests() : buildPages(out));
}
