// The overview: the facts of the run and a card for each cluster, to sort, search, choose and merge.

import { get } from "./api.js";
import { cardGrid } from "./cards.js";
import { matches } from "./choose.js";
import { el } from "./dom.js";
import { merge } from "./edits.js";
import { factsOf } from "./facts.js";
import { bind } from "./keys.js";
import { say } from "./message.js";
import { linkedThumb } from "./thumbs.js";
import { clusterTitle, count, fileName, whole } from "./words.js";

const ORDERS = {
  size: ["Largest first", (a, b) => b.size - a.size],
  tightness: ["Tightest first", (a, b) => a.tightness - b.tightness],
  purity: ["Purest first", (a, b) => (b.purity ?? 0) - (a.purity ?? 0)],
  name: ["By name", (a, b) => clusterTitle(a).localeCompare(clusterTitle(b), "en", { numeric: true })],
  number: ["By number", (a, b) => a.number - b.number],
};
const typed = { text: "", order: "size" }; // outlives an edit, after which the page is built anew

export async function show({ run, signal }) {
  const [facts, { clusters }] = await Promise.all([run, get("/api/clusters", signal)]);
  const found = el("section.found", { hidden: true, "aria-label": "Pictures found" });
  const nothing = el("p.muted.nothing", { hidden: true }, "No cluster is called so.");
  const cards = cardGrid((chosen) => bar.show(chosen));
  const bar = mergeBar(cards.clear);
  const arrange = () => {
    const shown = clusters.filter((cluster) => matches(cluster, typed.text)).sort(ORDERS[typed.order][1]);
    cards.show(shown);
    nothing.hidden = shown.length > 0;
  };
  const search = debounced(() => searchPictures(found, clusters, signal), 200);
  arrange();
  if (typed.text) search();
  bindKeys(cards.element, bar.merge);
  return [
    factsOf(facts),
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
  sort.value = typed.order;
  sort.addEventListener("change", () => ((typed.order = sort.value), arrange()));
  const input = el(
    "input",
    {
      type: "search",
      testid: "search",
      value: typed.text,
      placeholder: "Search clusters, labels, file names",
      "aria-label": "Search",
    },
  );
  input.addEventListener("input", () => ((typed.text = input.value), search()));
  input.addEventListener("keydown", (event) => event.key === "Escape" && input.blur());
  return el("div.toolbar", {}, el("h1", {}, "Clusters"), el("p.muted", {}, note), el("div.spring"), input, sort);
}

async function searchPictures(found, clusters, signal) {
  const text = typed.text.trim();
  found.hidden = !text;
  if (!text) return;
  try {
    const { pictures } = await get(`/api/search?q=${encodeURIComponent(text)}`, signal);
    if (text === typed.text.trim()) found.replaceChildren(...foundPictures(pictures, clusters));
  } catch (problem) {
    if (problem.name !== "AbortError") say(problem.message, { error: true });
  }
}

function foundPictures({ rows, paths, clusters: numbers, total, more }, clusters) {
  const byNumber = new Map(clusters.map((cluster) => [cluster.number, cluster]));
  const many = more ? `More than ${count(rows.length, "file name")}` : count(total, "file name");
  const heading = `${many} with “${typed.text.trim()}”`;
  const shots = rows.map((row, i) => {
    const cluster = byNumber.get(numbers[i]);
    const shot = linkedThumb({ row, path: paths[i], cluster });
    return el("figure", {}, shot, el("figcaption", { title: paths[i] }, fileName(paths[i])));
  });
  const rest = more && el("p.muted", {}, `The first ${whole(rows.length)} are shown.`);
  return [el("h2", {}, heading), el("div.strip", {}, shots), rest].filter(Boolean);
}

function mergeBar(clear) {
  let clusters = [];
  const into = el("select", { "aria-label": "Merge into" });
  const button = el("button.primary", { type: "button", testid: "merge" });
  const element = el(
    "div.selection",
    { testid: "selection", role: "region", "aria-label": "Chosen clusters", hidden: true },
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
  bind(["k", "ArrowLeft"], "Cluster before", step(0, -1));
  bind(["ArrowDown"], "Cluster below", step(1, 0));
  bind(["ArrowUp"], "Cluster above", step(-1, 0));
  bind(
    ["Enter"],
    "Open the cluster",
    () => (focused() && !document.activeElement.matches("a") ? focused().querySelector("a").click() : false),
  );
  bind(["x"], "Choose the cluster", () => focused()?.querySelector("input").click() ?? false);
  bind(["m"], "Merge the chosen clusters", mergeChosen);
}

function debounced(action, pause) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, pause);
  };
}
