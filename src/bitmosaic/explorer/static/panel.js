// A gallery with what belongs to it: a heading, the size of its tiles, choosing pictures and moving them.

import { chooseCluster } from "./choose.js";
import { el } from "./dom.js";
import { move } from "./edits.js";
import { Gallery } from "./gallery.js";
import { bind, mention } from "./keys.js";
import { count } from "./words.js";

const SIZES = [72, 112, 176]; // px, about: tiles fill the width

/** As for Gallery; `home`: the cluster that all are in, where they cannot be moved; `chosen`: from the start. */
export function galleryPanel({ title, note, list, sections, badge, home = null, chosen = [], signal }) {
  const bar = selectionBar(home, () => gallery.choose([]));
  const gallery = new Gallery({
    list,
    sections,
    badge,
    signal,
    size: SIZES[storedSize()],
    onselect: (selected) => bar.show(selected),
  });
  gallery.choose(chosen);
  bind(["Escape"], "Give up the choice", () => gallery.choose([]));
  mention(["Shift + click", "Ctrl + click"], "Choose pictures: a range, or one more");
  bind(["j"], "Next picture", () => gallery.step(1));
  bind(["k"], "Picture before", () => gallery.step(-1));
  mention(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"], "In a gallery: to the next picture; x chooses it");
  return el(
    "section.gallery-panel",
    { "aria-label": title },
    el(
      "div.bar-head",
      {},
      el("h2", {}, title),
      el("p.muted", {}, note),
      el("div.spring"),
      sizeSlider(gallery),
      selectButton(gallery),
    ),
    gallery.element,
    bar.element,
  );
}

function sizeSlider(gallery) {
  const input = el(
    "input",
    { type: "range", min: 0, max: SIZES.length - 1, step: 1, value: storedSize(), "aria-label": "Size of the tiles" },
  );
  input.addEventListener("input", () => {
    localStorage.setItem("tile size", input.value);
    gallery.resize(SIZES[input.value]);
  });
  return el("label.tile-size", {}, el("span", {}, "S"), input, el("span", {}, "L"));
}

function storedSize() {
  const stored = Number(localStorage.getItem("tile size") ?? 1);
  return stored in SIZES ? stored : 1;
}

function selectButton(gallery) {
  const button = el(
    "button",
    { type: "button", "aria-pressed": false, title: "Then a click or a tap chooses a picture" },
    "Select",
  );
  button.addEventListener("click", () => {
    gallery.selecting = !gallery.selecting;
    gallery.element.classList.toggle("selecting", gallery.selecting);
    button.setAttribute("aria-pressed", gallery.selecting);
  });
  return button;
}

function selectionBar(home, clear) {
  let rows = [];
  const words = el("strong");
  const moveThem = async () => {
    const to = await chooseCluster(`Move ${count(rows.length, "picture")} to…`, home);
    if (to !== undefined) await move(rows, to);
  };
  const element = el(
    "div.selection",
    { testid: "selection", role: "region", "aria-label": "Chosen pictures", hidden: true },
    words,
    el("button.primary", { type: "button", testid: "move", onclick: moveThem }, "Move to…"),
    el("button", { type: "button", onclick: clear }, "Clear"),
  );
  const show = (selected) => {
    rows = [...selected.keys()];
    words.textContent = `${count(rows.length, "picture")} chosen`;
    element.hidden = !rows.length;
  };
  return { element, show };
}
