// The overview page: a summary of the run, and a card per cluster to sort, search, select and merge.

import { get } from "./api.js";
import { cardGrid } from "./cards.js";
import { matches } from "./cluster_dialog.js";
import { el } from "./dom.js";
import { merge } from "./edits.js";
import { runSummary } from "./summary.js";
import { bind } from "./keys.js";
import { showMessage } from "./message.js";
import { linkedThumb } from "./thumbs.js";
import { clusterTitle, count, fileName, whole } from "./format.js";

const ORDERS = {
  size: ["Largest first", (a, b) => b.size - a.size],
  tightness: ["Tightest first", (a, b) => a.tightness - b.tightness],
  purity: ["Purest first", (a, b) => (b.purity ?? 0) - (a.purity ?? 0)],
  name: ["By name", (a, b) => clusterTitle(a).localeCompare(clusterTitle(b), "en", { numeric: true })],
  number: ["By number", (a, b) => a.number - b.number],
};
const settings = { text: "", order: "size" }; // kept when the page is built again after an edit

export async function show({ run, signal }) {
  const [facts, { clusters }] = await Promise.all([run, get("/api/clusters", signal)]);
  const found = el("section.found", { hidden: true, "aria-label": "Images found" });
  const nothing = el("p.muted.nothing", { hidden: true }, "No matching clusters.");
  const cards = cardGrid((chosen) => bar.show(chosen));
  const bar = mergeBar(cards.clear);
  const arrange = () => {
    const shown = clusters.filter((cluster) => matches(cluster, settings.text)).sort(ORDERS[settings.order][1]);
    cards.show(shown);
    nothing.hidden = shown.length > 0;
  };
  const search = debounced(() => searchImages(found, clusters, signal), 200);
  arrange();
  if (settings.text) search();
  bindKeys(cards.element, bar.merge);
  return [
    runSummary(facts),
    toolbar(facts.has_labels, count(clusters.length, "cluster"), { arrange, search: () => (arrange(), search()) }),
    found,
    nothing,
    cards.element,
    bar.element,
  ];
}

function toolbar(hasLabels, note, { arrange, search }) {
  const options = Object.entries(ORDERS)
    .filter(([key]) => hasLabels || key !== "purity")
    .map(([key, [words]]) => el("option", { value: key }, words));
  const sort = el("select", { testid: "sort", "aria-label": "Order of the clusters" }, options);
  sort.value = settings.order;
  sort.addEventListener("change", () => ((settings.order = sort.value), arrange()));
  const input = el(
    "input",
    {
      type: "search",
      testid: "search",
      value: settings.text,
      placeholder: "Search clusters, labels, file names",
      "aria-label": "Search",
    },
  );
  input.addEventListener("input", () => ((settings.text = input.value), search()));
  input.addEventListener("keydown", (event) => event.key === "Escape" && input.blur());
  return el("div.toolbar", {}, el("h1", {}, "Clusters"), el("p.muted", {}, note), el("div.spring"), input, sort);
}

async function searchImages(found, clusters, signal) {
  const text = settings.text.trim();
  found.hidden = !text;
  if (!text) return;
  try {
    const { images } = await get(`/api/search?q=${encodeURIComponent(text)}`, signal);
    if (text === settings.text.trim()) found.replaceChildren(...foundImages(images, clusters));
  } catch (problem) {
    if (problem.name !== "AbortError") showMessage(problem.message, { error: true });
  }
}

function foundImages({ rows, paths, clusters: numbers, total, more }, clusters) {
  const byNumber = new Map(clusters.map((cluster) => [cluster.number, cluster]));
  const many = more ? `More than ${count(rows.length, "file name")}` : count(total, "file name");
  const heading = `${many} containing “${settings.text.trim()}”`;
  const shots = rows.map((row, i) => {
    const cluster = byNumber.get(numbers[i]);
    const shot = linkedThumb({ row, path: paths[i], cluster });
    return el("figure", {}, shot, el("figcaption", { title: paths[i] }, fileName(paths[i])));
  });
  const rest = more && el("p.muted", {}, `Showing the first ${whole(rows.length)}.`);
  return [el("h2", {}, heading), el("div.strip", {}, shots), rest].filter(Boolean);
}

function mergeBar(clear) {
  let clusters = [];
  const into = el("select", { "aria-label": "Merge into" });
  const button = el("button.primary", { type: "button", testid: "merge" });
  const element = el(
    "div.selection",
    { testid: "selection", role: "region", "aria-label": "Selected clusters", hidden: true },
    button,
    el("label", {}, "into ", into),
    el("button", { type: "button", onclick: clear }, "Clear"),
  );
  const doMerge = () => merge(clusters.map(({ number }) => number), Number(into.value));
  const show = (now) => {
    clusters = [...now].sort((a, b) => b.size - a.size);
    const [many, unit] = count(clusters.length, "cluster").split(" ");
    button.replaceChildren(`Merge ${many}`, el("span.unit", {}, unit));
    button.disabled = clusters.length < 2;
    into.replaceChildren(...clusters.map((cluster) => el("option", { value: cluster.number }, clusterTitle(cluster))));
    element.hidden = !clusters.length;
  };
  button.addEventListener("click", doMerge);
  return { element, show, merge: () => void (clusters.length > 1 && doMerge()) };
}

function bindKeys(grid, mergeChosen) {
  const focused = () => document.activeElement?.closest(".card");
  const step = (lines, cards) => () => {
    const shown = [...grid.children];
    const columns = getComputedStyle(grid).gridTemplateColumns.split(" ").length;
    const at = shown.indexOf(focused());
    const to = at < 0 ? 0 : at + lines * columns + cards;
    shown[to]?.querySelector("h3 a").focus();
    shown[to]?.scrollIntoView({ block: "nearest" });
  };
  bind(["/"], "Search", () => document.querySelector("[data-testid=search]").focus());
  bind(["j", "ArrowRight"], "Next cluster", step(0, 1));
  bind(["k", "ArrowLeft"], "Previous cluster", step(0, -1));
  bind(["ArrowDown"], "Cluster below", step(1, 0));
  bind(["ArrowUp"], "Cluster above", step(-1, 0));
  bind(
    ["Enter"],
    "Open the cluster",
    () => (focused() && !document.activeElement.matches("a") ? focused().querySelector("a").click() : false),
  );
  bind(["x"], "Select the cluster", () => focused()?.querySelector("input").click() ?? false);
  bind(["m"], "Merge the selected clusters", mergeChosen);
}

function debounced(action, pause) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, pause);
  };
}
