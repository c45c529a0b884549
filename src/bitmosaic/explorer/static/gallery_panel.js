// A gallery with its heading and controls: tile size, selecting images, moving them to another cluster.

import { chooseCluster } from "./cluster_dialog.js";
import { el } from "./dom.js";
import { move } from "./edits.js";
import { Gallery } from "./gallery.js";
import { bind, mention } from "./keys.js";
import { count } from "./format.js";

const SIZES = [72, 112, 176]; // px, approximate: tiles fill the width

/** Options as for Gallery; `home`: the cluster of all images, not offered as target; `chosen`: selected at first. */
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
  bind(["Escape"], "Clear the selection", () => gallery.choose([]));
  mention(["Shift + click", "Ctrl + click"], "Select a range of images, or one more");
  bind(["j"], "Next image", () => gallery.step(1));
  bind(["k"], "Previous image", () => gallery.step(-1));
  mention(["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown"], "Move in a gallery; x selects the image");
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
    { type: "range", min: 0, max: SIZES.length - 1, step: 1, value: storedSize(), "aria-label": "Tile size" },
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
    { type: "button", "aria-pressed": false, title: "Select images by click or tap" },
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
    const to = await chooseCluster(`Move ${count(rows.length, "image")} to…`, home);
    if (to !== undefined) await move(rows, to);
  };
  const element = el(
    "div.selection",
    { testid: "selection", role: "region", "aria-label": "Selected images", hidden: true },
    words,
    el("button.primary", { type: "button", testid: "move", onclick: moveThem }, "Move to…"),
    el("button", { type: "button", onclick: clear }, "Clear"),
  );
  const show = (selected) => {
    rows = [...selected.keys()];
    words.textContent = `${count(rows.length, "image")} selected`;
    element.hidden = !rows.length;
  };
  return { element, show };
}
