// Messages: a line at the bottom of the screen, or an error in place of the page.

import { el } from "./dom.js";

const KEY = "message-for-next-page";
let line = null;
let timer = 0;

/** Show a message. Errors stay until closed. `action` is {words, run}: a button beside the message. */
export function showMessage(words, { error = false, action = null } = {}) {
  closeMessage();
  line = el(
    "div.message",
    { testid: "message", role: error ? "alert" : "status" },
    el("span", {}, words),
    action && el("button", { type: "button", onclick: () => (closeMessage(), action.run()) }, action.words),
    el("button.close", { type: "button", "aria-label": "Close this message", onclick: closeMessage }, "×"),
  );
  line.classList.toggle("error", error);
  document.body.append(line);
  if (!error) timer = setTimeout(closeMessage, 10_000);
}

function closeMessage() {
  clearTimeout(timer);
  line?.remove();
  line = null;
}

/** The content of a page that cannot be shown: the error and what to do next. */
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
      el("a.button", { href: "/" }, "Go to the overview"),
    ),
  );
}

/** Store a message for the next page, if an edit leaves this one. */
export const storeMessage = (words) => sessionStorage.setItem(KEY, words);

export function showStoredMessage(options) {
  const words = sessionStorage.getItem(KEY);
  sessionStorage.removeItem(KEY);
  if (words) showMessage(words, options);
}
