// A cluster: its name and numbers, the clusters nearest to it, and all its pictures from the center outwards.

import { get } from "./api.js";
import { bars, histogram, panel } from "./charts.js";
import { el } from "./dom.js";
import { merge, rename } from "./edits.js";
import { bind } from "./keys.js";
import { Pages } from "./pages.js";
import { galleryPanel } from "./panel.js";
import { thumb } from "./thumbs.js";
import { bits, clusterTitle, count, percent, tidy } from "./words.js";

const PAGE = 300;
const LONGEST_NAME = 120;
const PICTURES_FIRST = 400; // ms before the views are asked, which keeps the server busy

export async function show({ run, signal }) {
  const number = Number(location.pathname.split("/").pop());
  const [cluster, { name }] = await Promise.all([get(`/api/cluster/${number}`, signal), run]);
  document.title = `${clusterTitle(cluster)} · ${name}`;
  return [
    el("div.page-head", {}, heading(cluster), el("p.muted", {}, numbers(cluster))),
    el(
      "div.cluster-page",
      {},
      el("div.charts", {}, ...charts(cluster, signal)),
      cluster.nearest.length > 0 && el(
        "aside.nearest",
        { testid: "nearest", "aria-label": "Nearest clusters" },
        el("h2", {}, "Nearest clusters"),
        el("div.nearest-list", {}, cluster.nearest.map((other) => nearby(cluster, other))),
      ),
      pictures(cluster, signal),
    ),
  ];
}

function numbers(cluster) {
  const label = cluster.label !== null ? `mostly ${cluster.label} (${percent(cluster.purity)})` : null;
  const number = cluster.name ? `cluster ${cluster.number}` : null;
  return [
    number,
    count(cluster.size, "picture"),
    label,
    `${bits(cluster.tightness)} off center on average`,
    cluster.edited && "edited",
  ].filter(Boolean).join(" · ");
}

// ---- its name

let editName = () => {}; // opens the form of the page as it is shown now, which a failed edit may have built anew

function heading(cluster) {
  const title = clusterTitle(cluster);
  const box = el("div.heading");
  const button = el(
    "button.quiet",
    { type: "button", testid: "rename", title: "Rename (r)", "aria-label": `Rename ${title}` },
    "✎",
  );
  const plain = () => box.replaceChildren(el("h1", {}, title), button);
  editName = (typed = cluster.name ?? "") => {
    const form = renameForm(cluster, typed, plain);
    box.replaceChildren(form);
    form.querySelector("input").select();
  };
  button.addEventListener("click", () => editName());
  bind(["r"], "Rename the cluster", () => editName());
  plain();
  return box;
}

function renameForm(cluster, typed, cancel) {
  const input = el(
    "input",
    {
      value: typed,
      placeholder: `Cluster ${cluster.number}`,
      maxLength: LONGEST_NAME,
      "aria-label": "Name of the cluster",
      autocomplete: "off",
    },
  );
  const save = async (event) => {
    event.preventDefault();
    const name = input.value.trim();
    if (name === (cluster.name ?? "")) cancel();
    else if (!(await rename(cluster.number, name))) editName(name);
  };
  input.addEventListener("keydown", (event) => event.key === "Escape" && cancel());
  return el(
    "form.rename",
    { onsubmit: save },
    input,
    el("button.primary", {}, "Save"),
    el("button", { type: "button", onclick: cancel }, "Cancel"),
  );
}

// ---- its charts

function charts(cluster, signal) {
  const views = el("div", { testid: "views" }, el("p.muted", {}, "Asking each view…"));
  fillViews(views, cluster.number, signal);
  const panels = [panel("Distances", histogram(cluster.histogram)), panel("What each view alone says", views)];
  if (cluster.labels.length) panels.push(panel("True labels inside", labels(cluster)));
  return panels;
}

function labels({ labels: inside, size }) {
  const items = inside.map(({ label, count: n }, i) =>
    ({ label, share: n / size, text: percent(n / size), rank: i ? "less" : "main" }),
  );
  return bars(items, { lines: true });
}

async function fillViews(box, number, signal) {
  try {
    await new Promise((resolve) => setTimeout(resolve, PICTURES_FIRST));
    const { views, sampled } = await get(`/api/cluster/${number}/views`, signal);
    const items = views.map(({ view, share, other }) => ({
      label: view,
      share,
      text: `${percent(share)} here`,
      note: other && `${percent(other.share)} to ${clusterTitle(other)}`,
    }));
    box.replaceChildren(bars(items), el("p.muted.small", {}, `Asked for ${count(sampled, "picture")}.`));
  } catch (problem) {
    if (problem.name !== "AbortError") box.replaceChildren(el("p.muted", { role: "alert" }, problem.message));
  }
}

// ---- the clusters near it

function nearby(cluster, other) {
  const title = clusterTitle(other);
  const mergeInto = () => merge([cluster.number, other.number], other.number, `/cluster/${other.number}`);
  return el(
    "div.near",
    {},
    el(
      "a.quad",
      { href: `/cluster/${other.number}`, tabIndex: -1, "aria-label": `Open ${title}` },
      other.central.map((row) => thumb({ row, cluster: other })),
    ),
    el(
      "div",
      {},
      el("h3.clamped", { title }, el("a", { href: `/cluster/${other.number}` }, title)),
      el("p.muted", {}, [`${tidy(other.distance)} bits away`, other.label].filter(Boolean).join(" · ")),
      el(
        "button.small",
        { type: "button", testid: "merge", title: `Merge into ${title}`, onclick: mergeInto },
        el("span.clamped", {}, `Merge into ${title}`),
      ),
    ),
  );
}

// ---- its pictures

function pictures(cluster, signal) {
  const load = async (start, n) => {
    const page = await get(`/api/cluster/${cluster.number}/rows?start=${start}&count=${n}`, signal);
    return page.rows.map((row, i) =>
      ({ row, path: page.paths[i], distance: page.distances[i], label: page.labels?.[i], cluster }),
    );
  };
  const from = cluster.outliers_from;
  const outliers = `Outliers: ${count(cluster.size - from, "picture")} far from the center`;
  return galleryPanel({
    title: "Pictures",
    note: "most central first",
    list: new Pages(load, PAGE, cluster.size),
    sections: [
      { from: 0, to: from, title: null },
      { from, to: cluster.size, title: outliers },
    ],
    badge: ({ distance, label }) => [tidy(distance), label],
    home: cluster.number,
    signal,
  });
}
