// The map: every picture as a point, with Plotly; what the lasso takes becomes a gallery.

import { get, poll } from "./api.js";
import { el } from "./dom.js";
import { bind } from "./keys.js";
import { groupsOf, legend } from "./legend.js";
import { Pages } from "./pages.js";
import { galleryPanel } from "./panel.js";
import { progressLine } from "./progress.js";
import { thumb } from "./thumbs.js";
import { clusterTitle, count, whole } from "./words.js";

const TOOLS = { pan: "Pan", lasso: "Lasso", select: "Box" };
const kept = { colour: "cluster", tool: "pan", ranges: null }; // outlives an edit, after which the page is built anew

export async function show({ run, signal }) {
  const progress = progressLine(document.getElementById("main"), "This is done once and kept in the run.");
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
      "aria-label": `Map of ${count(map.rows.length, "picture")}; pictures with similar codes are near each other`,
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
  const note = map.sampled ? `${whole(map.rows.length)} of ${whole(map.total)} pictures` : count(map.total, "picture");
  return [
    el(
      "div.toolbar",
      {},
      el("h1", {}, "Map"),
      el("p.muted", {}, note),
      el("div.spring"),
      map.labels && colourSwitch(draw),
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
      () => reject(new Error("The map needs Plotly, and its script could not be loaded.")),
    );
    document.head.append(script);
  });
}

// ---- drawing

async function drawPlot({ plot, side, map, names }) {
  const groups = groupsOf(map, kept.colour, names);
  const traces = groups.map(({ title, colour, members }) => ({
    type: "scattergl",
    mode: "markers",
    name: title,
    x: members.map((i) => map.x[i]),
    y: members.map((i) => map.y[i]),
    customdata: members,
    hoverinfo: "none",
    marker: { color: colour, size: pointSize(map.rows.length, plot.clientWidth), opacity: 0.75, line: { width: 0 } },
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
    dragmode: kept.tool,
    hovermode: "closest",
    showlegend: false,
    margin: { l: 0, r: 0, t: 0, b: 0 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    xaxis: { ...axis, range: kept.ranges?.x ?? [-1500, 67035] },
    yaxis: { ...axis, scaleanchor: "x", range: kept.ranges?.y ?? [-1500, 67035] },
    newselection: { line },
    activeselection: { opacity: 0.1 },
    uirevision: "kept",
  };
}

// ---- what one can do with it

function listen({ plot, map, names, chosen, signal }) {
  const card = tooltip(plot);
  const picture = ({ customdata: i }) => ({
    row: map.rows[i],
    label: map.labels?.[i],
    cluster: names.get(map.clusters[i]),
  });
  plot.on("plotly_hover", ({ points, event }) => card.show(picture(points[0]), event));
  plot.on("plotly_unhover", card.hide);
  plot.on("plotly_selecting", card.hide);
  plot.on("plotly_click", ({ points }) => (location.href = `/picture/${map.rows[points[0].customdata]}`));
  plot.on("plotly_relayout", () => {
    const { xaxis, yaxis } = plot.layout;
    kept.ranges = { x: [...xaxis.range], y: [...yaxis.range] };
  });
  plot.on("plotly_selected", (event) => event && showChosen(chosen, event.points.map(picture), signal));
  plot.on("plotly_deselect", () => chosen.replaceChildren());
  signal.addEventListener("abort", () => window.Plotly.purge(plot));
}

function showChosen(place, pictures, signal) {
  if (!pictures.length) return place.replaceChildren();
  const badge = ({ cluster, label }) => [clusterTitle(cluster), label];
  const title = `${count(pictures.length, "picture")} in the selection`;
  place.replaceChildren(galleryPanel({ title, note: "", list: Pages.of(pictures), chosen: pictures, badge, signal }));
}

function tooltip(plot) {
  const card = el("div.tip", { hidden: true });
  plot.parentElement.append(card);
  const show = (picture, { clientX, clientY }) => {
    const box = plot.getBoundingClientRect();
    card.replaceChildren(
      el("span.shot", {}, thumb(picture)),
      el("strong.clamped", {}, clusterTitle(picture.cluster)),
      el("span.muted.clamped", {}, picture.label ?? `picture ${picture.row}`),
    );
    card.hidden = false;
    const right = clientX - box.left + 16;
    const left = right + card.offsetWidth > box.width ? right - card.offsetWidth - 32 : right;
    const top = Math.min(Math.max(0, clientY - box.top - card.offsetHeight / 2), box.height - card.offsetHeight);
    card.style.transform = `translate(${left}px, ${top}px)`;
  };
  return { show, hide: () => (card.hidden = true) };
}

function colourSwitch(draw) {
  const options = { cluster: "Clusters", label: "Labels" };
  return choiceOf("Colour by", options, kept.colour, (colour) => ((kept.colour = colour), draw()));
}

function toolSwitch(plot) {
  const use = (tool) => ((kept.tool = tool), window.Plotly.relayout(plot, { dragmode: tool }));
  const buttons = choiceOf("Dragging", TOOLS, kept.tool, use);
  const pick = (tool) => () => buttons.querySelector(`[value=${tool}]`).click();
  bind(["p"], "Drag to pan the map", pick("pan"));
  bind(["l"], "Drag a lasso around pictures", pick("lasso"));
  bind(["b"], "Drag a box around pictures", pick("select"));
  return buttons;
}

/** A few exclusive buttons: options is {value: words}. */
function choiceOf(title, options, value, onchange) {
  const group = el("fieldset.switch", {}, el("legend", {}, title));
  for (const [key, words] of Object.entries(options)) {
    const input = el(
      "input",
      { type: "radio", name: title, value: key, checked: key === value, onchange: () => onchange(key) },
    );
    group.append(el(
      "label",
      { testid: `${title === "Dragging" ? "tool" : "colour"}-${key}` },
      input,
      el("span", {}, words),
    ));
  }
  return group;
}
