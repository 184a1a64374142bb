// Shows /openapi.json. Everything is set as text, nothing as markup; the token stays in this page's memory.
"use strict";

const LINES_SHOWN_MAX = 500;
const METHODS = ["get", "post", "put", "patch", "delete"];
// The page is at …/docs, the API beside it, whatever is in front of both.
const BASE = new URL(".", document.baseURI);
BASE.username = BASE.password = ""; // No request may be made to an address with a password in it.

let token = "";
let specification = null;

// --- pieces of the page

function make(name, properties, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(properties || {})) {
    if (key === "class") element.className = value;
    else if (key === "text") element.textContent = value;
    else if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const byId = (id) => document.getElementById(id);

function paragraphs(text) {
  return text.split(/\n\s*\n/).filter((part) => part.trim()).map((part) => make("p", {}, ...withCode(part)));
}

function withCode(text) {
  return text.split("`").map((part, index) => (index % 2 ? make("code", { text: part }) : part));
}

function pretty(value) {
  return typeof value === "string" ? value : JSON.stringify(value, null, 2);
}

function table(headings, rows) {
  if (!rows.length) return null;
  const head = make("tr", {}, ...headings.map((text) => make("th", { text, scope: "col" })));
  const body = rows.map((cells) => make("tr", {}, ...cells.map((cell) => make("td", {}, ...[].concat(cell)))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, ...body));
}

// --- schemas in words

function resolved(node) {
  if (!node || !node.$ref) return node || {};
  return node.$ref.slice(2).split("/").reduce((inner, part) => inner[part.replaceAll("~1", "/").replaceAll("~0", "~")], specification);
}

function typeOf(schema) {
  if (schema.$ref) {
    const target = resolved(schema);
    return target.enum ? target.enum.join(" | ") : schema.$ref.split("/").pop();
  }
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" | ");
  if (schema.enum) return schema.enum.map((value) => JSON.stringify(value)).join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items || {})}`;
  return [].concat(schema.format || schema.type || "anything").join(" | ");
}

function boundsOf(schema) {
  const parts = (schema.anyOf || []).map(boundsOf).filter(Boolean);
  if (parts.length) return parts.join(", ");
  const known = { minimum: "≥", maximum: "≤", minLength: "length ≥", maxLength: "length ≤", maxItems: "items ≤", default: "default" };
  return Object.entries(known)
    .filter(([name]) => schema[name] !== undefined && schema[name] !== null)
    .map(([name, words]) => `${words} ${JSON.stringify(schema[name])}`)
    .join(", ");
}

function fieldsOf(schema) {
  const target = resolved(schema);
  const required = new Set(target.required || []);
  return table(
    ["field", "type", ""],
    Object.entries(target.properties || {}).map(([name, field]) => [
      [make("code", { text: name }), required.has(name) ? " *" : ""],
      typeOf(field),
      [field.description || "", make("span", { class: "quiet", text: " " + boundsOf(field) })],
    ]),
  );
}

// --- one operation

function curlOf(method, path, operation) {
  const query = (operation.parameters || []).filter((one) => one.in === "query" && one.required);
  const names = { path: (one) => (path = path.replace(`{${one.name}}`, encodeURIComponent(one.example ?? one.name))) };
  for (const one of operation.parameters || []) if (names[one.in]) names[one.in](one);
  const search = query.map((one) => `${one.name}=${encodeURIComponent(one.example ?? "")}`).join("&");
  const words = ["curl"];
  if (streams(operation)) words.push("-N");
  if (method !== "get") words.push("-X", method.toUpperCase());
  if (!operation.security || operation.security.length) words.push("-H", quoted("Authorization: Bearer $HEADWAY_TOKEN", '"'));
  const body = bodyOf(operation);
  if (body) words.push("-H", quoted("Content-Type: application/json"), "-d", quoted(JSON.stringify(body.example ?? {})));
  words.push(quoted(new URL(path.slice(1), BASE).href + (search ? `?${search}` : "")));
  return words.join(" ");
}

function quoted(text, mark = "'") {
  return mark + (mark === "'" ? text.replaceAll("'", "'\\''") : text) + mark;
}

function bodyOf(operation) {
  return operation.requestBody ? operation.requestBody.content["application/json"] : null;
}

function streams(operation) {
  const answer = resolved((operation.responses || {})["200"]);
  return Boolean(answer.content && answer.content["text/event-stream"] && !answer.content["application/json"]);
}

function copied(text) {
  const button = make("button", { type: "button", text: "Copy" });
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
    } catch {
      button.textContent = "Select and copy";
    }
  });
  return make("div", { class: "beside" }, make("pre", { text }), button);
}

function section(title, ...content) {
  const present = content.filter((part) => part !== null && part !== undefined);
  return present.length ? [make("h3", { text: title }), ...present] : [];
}

function exampleOf(media) {
  return media && media.example !== undefined ? make("pre", { text: pretty(media.example) }) : null;
}

function answersOf(operation) {
  return Object.entries(operation.responses).map(([status, one]) => {
    const answer = resolved(one);
    const kinds = Object.entries(answer.content || {});
    const inside = kinds.flatMap(([kind, media]) => [
      make("p", { class: "quiet", text: `${kind}${media.schema && media.schema.$ref ? ` · ${typeOf(media.schema)}` : ""}` }),
      exampleOf(media),
    ]);
    return make("details", {}, make("summary", { text: `${status}  ${answer.description}` }), ...inside.filter(Boolean));
  });
}

function parametersOf(operation) {
  return table(
    ["parameter", "in", "type", ""],
    (operation.parameters || []).map((one) => [
      [make("code", { text: one.name }), one.required ? " *" : ""],
      one.in,
      typeOf(one.schema),
      [
        ...withCode(one.description || ""),
        make("span", { class: "quiet", text: ` ${[boundsOf(one.schema), exampleIn(one)].filter(Boolean).join("; ")}` }),
      ],
    ]),
  );
}

function exampleIn(parameter) {
  return parameter.example === undefined ? "" : `such as ${parameter.example}`;
}

function show(method, path, operation) {
  const body = bodyOf(operation);
  const details = make(
    "details",
    { id: operation.operationId, "data-words": `${method} ${path} ${operation.summary} ${operation.tags}`.toLowerCase() },
    make(
      "summary",
      {},
      make("span", { class: `method ${method}`, text: method.toUpperCase() }),
      make("span", { class: "path", text: path }),
      make("span", { class: "what", text: operation.summary }),
    ),
  );
  // Filled when it is opened: a hundred operations are a long page.
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    details.append(
      ...paragraphs(operation.description || ""),
      ...section("Parameters", parametersOf(operation)),
      ...(body ? section("Body", fieldsOf(body.schema), exampleOf(body)) : []),
      ...section("With curl", copied(curlOf(method, path, operation))),
      ...(method === "get" ? section("Try it", tryOf(path, operation)) : []),
      ...section("Responses", ...answersOf(operation)),
    );
  });
  return details;
}

// --- try it

function fieldFor(one) {
  const id = `field-${Math.random().toString(36).slice(2)}`;
  const choices = one.schema.enum;
  const input = choices
    ? make("select", { id, name: one.name }, make("option", { value: "", text: "" }), ...choices.map((value) => make("option", { value, text: value })))
    : make("input", { id, name: one.name, placeholder: one.example ?? "" });
  return { one, input, row: make("div", { class: "field" }, make("label", { for: id, text: one.name }), input) };
}

function tryOf(path, operation) {
  const fields = (operation.parameters || []).filter((one) => one.in !== "header").map(fieldFor);
  const said = make("p", { class: "quiet", role: "status" });
  const shown = make("pre", { hidden: true });
  const stop = make("button", { type: "button", text: "Stop", hidden: true });
  const form = make("form", { class: "try" }, ...fields.map((field) => field.row), make("div", {}, make("button", { type: "submit", text: "Send" }), " ", stop), said, shown);
  let running = null;
  stop.addEventListener("click", () => running && running.abort());
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (running) running.abort();
    running = new AbortController();
    shown.hidden = false;
    shown.textContent = "";
    stop.hidden = false;
    try {
      await send(addressOf(path, fields), running.signal, said, shown);
    } catch (error) {
      if (error.name !== "AbortError") said.textContent = `No response: ${error.message}`;
    } finally {
      stop.hidden = true;
    }
  });
  return form;
}

function addressOf(path, fields) {
  for (const { one, input } of fields.filter((field) => field.one.in === "path")) {
    path = path.replace(`{${one.name}}`, encodeURIComponent(input.value || one.example));
  }
  const address = new URL(path.slice(1), BASE);
  for (const { one, input } of fields.filter((field) => field.one.in === "query")) {
    if (input.value) address.searchParams.set(one.name, input.value);
  }
  return address;
}

// What the browser asked for by itself counts for the specification only.
function ask(address, { signal, credentials = "omit" }) {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  return fetch(address, { headers, signal, credentials, cache: "no-store" });
}

async function send(address, signal, said, shown) {
  const begin = performance.now();
  const answer = await ask(address, { signal });
  said.textContent = `${answer.status} ${answer.statusText} in ${Math.round(performance.now() - begin)} ms`;
  if (answer.status === 401) said.textContent += " · put a token into the field on top";
  if (answer.headers.get("ETag")) said.textContent += ` · ETag ${answer.headers.get("ETag")}`;
  if ((answer.headers.get("Content-Type") || "").startsWith("text/event-stream")) return follow(answer, shown);
  const text = await answer.text();
  try {
    shown.textContent = pretty(JSON.parse(text));
  } catch {
    shown.textContent = text;
  }
}

async function follow(answer, shown) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let lines = [];
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    lines = (lines.join("\n") + value).split("\n").slice(-LINES_SHOWN_MAX);
    shown.textContent = lines.join("\n");
    shown.scrollTop = shown.scrollHeight;
  }
}

// --- the page

function operations() {
  return Object.entries(specification.paths).flatMap(([path, item]) =>
    METHODS.filter((method) => item[method]).map((method) => ({ method, path, operation: item[method] })),
  );
}

function render() {
  byId("version").textContent = specification.info.version;
  byId("about").replaceChildren(...paragraphs(specification.info.description));
  const all = operations();
  const groups = specification.tags.map((tag) => ({ tag, inside: all.filter((one) => one.operation.tags.includes(tag.name)) }));
  byId("operations").replaceChildren(
    ...groups.map(({ tag, inside }) =>
      make(
        "section",
        { "data-group": true },
        make("h2", { id: `tag-${tag.name}`, text: tag.name }),
        make("p", { class: "quiet", text: tag.description || "" }),
        ...inside.map(({ method, path, operation }) => show(method, path, operation)),
      ),
    ),
  );
  byId("contents").replaceChildren(
    ...groups.flatMap(({ tag, inside }) => [
      make("strong", { text: tag.name }),
      make("ul", {}, ...inside.map(({ operation }) => make("li", {}, make("a", { href: `#${operation.operationId}`, text: operation.summary })))),
    ]),
  );
  find();
  open();
}

function open() {
  const target = location.hash && byId(decodeURIComponent(location.hash.slice(1)));
  if (!target) return;
  if (target.tagName === "DETAILS") target.open = true;
  target.scrollIntoView();
}

function find() {
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  for (const group of document.querySelectorAll("[data-group]")) {
    const inside = [...group.querySelectorAll("details[data-words]")];
    for (const one of inside) one.hidden = !words.every((word) => one.dataset.words.includes(word));
    group.hidden = inside.every((one) => one.hidden);
  }
}

async function load() {
  const state = byId("state");
  state.className = "";
  state.textContent = "";
  try {
    const answer = await ask(new URL("openapi.json", BASE), { credentials: "same-origin" });
    if (answer.status === 401) {
      state.className = "wrong";
      state.textContent = token ? "Invalid token" : "A token is required";
      byId("token").focus();
      return;
    }
    if (!answer.ok) throw new Error(`status ${answer.status}`);
    specification = await answer.json();
    render();
  } catch (error) {
    state.className = "wrong";
    state.textContent = `No specification: ${error.message}`;
  }
}

byId("credential").addEventListener("submit", (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  load();
});
byId("filter").addEventListener("input", find);
window.addEventListener("hashchange", open);
load();
