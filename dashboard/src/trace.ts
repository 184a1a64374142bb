/** Parse tracebacks into frames, to tell user code from libraries. */

export interface Frame {
  head: string;
  lines: string[];
  isOwn: boolean;
}

export type TracePart = { text: string } | Frame;

const HEAD = /^ {2}File "(.+)", line \d+/;
// Library code: installed packages, the Python standard library, and Headway itself.
const FOREIGN = /[\\/](?:site-packages|dist-packages)[\\/]|[\\/]lib[\\/]python\d|[\\/]headway[\\/](?:worker|task|app|testing|queue|store)\b|^<frozen |^<string>/;

/** Parse a traceback. */
export function framesOf(traceback: string): TracePart[] {
  const parts: TracePart[] = [];
  let frame: Frame | null = null;
  for (const line of traceback.replace(/\n$/, "").split("\n")) {
    const head = HEAD.exec(line);
    if (head !== null) {
      frame = { head: line, lines: [], isOwn: !FOREIGN.test(head[1]!) };
      parts.push(frame);
    } else if (frame !== null && line.startsWith("    ")) {
      frame.lines.push(line);
    } else {
      frame = null;
      parts.push({ text: line });
    }
  }
  return parts;
}
