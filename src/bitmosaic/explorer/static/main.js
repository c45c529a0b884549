// Shared by all pages: the header, keyboard shortcuts, and loading the module of the page, also after each edit.

import { get } from "./api.js";
import { el } from "./dom.js";
import { afterEdits, setEditState, undo } from "./edits.js";
import { bind, showHelp } from "./keys.js";
import { failure, showStoredMessage } from "./message.js";
import { expectImages } from "./thumbs.js";

const THEMES = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" };

const { page, module: pageModule } = document.body.dataset;
const main = document.getElementById("main");
let showing = new AbortController();

/** Show the page with current data. Requests and listeners of the previous call are aborted. */
async function show() {
  showing.abort();
  showing = new AbortController();
  const { signal } = showing;
  const run = get("/api/run", signal).then(fillHeader);
  run.catch(() => {}); // the page module handles the error; this avoids an unhandled rejection after an abort
  try {
    const module = await import(`./${pageModule}.js`);
    const content = await module.show({ page, run, signal });
    signal.throwIfAborted();
    main.style.minHeight = `${main.offsetHeight}px`; // keeps the scroll position until a gallery has its height
    main.replaceChildren(...banner(await run), ...content);
    afterLayout(() => (main.style.minHeight = ""));
  } catch (problem) {
    if (!signal.aborted) main.replaceChildren(failure(problem, show));
  }
}

/** Call `action` after galleries got their height in the next frame. */
function afterLayout(action) {
  requestAnimationFrame(() => requestAnimationFrame(action));
}

function fillHeader(run) {
  setEditState(run.edits);
  expectImages(run);
  document.getElementById("undo-what").textContent = run.edits.last ? `: ${run.edits.last}` : "";
  const button = document.getElementById("undo");
  button.disabled = !run.edits.last;
  button.title = run.edits.last ? `Undo: ${run.edits.last}` : "Nothing to undo";
  return run;
}

function banner(run) {
  if (run.images_found) return [];
  const words = "The images were not found, so their file names are shown instead. Start the explorer with --source to show them.";
  return [el("p.banner", { role: "note" }, words)];
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  const button = document.getElementById("theme");
  button.textContent = THEMES[theme];
  button.title = `Theme: ${theme}. Click to change.`;
}

function nextTheme() {
  const names = Object.keys(THEMES);
  const theme = names[(names.indexOf(document.documentElement.dataset.theme) + 1) % names.length];
  localStorage.setItem("theme", theme);
  setTheme(theme);
}

function wireHeader() {
  const nav = document.querySelector(`nav [data-for="${page}"]`);
  nav?.setAttribute("aria-current", "page");
  const menu = document.querySelector(".menu");
  document.addEventListener("click", (event) => menu.open && !menu.contains(event.target) && (menu.open = false));
  document.getElementById("undo").addEventListener("click", undo);
  document.getElementById("theme").addEventListener("click", nextTheme);
  document.getElementById("keys").addEventListener("click", showHelp);
  setTheme(document.documentElement.dataset.theme);
}

function bindKeys() {
  const go = (path) => () => void (location.href = path);
  bind(["?"], "Show this help", showHelp);
  bind(["u"], "Undo the last edit", () => void (document.getElementById("undo").disabled || undo()));
  bind(["g o"], "Go to the overview", go("/"));
  bind(["g m"], "Go to the map", go("/map"));
  bind(["g d"], "Go to the near-duplicates", go("/duplicates"));
  bind(["g l"], "Go to the outliers", go("/outliers"));
}

/** Restore the scroll position after going back: the browser cannot, since scripts build the page. */
function keepScrollPosition() {
  const key = `scroll ${location.pathname}`;
  addEventListener("pagehide", () => sessionStorage.setItem(key, scrollY));
  addEventListener("pageshow", (event) => event.persisted && show());
  const back = performance.getEntriesByType("navigation")[0]?.type === "back_forward";
  return () => back && afterLayout(() => scrollTo(0, Number(sessionStorage.getItem(key))));
}

wireHeader();
bindKeys();
afterEdits(show);
const restoreScrollPosition = keepScrollPosition();
await show();
restoreScrollPosition();
showStoredMessage({ action: { words: "Undo", run: undo } });
