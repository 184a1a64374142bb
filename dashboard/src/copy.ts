/** The clipboard, also for pages without TLS, where browsers hide the newer API. */
import { say } from "./toasts.tsx";

/** Copy a text and show a message. */
export async function copyText(text: string, what: string): Promise<void> {
  const done = (await byClipboard(text)) || bySelection(text);
  say(done ? { words: `${what}: copied.` } : { words: "The browser blocked copying. Select the text and copy it.", tone: "warn" });
}

async function byClipboard(text: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

function bySelection(text: string): boolean {
  const field = document.createElement("textarea");
  field.value = text;
  field.className = "offscreen";
  document.body.append(field);
  field.select();
  try {
    return document.execCommand("copy");
  } catch {
    return false;
  } finally {
    field.remove();
  }
}
