// Every page: the header, its keys, and the page's own module, shown at the start and again after each edit.

import { get } from "./api.js";
import { el } from "./dom.js";
import { afterEdits, follow, undo } from "./edits.js";
import { bind, showHelp } from "./keys.js";
import { failure, sayWhatWasKept } from "./message.js";
import { expectPictures } from "./thumbs.js";

const LOOKS = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" };

const { page, module: pageModule } = document.body.dataset;
const main = document.getElementById("main");
let showing = new AbortController();

/** Show the page with fresh data; what an earlier showing still listens to or waits for is given up. */
async function show() {
  showing.abort();
  showing = new AbortController();
  const { signal } = showing;
  const run = get("/api/run", signal).then(fillHeader);
  run.catch(() => {}); // whoever awaits it is told; a page that is left before that has nobody
  try {
    const module = await import(`./${pageModule}.js`);
    const content = await module.show({ page, run, signal });
    signal.throwIfAborted();
    main.style.minHeight = `${main.offsetHeight}px`; // keeps the place scrolled to until a gallery has its height
    main.replaceChildren(...banner(await run), ...content);
    afterLayout(() => (main.style.minHeight = ""));
  } catch (problem) {
    if (!signal.aborted) main.replaceChildren(failure(problem, show));
  }
}

/** Galleries get their height in the next frame. */
function afterLayout(action) {
  requestAnimationFrame(() => requestAnimationFrame(action));
}

function fillHeader(run) {
  follow(run.edits);
  expectPictures(run);
  document.getElementById("undo-what").textContent = run.edits.last ? `: ${run.edits.last}` : "";
  const button = document.getElementById("undo");
  button.disabled = !run.edits.last;
  button.title = run.edits.last ? `Undo: ${run.edits.last}` : "Nothing to undo";
  return run;
}

function banner(run) {
  if (run.pictures) return [];
  const words = "The pictures themselves are not there, so their names stand in for them. Everything else works.";
  return [el("p.banner", { role: "note" }, words)];
}

function setLook(look) {
  document.documentElement.dataset.look = look;
  const button = document.getElementById("look");
  button.textContent = LOOKS[look];
  button.title = `Look: ${look}. Click for the next.`;
}

function nextLook() {
  const names = Object.keys(LOOKS);
  const look = names[(names.indexOf(document.documentElement.dataset.look) + 1) % names.length];
  localStorage.setItem("look", look);
  setLook(look);
}

function wireHeader() {
  const nav = document.querySelector(`nav [data-for="${page}"]`);
  nav?.setAttribute("aria-current", "page");
  const menu = document.querySelector(".menu");
  document.addEventListener("click", (event) => menu.open && !menu.contains(event.target) && (menu.open = false));
  document.getElementById("undo").addEventListener("click", undo);
  document.getElementById("look").addEventListener("click", nextLook);
  document.getElementById("keys").addEventListener("click", showHelp);
  setLook(document.documentElement.dataset.look);
}

function bindKeys() {
  const go = (path) => () => void (location.href = path);
  bind(["?"], "This help", showHelp);
  bind(["u"], "Undo the last edit", () => void (document.getElementById("undo").disabled || undo()));
  bind(["g o"], "Go to the overview", go("/"));
  bind(["g m"], "Go to the map", go("/map"));
  bind(["g d"], "Go to the near-duplicates", go("/duplicates"));
  bind(["g l"], "Go to the outliers", go("/outliers"));
}

/** A page that is built by scripts has to find its own way back to where it was scrolled. */
function keepPlace() {
  const place = `scroll ${location.pathname}`;
  addEventListener("pagehide", () => sessionStorage.setItem(place, scrollY));
  addEventListener("pageshow", (event) => event.persisted && show());
  const back = performance.getEntriesByType("navigation")[0]?.type === "back_forward";
  return () => back && afterLayout(() => scrollTo(0, Number(sessionStorage.getItem(place))));
}

wireHeader();
bindKeys();
afterEdits(show);
const returnToPlace = keepPlace();
await show();
returnToPlace();
sayWhatWasKept({ action: { words: "Undo", run: undo } });
