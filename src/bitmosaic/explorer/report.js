// The only script of a report: sorting, searching, the theme and the interactive map. All content is visible without it.

"use strict";

const THEMES = { auto: "◐ Auto", light: "○ Light", dark: "● Dark" };
const ORDERS = {
  size: (a, b) => b.size - a.size,
  tightness: (a, b) => a.tightness - b.tightness,
  purity: (a, b) => b.purity - a.purity,
  name: (a, b) => a.title.localeCompare(b.title, "en", { numeric: true }),
  number: (a, b) => a.number - b.number,
};
const [MARGIN, WHOLE] = [1500, 68535]; // around coordinates from 0 to 65535
const root = document.documentElement;

// ---- the theme

function stored(value) {
  try { // a local file may have no storage
    if (value) localStorage.setItem("theme", value);
    return localStorage.getItem("theme");
  } catch {
    return null;
  }
}

function setTheme(theme) {
  root.dataset.theme = theme in THEMES ? theme : "auto";
  const button = document.getElementById("theme");
  if (button) button.textContent = THEMES[root.dataset.theme];
}

function nextTheme() {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(root.dataset.theme) + 1) % names.length]);
  stored(root.dataset.theme);
}

// ---- sorting and searching

function wireClusters() {
  const grid = document.getElementById("cards");
  const clusters = [...grid.children].map((card) => {
    const { number, size, tightness, purity } = card.dataset;
    const section = document.getElementById(`cluster-${number}`);
    return { card, section, number: +number, size: +size, tightness: +tightness, purity: +purity, title: card.querySelector("h3 a").textContent };
  });
  const sections = document.getElementById("sections");
  document.getElementById("sort").addEventListener("change", ({ target }) => {
    clusters.sort(ORDERS[target.value]);
    grid.append(...clusters.map(({ card }) => card));
    sections.append(...clusters.map(({ section }) => section));
  });
  const search = document.getElementById("search");
  search.addEventListener("input", () => {
    const text = search.value.trim().toLowerCase();
    let shown = 0;
    for (const cluster of clusters) {
      cluster.words ??= wordsOf(cluster);
      const found = String(cluster.number) === text || cluster.words.includes(text);
      cluster.card.hidden = cluster.section.hidden = !found;
      shown += found;
    }
    document.getElementById("found").textContent = text ? `${shown} of ${clusters.length} clusters` : "";
  });
}

/** The text to search: name, most frequent label and image paths, which are the first lines of the tooltips. */
function wordsOf({ card, section, title }) {
  const paths = [...section.querySelectorAll(".tiles [title]")].map((node) => node.title.split("\n")[0]);
  return [title, card.querySelector(".label")?.textContent ?? "", ...paths].join("\n").toLowerCase();
}

// ---- the map

function numbers(text, n) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new (bytes.length === 2 * n ? Uint16Array : Uint32Array)(bytes.buffer);
}

function wireMap(data) {
  const n = data.points;
  const x = numbers(data.x, n);
  const y = numbers(data.y, n);
  const color = (k) => data.colors[Math.min(k, data.colors.length - 1)];
  const clusters = data.clusters.map((number, k) => ({ number, title: data.names[number] ?? `Cluster ${number}`, color: color(k) }));
  const sides = { cluster: { of: numbers(data.cluster_of, n), groups: clusters } };
  if (data.labels) sides.label = { of: numbers(data.label_of, n), groups: data.labels.map((title, k) => ({ title, color: color(k) })) };
  const plot = document.getElementById("plot");
  const canvas = document.createElement("canvas");
  const context = canvas.getContext("2d");
  const tip = document.getElementById("tip");
  const view = { scale: 1, left: 0, top: 0 };
  let by = "cluster";
  let [width, height, side] = [1, 1, 1]; // px: the box, and the centered square of the map at scale 1
  const place = (i) => [
    (((x[i] + MARGIN) / WHOLE - 0.5) * side + width / 2) * view.scale + view.left,
    ((0.5 - (y[i] + MARGIN) / WHOLE) * side + height / 2) * view.scale + view.top,
  ];

  function draw() {
    const dense = window.devicePixelRatio || 1;
    [width, height] = [plot.clientWidth, plot.clientHeight];
    side = Math.min(width, height);
    [canvas.width, canvas.height] = [Math.round(width * dense), Math.round(height * dense)];
    context.setTransform(dense, 0, 0, dense, 0, 0);
    context.globalAlpha = 0.75;
    const { of, groups } = sides[by];
    const size = (n > 20000 ? 2 : n > 4000 ? 3 : 5) * Math.min(3, Math.sqrt(view.scale));
    for (let i = 0; i < n; i++) {
      const [left, top] = place(i);
      if (left < 0 || top < 0 || left > width || top > height) continue;
      context.fillStyle = groups[of[i]].color;
      context.fillRect(left - size / 2, top - size / 2, size, size);
    }
    canvas.style.touchAction = view.scale > 1 ? "none" : "pan-x pan-y";
  }

  let waiting = 0;
  const soon = () => (waiting ||= requestAnimationFrame(() => ((waiting = 0), draw())));

  function zoom(factor, left = width / 2, top = height / 2) {
    const scale = Math.min(60, Math.max(1, view.scale * factor));
    view.left = left - ((left - view.left) * scale) / view.scale;
    view.top = top - ((top - view.top) * scale) / view.scale;
    view.scale = scale;
    move(0, 0);
  }

  function move(right, down) {
    view.left = Math.min(0, Math.max(width * (1 - view.scale), view.left + right));
    view.top = Math.min(0, Math.max(height * (1 - view.scale), view.top + down));
    soon();
  }

  function nearest(left, top) {
    let best = -1;
    let least = 14 ** 2; // px
    for (let i = 0; i < n; i++) {
      const [a, b] = place(i);
      const distance = (a - left) ** 2 + (b - top) ** 2;
      if (distance < least) [best, least] = [i, distance];
    }
    return best;
  }

  function hover(left, top) {
    const i = nearest(left, top);
    tip.hidden = i < 0;
    canvas.style.cursor = i < 0 ? "" : "pointer";
    if (i < 0) return;
    const lines = [sides.cluster.groups[sides.cluster.of[i]].title];
    if (sides.label) lines.push(sides.label.groups[sides.label.of[i]].title);
    tip.replaceChildren(...lines.map((line, k) => Object.assign(document.createElement(k ? "span" : "strong"), { className: "clamped", textContent: line, dir: "auto" })));
    const beside = left + 16 + tip.offsetWidth > width ? left - 16 - tip.offsetWidth : left + 16;
    tip.style.transform = `translate(${Math.max(0, beside)}px, ${Math.max(0, Math.min(top, height - tip.offsetHeight))}px)`;
  }

  const fingers = new Map();
  let travelled = 0;
  let armed = false; // the wheel zooms only after the mouse moved on the map, so that scrolling the page does not stop here
  const at = (event) => [event.offsetX, event.offsetY];
  canvas.addEventListener("pointerdown", (event) => {
    fingers.set(event.pointerId, at(event));
    travelled = 0;
  });
  canvas.addEventListener("pointermove", (event) => {
    if (event.movementX || event.movementY) armed = true;
    const last = fingers.get(event.pointerId);
    const now = at(event);
    if (!last) return hover(...now);
    const other = [...fingers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) zoom(Math.hypot(now[0] - other[0], now[1] - other[1]) / Math.max(1, Math.hypot(last[0] - other[0], last[1] - other[1])), ...other);
    else move(now[0] - last[0], now[1] - last[1]);
    travelled += Math.hypot(now[0] - last[0], now[1] - last[1]);
    fingers.set(event.pointerId, now);
    tip.hidden = true;
  });
  for (const end of ["pointerup", "pointercancel", "pointerleave"]) canvas.addEventListener(end, (event) => fingers.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => ((tip.hidden = true), (armed = false)));
  addEventListener("scroll", () => (armed = false), { passive: true });
  canvas.addEventListener("wheel", (event) => {
    const factor = Math.exp(-Math.max(-80, Math.min(80, event.deltaY)) / 200);
    if (!(armed || event.ctrlKey) || (factor < 1 && view.scale === 1)) return;
    event.preventDefault();
    zoom(factor, ...at(event));
  });
  canvas.addEventListener("click", (event) => {
    const i = travelled < 6 ? nearest(...at(event)) : -1;
    const number = i < 0 ? null : sides.cluster.groups[sides.cluster.of[i]].number;
    if (number !== null && document.getElementById(`cluster-${number}`)) location.hash = `cluster-${number}`;
  });
  const steps = { nearer: () => zoom(1.6), farther: () => zoom(1 / 1.6), whole: () => zoom(0) };
  for (const [id, step] of Object.entries(steps)) document.getElementById(id).addEventListener("click", step);
  document.getElementById("color")?.addEventListener("change", ({ target }) => {
    by = target.value;
    for (const legend of document.querySelectorAll("[data-legend]")) legend.hidden = legend.dataset.legend !== by;
    soon();
  });
  new ResizeObserver(() => move(0, 0)).observe(plot);
  plot.append(canvas);
  plot.classList.add("drawn");
  draw();
}

// ---- start

setTheme(stored() ?? "auto");
document.addEventListener("DOMContentLoaded", () => {
  for (const control of document.querySelectorAll(".scripted")) control.hidden = false;
  setTheme(root.dataset.theme);
  document.getElementById("theme").addEventListener("click", nextTheme);
  wireClusters();
  const data = document.getElementById("map-data");
  if (data) wireMap(JSON.parse(data.textContent));
});
