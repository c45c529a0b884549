// What the page says: a line at the foot of the screen, or in place of a page that cannot be shown.

import { el } from "./dom.js";

const KEPT = "message-for-next-page";
let line = null;
let timer = 0;

/** Say something; errors stay until closed. `action` is {words, run}, a button beside the sentence. */
export function say(words, { error = false, action = null } = {}) {
  hush();
  line = el(
    "div.message",
    { testid: "message", role: error ? "alert" : "status" },
    el("span", {}, words),
    action && el("button", { type: "button", onclick: () => (hush(), action.run()) }, action.words),
    el("button.close", { type: "button", "aria-label": "Close this message", onclick: hush }, "×"),
  );
  line.classList.toggle("error", error);
  document.body.append(line);
  if (!error) timer = setTimeout(hush, 10_000);
}

function hush() {
  clearTimeout(timer);
  line?.remove();
  line = null;
}

/** A page that cannot be shown says why, and offers a way on. */
export function failure(problem, retry) {
  return el(
    "div.failure",
    { role: "alert", testid: "message" },
    el("p", {}, problem.message),
    el(
      "p",
      {},
      el("button", { type: "button", onclick: retry }, "Try again"),
      " ",
      el("a.button", { href: "/" }, "To the overview"),
    ),
  );
}

/** For an edit after which the page is left. */
export const sayOnNextPage = (words) => sessionStorage.setItem(KEPT, words);

export function sayWhatWasKept(options) {
  const words = sessionStorage.getItem(KEPT);
  sessionStorage.removeItem(KEPT);
  if (words) say(words, options);
}
