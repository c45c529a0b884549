// The map page: each image is a point, drawn by Plotly. Points selected by lasso or box are shown as a gallery.

import { get, poll } from "./api.js";
import { el } from "./dom.js";
import { bind } from "./keys.js";
import { groupsOf, legend } from "./legend.js";
import { PagedList } from "./paged_list.js";
import { galleryPanel } from "./gallery_panel.js";
import { progressLine } from "./progress.js";
import { thumb } from "./thumbs.js";
import { clusterTitle, count, whole } from "./format.js";

const TOOLS = { pan: "Pan", lasso: "Lasso", select: "Box" };
const settings = { color: "cluster", tool: "pan", ranges: null }; // kept when the page is built again after an edit

export async function show({ run, signal }) {
  const progress = progressLine(document.getElementById("main"), "Computing the map", "It is stored in the run.");
  const [map, { clusters }] = await Promise.all([
    poll("/api/map", progress.show, signal),
    get("/api/clusters", signal),
    loadPlotly(),
    run,
  ]);
  const names = new Map(clusters.map((cluster) => [cluster.number, cluster]));
  const plot = el(
    "div.plot",
    {
      testid: "map",
      role: "img",
      "aria-label": `Map of ${count(map.rows.length, "image")}; images with similar codes are close together`,
    },
  );
  const side = el("div.legend-box");
  const chosen = el("div.map-chosen");
  const draw = () => drawPlot({ plot, side, map, names });
  const view = { plot, map, names, chosen, signal };
  requestAnimationFrame(async () => {
    await draw();
    listen(view);
  });
  const note = map.sampled ? `${whole(map.rows.length)} of ${whole(map.total)} images` : count(map.total, "image");
  return [
    el(
      "div.toolbar",
      {},
      el("h1", {}, "Map"),
      el("p.muted", {}, note),
      el("div.spring"),
      map.labels && colorSwitch(draw),
      toolSwitch(plot),
    ),
    el("div.map-page", {}, el("div.plot-box", {}, plot), side),
    chosen,
  ];
}

function loadPlotly() {
  if (window.Plotly) return Promise.resolve();
  return new Promise((resolve, reject) => {
    const script = el("script", { src: "/static/plotly.js" });
    script.addEventListener("load", resolve);
    script.addEventListener(
      "error",
      () => reject(new Error("The map needs Plotly, but its script could not be loaded.")),
    );
    document.head.append(script);
  });
}

// ---- drawing

async function drawPlot({ plot, side, map, names }) {
  const groups = groupsOf(map, settings.color, names);
  const traces = groups.map(({ title, color, members }) => ({
    type: "scattergl",
    mode: "markers",
    name: title,
    x: members.map((i) => map.x[i]),
    y: members.map((i) => map.y[i]),
    customdata: members,
    hoverinfo: "none",
    marker: { color, size: pointSize(map.rows.length, plot.clientWidth), opacity: 0.75, line: { width: 0 } },
    unselected: { marker: { opacity: 0.12 } },
  }));
  side.replaceChildren(legend(groups, (shown) => window.Plotly.restyle(plot, { visible: shown })));
  await window.Plotly.react(
    plot,
    traces,
    layout(),
    { responsive: true, scrollZoom: true, displayModeBar: false, doubleClick: "reset" },
  );
}

function pointSize(n, width) {
  const size = n > 20_000 ? 3.5 : n > 4_000 ? 5 : 8;
  return width < 600 ? 0.65 * size : size;
}

function layout() {
  const axis = { visible: false, zeroline: false, showgrid: false };
  const line = { color: "#888", width: 1.5, dash: "solid" };
  return {
    dragmode: settings.tool,
    hovermode: "closest",
    showlegend: false,
    margin: { l: 0, r: 0, t: 0, b: 0 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    xaxis: { ...axis, range: settings.ranges?.x ?? [-1500, 67035] },
    yaxis: { ...axis, scaleanchor: "x", range: settings.ranges?.y ?? [-1500, 67035] },
    newselection: { line },
    activeselection: { opacity: 0.1 },
    uirevision: "kept",
  };
}

// ---- interaction

function listen({ plot, map, names, chosen, signal }) {
  const card = tooltip(plot);
  const image = ({ customdata: i }) => ({
    row: map.rows[i],
    label: map.labels?.[i],
    cluster: names.get(map.clusters[i]),
  });
  plot.on("plotly_hover", ({ points, event }) => card.show(image(points[0]), event));
  plot.on("plotly_unhover", card.hide);
  plot.on("plotly_selecting", card.hide);
  plot.on("plotly_click", ({ points }) => (location.href = `/image/${map.rows[points[0].customdata]}`));
  plot.on("plotly_relayout", () => {
    const { xaxis, yaxis } = plot.layout;
    settings.ranges = { x: [...xaxis.range], y: [...yaxis.range] };
  });
  plot.on("plotly_selected", (event) => event && showChosen(chosen, event.points.map(image), signal));
  plot.on("plotly_deselect", () => chosen.replaceChildren());
  signal.addEventListener("abort", () => window.Plotly.purge(plot));
}

function showChosen(place, images, signal) {
  if (!images.length) return place.replaceChildren();
  const badge = ({ cluster, label }) => [clusterTitle(cluster), label];
  const title = `${count(images.length, "image")} in the selection`;
  place.replaceChildren(galleryPanel({ title, note: "", list: PagedList.of(images), chosen: images, badge, signal }));
}

function tooltip(plot) {
  const card = el("div.tip", { hidden: true });
  plot.parentElement.append(card);
  const show = (image, { clientX, clientY }) => {
    const box = plot.getBoundingClientRect();
    card.replaceChildren(
      el("span.shot", {}, thumb(image)),
      el("strong.clamped", {}, clusterTitle(image.cluster)),
      el("span.muted.clamped", {}, image.label ?? `image ${image.row}`),
    );
    card.hidden = false;
    const right = clientX - box.left + 16;
    const left = right + card.offsetWidth > box.width ? right - card.offsetWidth - 32 : right;
    const top = Math.min(Math.max(0, clientY - box.top - card.offsetHeight / 2), box.height - card.offsetHeight);
    card.style.transform = `translate(${left}px, ${top}px)`;
  };
  return { show, hide: () => (card.hidden = true) };
}

function colorSwitch(draw) {
  const options = { cluster: "Clusters", label: "Labels" };
  return choiceOf("Color by", options, settings.color, (color) => ((settings.color = color), draw()));
}

function toolSwitch(plot) {
  const use = (tool) => ((settings.tool = tool), window.Plotly.relayout(plot, { dragmode: tool }));
  const buttons = choiceOf("Dragging", TOOLS, settings.tool, use);
  const pick = (tool) => () => buttons.querySelector(`[value=${tool}]`).click();
  bind(["p"], "Drag to pan the map", pick("pan"));
  bind(["l"], "Drag a lasso around images", pick("lasso"));
  bind(["b"], "Drag a box around images", pick("select"));
  return buttons;
}

/** Radio buttons; `options` is {value: label}. */
function choiceOf(title, options, value, onchange) {
  const group = el("fieldset.switch", {}, el("legend", {}, title));
  for (const [key, words] of Object.entries(options)) {
    const input = el(
      "input",
      { type: "radio", name: title, value: key, checked: key === value, onchange: () => onchange(key) },
    );
    group.append(el(
      "label",
      { testid: `${title === "Dragging" ? "tool" : "color"}-${key}` },
      input,
      el("span", {}, words),
    ));
  }
  return group;
}
