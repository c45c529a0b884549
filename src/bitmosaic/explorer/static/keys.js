// Keyboard shortcuts: pages bind keys with a description, and the help dialog lists all of them.

import { el } from "./dom.js";

const NAMES = { ArrowLeft: "←", ArrowRight: "→", ArrowUp: "↑", ArrowDown: "↓", Escape: "Esc" };
const bound = new Map();
const notes = new Map();
let prefix = "";

/** All `keys` run `action`; "g o" is g, then o. If the action returns false, the browser handles the key. */
export function bind(keys, words, action) {
  for (const key of keys) bound.set(key, action);
  notes.set(words, keys);
}

/** List keys in the help that are handled elsewhere. */
export function mention(keys, words) {
  notes.set(words, keys);
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (isTyping(event.target) || document.querySelector("dialog[open]")) return;
  const key = prefix ? `${prefix} ${event.key}` : event.key;
  prefix = "";
  if (event.key === "g" && key === "g") {
    prefix = "g";
    setTimeout(() => (prefix = ""), 1500);
    return;
  }
  const action = bound.get(key);
  if (action && action(event) !== false) event.preventDefault();
});

export function showHelp() {
  const rows = [...notes].map(([words, keys]) =>
    el(
      "div",
      {},
      el("dt", {}, keys.map((key) => key.split(" ").map((part) => el("kbd", {}, NAMES[part] ?? part)))),
      el("dd", {}, words),
    ),
  );
  const dialog = el(
    "dialog.help",
    { testid: "help", "aria-label": "Keyboard shortcuts", onclose: () => dialog.remove() },
    el(
      "form.dialog-head",
      { method: "dialog" },
      el("h2", {}, "Keyboard shortcuts"),
      el("button.quiet", { "aria-label": "Close" }, "×"),
    ),
    el("dl.keys", {}, rows),
  );
  document.body.append(dialog);
  dialog.showModal();
}

function isTyping(target) {
  return target.matches?.("textarea, select, input:not([type=checkbox]):not([type=button])") ?? false;
}
