// Builds the pages into the Python package: index.html, app.js, plot.js, app.css, icon.svg. `--out FOLDER` puts them elsewhere,
// `--tests` builds the unit tests instead, into build/test.
import { build } from "esbuild";
import { copyFile, mkdir, readdir, readFile, rm } from "node:fs/promises";
import { dirname, join, resolve } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

const here = dirname(fileURLToPath(import.meta.url));
// Packed as the server packs them: what a browser loads before it shows anything, and what draws charts after that.
const GZIP_BYTES_MAX = { "app.js and app.css": 64_000, "plot.js": 22_000 };

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

const CUT_FROM_UPLOT = 13;

/**
 * Of uPlot only what is drawn here: ways to draw that nobody uses, and helpers for other programs, are cut off where it
 * hands them out, so that the bundler leaves them away. A release that hands them out otherwise stops the build.
 */
const lessOfUplot = {
  name: "less-of-uplot",
  setup(made) {
    made.onLoad({ filter: /uPlot\.esm\.js$/ }, async ({ path }) => {
      const text = await readFile(path, "utf8");
      const cut = /^\s*(?:\(paths\.(?:stepped|spline) |uPlot\.(?:addGap|assign|clipGaps|fmtDate|fmtNum|join|orient|rangeAsinh|rangeLog|rangeNum|tzDate) ).*;$/gm;
      const found = text.match(cut)?.length ?? 0;
      if (found !== CUT_FROM_UPLOT) throw new Error(`uPlot hands out ${found} of the ${CUT_FROM_UPLOT} things that are cut off`);
      return { contents: text.replace(cut, ""), loader: "js" };
    });
  },
};

/** What draws charts has no part of the pages in it, so it is a bundle of its own, which they load by its name. */
const plotApart = {
  name: "plot-apart",
  setup(made) {
    made.onResolve({ filter: /^\.\/plot\.js$/ }, () => ({ path: "./plot.js", external: true }));
  },
};

/** Build what browsers load; a bundle that has grown beyond its bound is refused. */
export async function buildPages(out, { minify = true } = {}) {
  await mkdir(out, { recursive: true });
  const define = { "process.env.NODE_ENV": '"production"' };
  await build({ ...common, entryPoints: { app: join(here, "src/main.tsx") }, outdir: out, minify, plugins: [plotApart], define });
  await build({ ...common, inject: [], entryPoints: { plot: join(here, "src/plot.ts") }, outdir: out, minify, plugins: [lessOfUplot], define });
  await copyFile(join(here, "index.html"), join(out, "index.html"));
  await copyFile(join(here, "icon.svg"), join(out, "icon.svg"));
  for (const [names, most] of Object.entries(GZIP_BYTES_MAX)) {
    const sizes = await Promise.all(names.split(" and ").map(async (name) => gzipSync(await readFile(join(out, name)), { level: 9 }).length));
    const total = sizes.reduce((sum, size) => sum + size, 0);
    console.log(`${out}: ${names}: ${kb(total)} gzipped`);
    if (minify && total > most) throw new Error(`${names} have ${kb(total)} gzipped; at most ${kb(most)} are allowed`);
  }
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
  const out = given > 0 ? resolve(process.argv[given + 1] ?? "") : join(here, "../src/headway/server/static/dashboard");
  await (process.argv.includes("--tests") ? buildTests() : buildPages(out));
}
