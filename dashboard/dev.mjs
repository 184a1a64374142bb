// For whoever works on the pages: serves them, built anew at every visit, beside the API of a running `headway dev`.
//   npm run dev                                       pages at http://127.0.0.1:8490, API from http://127.0.0.1:8480
//   npm run dev -- --api http://127.0.0.1:9000 --port 9001 --prefix /headway/
import { createServer, request } from "node:http";
import { mkdtemp, readFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { buildPages } from "./build.mjs";

const given = (name, otherwise) => {
  const at = process.argv.indexOf(`--${name}`);
  return at > 0 ? process.argv[at + 1] : otherwise;
};
const api = new URL(given("api", "http://127.0.0.1:8480"));
const port = Number(given("port", "8490"));
const prefix = given("prefix", "/");
const folder = await mkdtemp(join(tmpdir(), "headway-pages-"));
const TYPES = { "index.html": "text/html; charset=utf-8", "app.js": "text/javascript", "plot.js": "text/javascript", "app.css": "text/css", "icon.svg": "image/svg+xml" };
// The same policy as in production, so that what it would refuse is seen here first.
const POLICY = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; base-uri 'none'; form-action 'self'";

createServer(async (asked, answer) => {
  const path = new URL(asked.url, "http://localhost").pathname;
  const name = path.startsWith(prefix) ? path.slice(prefix.length) || "index.html" : "";
  if (!(name in TYPES)) return forward(asked, answer);
  try {
    if (name === "index.html") await buildPages(folder, { minify: false });
    const body = await readFile(join(folder, name));
    answer.writeHead(200, { "Content-Type": TYPES[name], "Content-Security-Policy": POLICY, "Cache-Control": "no-store" }).end(body);
  } catch (error) {
    answer.writeHead(500, { "Content-Type": "text/plain" }).end(String(error));
  }
}).listen(port, "127.0.0.1", () => console.log(`http://127.0.0.1:${port}${prefix} with the API of ${api.origin}`));

function forward(asked, answer) {
  const path = asked.url.startsWith(prefix) ? `/${asked.url.slice(prefix.length)}` : asked.url;
  const headers = { ...asked.headers, host: api.host };
  const passed = request(new URL(path, api), { method: asked.method, headers }, (found) => {
    answer.writeHead(found.statusCode ?? 502, found.headers);
    found.pipe(answer);
  });
  passed.on("error", () => (answer.headersSent ? answer.destroy() : answer.writeHead(502).end()));
  answer.on("close", () => passed.destroy());
  asked.pipe(passed);
}
