// Small charts: bars, the histogram of distances, the barcode of a code.

import { el, svg } from "./dom.js";
import { bits, count, tidy } from "./format.js";

/** A chart with its heading. */
export const panel = (title, content) => el("section.panel", {}, el("h2", {}, title), content);

/** A list of bars: [{label, share (0…1), text, href?, note?, rank?: main or less}]; `lines`: one line per bar. */
export function bars(items, { lines = false } = {}) {
  return el(lines ? "ul.bars.lines" : "ul.bars", {}, items.map(bar));
}

function bar({ label, share, text, href, note, rank }) {
  const name = href ? el("a", { href }, label) : el("span", {}, label);
  name.title = label;
  return el(
    rank ? `li.${rank}` : "li",
    {},
    el("span.bar-name", {}, name),
    el("span.bar-text", {}, text),
    el("span.bar-track", { "aria-hidden": true }, el("span", { style: { width: `${Math.max(0.5, 100 * share)}%` } })),
    note && el("small.muted.clamped", { title: note }, note),
  );
}

/** Distances of the images from the center. Redrawn when the width changes, so that the text keeps its size. */
export function histogram(distances) {
  const box = el("div.histogram", { testid: "histogram" });
  const draw = () => box.clientWidth && box.replaceChildren(drawHistogram(distances, box.clientWidth));
  new ResizeObserver(draw).observe(box);
  return box;
}

function drawHistogram({ edges, counts }, width) {
  const [height, left, bottom, top] = [200, 40, 36, 8];
  const most = Math.max(1, ...counts);
  const [low, high] = [edges[0], edges.at(-1)];
  const x = (value) => left + ((width - left - 8) * (value - low)) / (high - low || 1);
  const y = (value) => height - bottom - ((height - bottom - top) * value) / most;
  const columns = counts.map((n, i) =>
    svg(
      "rect",
      {
        class: "column",
        x: x(edges[i]) + 0.5,
        y: y(n),
        width: Math.max(0.5, x(edges[i + 1]) - x(edges[i]) - 1),
        height: y(0) - y(n),
      },
      svg("title", {}, `${tidy(edges[i])} to ${bits(edges[i + 1])}: ${count(n, "image")}`),
    ),
  );
  const across = ticks(low, high, 6).map((value) =>
    svg("text", { x: x(value), y: height - bottom + 15, "text-anchor": "middle" }, tidy(value)),
  );
  const upward = ticks(0, most, 4).flatMap((value) => [
    svg("line", { class: "rule", x1: left, x2: width - 8, y1: y(value), y2: y(value) }),
    svg("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, short(value)),
  ]);
  const caption = svg("text", { x: (left + width) / 2, y: height - 3, "text-anchor": "middle" }, "distance from center (bits)");
  const label = `Distances from ${bits(low)} to ${bits(high)}; at most ${count(most, "image")} in a column.`;
  return svg("svg", { width, height, role: "img", "aria-label": label }, ...upward, ...columns, ...across, caption);
}

/** About `wanted` round numbers from `low` to `high`. */
function ticks(low, high, wanted) {
  const rough = (high - low) / wanted || 1;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = Math.max(1, [1, 2, 5, 10].map((factor) => factor * power).find((candidate) => candidate >= rough));
  const first = Math.ceil(low / step);
  return Array.from({ length: Math.floor(high / step) - first + 1 }, (_, i) => (first + i) * step);
}

const short = (number) => (number < 1000 ? String(number) : `${tidy(number / 1000)}k`);

/** A hexadecimal code as lines, one per 1 bit. The first bit is the highest of the first byte. */
export function barcode(hex, nBits) {
  const bitsOf = (digit) => [8, 4, 2, 1].map((place) => (parseInt(digit, 16) & place ? 1 : 0));
  const values = [...hex].flatMap(bitsOf).slice(0, nBits);
  const ones = values.filter(Boolean).length;
  const lines = values.flatMap((value, bit) => (value ? [svg("rect", { x: bit, y: 0, width: 1, height: 10 })] : []));
  const cursor = svg("rect", { class: "cursor", x: 0, y: 0, width: 1, height: 10, visibility: "hidden" });
  const words = `Code of ${nBits} bits, ${ones} of them 1`;
  const drawing = svg(
    "svg",
    {
      viewBox: `0 0 ${nBits} 10`,
      preserveAspectRatio: "none",
      role: "img",
      "aria-label": `${words}: ${hex}`,
      "data-testid": "barcode",
    },
    ...lines,
    cursor,
  );
  const readout = el("span", {}, words);
  drawing.addEventListener("pointermove", (event) => {
    const { left, width } = drawing.getBoundingClientRect();
    const bit = Math.min(nBits - 1, Math.max(0, Math.floor((nBits * (event.clientX - left)) / width)));
    cursor.setAttribute("x", bit);
    cursor.setAttribute("visibility", "visible");
    readout.textContent = `Bit ${bit + 1} is ${values[bit]}`;
  });
  drawing.addEventListener("pointerleave", () => {
    cursor.setAttribute("visibility", "hidden");
    readout.textContent = words;
  });
  return el("figure.barcode", {}, drawing, el("figcaption.muted", {}, readout, el("code", {}, hex)));
}
