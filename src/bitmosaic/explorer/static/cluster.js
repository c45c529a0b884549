// The cluster page: name, size, charts, the nearest clusters, and all images by distance from the center.

import { get } from "./api.js";
import { bars, histogram, panel } from "./charts.js";
import { el } from "./dom.js";
import { merge, rename } from "./edits.js";
import { bind } from "./keys.js";
import { PagedList } from "./paged_list.js";
import { galleryPanel } from "./gallery_panel.js";
import { thumb } from "./thumbs.js";
import { bits, clusterTitle, count, percent, tidy } from "./format.js";

const PAGE = 300;
const LONGEST_NAME = 120;
const VIEWS_DELAY = 400; // ms; the single views take the server some time, so images are loaded first

export async function show({ run, signal }) {
  const number = Number(location.pathname.split("/").pop());
  const [cluster, { name }] = await Promise.all([get(`/api/cluster/${number}`, signal), run]);
  document.title = `${clusterTitle(cluster)} · ${name}`;
  return [
    el("div.page-head", {}, heading(cluster), el("p.muted", {}, summary(cluster))),
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
      images(cluster, signal),
    ),
  ];
}

function summary(cluster) {
  const label = cluster.label !== null ? `mostly ${cluster.label} (${percent(cluster.purity)})` : null;
  const number = cluster.name ? `cluster ${cluster.number}` : null;
  return [
    number,
    count(cluster.size, "image"),
    label,
    `${bits(cluster.tightness)} from center on average`,
    cluster.edited && "edited",
  ].filter(Boolean).join(" · ");
}

// ---- name

let editName = () => {}; // opens the form of the current page, which is built again after a failed edit

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

// ---- charts

function charts(cluster, signal) {
  const views = el("div", { testid: "views" }, el("p.muted", {}, "Evaluating each view…"));
  fillViews(views, cluster.number, signal);
  const panels = [panel("Distances", histogram(cluster.histogram)), panel("Clustering by one view alone", views)];
  if (cluster.labels.length) panels.push(panel("True labels", labels(cluster)));
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
    await new Promise((resolve) => setTimeout(resolve, VIEWS_DELAY));
    const { views, sampled } = await get(`/api/cluster/${number}/views`, signal);
    const items = views.map(({ view, share, other }) => ({
      label: view,
      share,
      text: `${percent(share)} in this cluster`,
      note: other && `${percent(other.share)} in ${clusterTitle(other)}`,
    }));
    box.replaceChildren(bars(items), el("p.muted.small", {}, `Measured on ${count(sampled, "image")} of this cluster.`));
  } catch (problem) {
    if (problem.name !== "AbortError") box.replaceChildren(el("p.muted", { role: "alert" }, problem.message));
  }
}

// ---- nearest clusters

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

// ---- images

function images(cluster, signal) {
  const load = async (start, n) => {
    const page = await get(`/api/cluster/${cluster.number}/rows?start=${start}&count=${n}`, signal);
    return page.rows.map((row, i) =>
      ({ row, path: page.paths[i], distance: page.distances[i], label: page.labels?.[i], cluster }),
    );
  };
  const from = cluster.outliers_from;
  const outliers = `${count(cluster.size - from, "outlier")}, farthest from the center`;
  return galleryPanel({
    title: "Images",
    note: "closest to the center first",
    list: new PagedList(load, PAGE, cluster.size),
    sections: [
      { from: 0, to: from, title: null },
      { from, to: cluster.size, title: outliers },
    ],
    badge: ({ distance, label }) => [tidy(distance), label],
    home: cluster.number,
    signal,
  });
}
