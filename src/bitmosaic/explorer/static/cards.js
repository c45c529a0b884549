// Clusters as cards: a mosaic of central images, name, size and purity. Cards are created while scrolling.

import { el, whenNear } from "./dom.js";
import { thumb } from "./thumbs.js";
import { bits, clusterTitle, count, percent } from "./format.js";

const IMAGES = 8;
const BATCH = 60;

/** `onchoose` gets the selected clusters whenever they change. */
export function cardGrid(onchoose) {
  const element = el("section.cards", { "aria-label": "Clusters" });
  const made = new Map(); // number -> card
  const chosen = new Map(); // number -> cluster
  let clusters = [];

  const choose = (cluster, isChosen) => {
    if (isChosen) chosen.set(cluster.number, cluster);
    else chosen.delete(cluster.number);
    onchoose([...chosen.values()]);
  };
  const cardOf = (cluster) => {
    if (!made.has(cluster.number)) made.set(cluster.number, card(cluster, choose));
    return made.get(cluster.number);
  };
  const more = () => {
    const start = element.children.length;
    element.append(...clusters.slice(start, start + BATCH).map(cardOf));
    if (element.children.length < clusters.length) whenNear(element.lastElementChild, more);
  };
  return {
    element,
    show(list) {
      clusters = list;
      element.replaceChildren();
      more();
    },
    clear() {
      for (const number of [...chosen.keys()]) made.get(number).querySelector("input").click();
    },
  };
}

function majority({ label, purity }) {
  return el(
    "p.majority",
    { title: `Most frequent label: ${label}` },
    el("span.label", {}, label),
    el("span.purity", { "aria-hidden": true }, el("span", { style: { width: `${100 * purity}%` } })),
    el("span", {}, percent(purity)),
  );
}

function card(cluster, choose) {
  const title = clusterTitle(cluster);
  const box = el("input", { type: "checkbox", "aria-label": `Select ${title}` });
  const element = el(
    "article.card",
    { testid: "card", data: { cluster: cluster.number } },
    el("div.mosaic", {}, cluster.central.slice(0, IMAGES).map((row) => thumb({ row, cluster }, { lazy: true }))),
    el("label.pick", { title: "Select (x)" }, box),
    el(
      "div.card-text",
      {},
      el(
        "h3",
        {},
        el("a", { href: `/cluster/${cluster.number}`, title }, title),
        cluster.name && el("small", {}, `#${cluster.number}`),
      ),
      el("p.size", {}, count(cluster.size, "image")),
      el("p.tightness", {}, `${bits(cluster.tightness)} from center`),
      cluster.label !== null && majority(cluster),
    ),
  );
  box.addEventListener("change", () => {
    element.classList.toggle("chosen", box.checked);
    choose(cluster, box.checked);
  });
  return element;
}
