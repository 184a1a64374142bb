/** Arguments and results: collapsible, exact to the last digit, with links only to http and https. */
import { useState } from "preact/hooks";
import { ExactNumber, writeExact, type Json } from "./exact.ts";
import { clip, counted, safeUrl, visible } from "./format.ts";
import { Copy } from "./ui.tsx";

const SHOWN = 50;
const TEXT_SHOWN = 2_000;
const OPEN_DEPTH = 2;

export function JsonView({ value, label }: { value: Json; label: string }) {
  return (
    <div class="json" aria-label={label} role="group">
      <div class="json-tools">
        <Copy text={writeExact(value, 2)} what={label} />
      </div>
      <Branch value={value} depth={0} />
    </div>
  );
}

function Branch({ name, value, depth }: { name?: string; value: Json; depth: number }) {
  const [shown, setShown] = useState(SHOWN);
  const isTree = value !== null && typeof value === "object" && !(value instanceof ExactNumber);
  const entries: [string, Json][] = !isTree ? [] : Array.isArray(value) ? value.map((item, place) => [String(place), item]) : Object.entries(value);
  if (!isTree || entries.length === 0) {
    return (
      <div class="leaf">
        {name !== undefined && <Name name={name} />}
        <Leaf value={value} />
      </div>
    );
  }
  const size = Array.isArray(value) ? counted(entries.length, "item") : counted(entries.length, "field");
  return (
    <details open={depth < OPEN_DEPTH}>
      <summary>
        {name !== undefined && <Name name={name} />}
        <span class="faint">{Array.isArray(value) ? `[ ${size} ]` : `{ ${size} }`}</span>
      </summary>
      <div class="branch">
        {entries.slice(0, shown).map(([inner, item]) => (
          <Branch key={inner} name={inner} value={item} depth={depth + 1} />
        ))}
        {entries.length > shown && (
          <button type="button" class="small ghost" onClick={() => setShown(shown + 500)}>
            {counted(entries.length - shown, "more", "more")}
          </button>
        )}
      </div>
    </details>
  );
}

function Name({ name }: { name: string }) {
  return <span class="json-name">{visible(clip(name, 200))}: </span>;
}

function Leaf({ value }: { value: Json }) {
  if (value instanceof ExactNumber) return <span class="json-number">{clip(value.text, 4_000)}</span>;
  if (typeof value === "number") return <span class="json-number">{String(value)}</span>;
  if (typeof value === "string") return <TextLeaf text={value} />;
  if (value !== null && typeof value === "object") return <span class="faint">{Array.isArray(value) ? "[ ]" : "{ }"}</span>;
  return <span class="json-word">{String(value)}</span>;
}

function TextLeaf({ text }: { text: string }) {
  const [isWhole, setWhole] = useState(false);
  if (text === "***") return <span class="masked">masked</span>;
  const url = safeUrl(text);
  if (url !== null) {
    return (
      <a href={url} target="_blank" rel="noopener noreferrer nofollow">
        {visible(text)}
      </a>
    );
  }
  const shown = isWhole ? text : clip(text, TEXT_SHOWN);
  return (
    <span class="json-text">
      "{visible(shown)}"{" "}
      {text.length > TEXT_SHOWN && (
        <button type="button" class="small ghost" onClick={() => setWhole(!isWhole)}>
          {isWhole ? "Less" : `All ${counted(text.length, "character")}`}
        </button>
      )}
    </span>
  );
}
