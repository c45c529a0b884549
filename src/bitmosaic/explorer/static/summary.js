// The summary of the run on the overview page.

import { bars } from "./charts.js";
import { el } from "./dom.js";
import { count, day, percent, seconds, whole } from "./format.js";

const SCORES = { acc: "Accuracy", nmi: "NMI", purity: "Purity", f_score: "F-score" };

export function runSummary(run) {
  const numbers = [
    fact("Images", whole(run.images), run.skipped ? `${whole(run.skipped)} skipped` : null),
    fact("Clusters", whole(run.clusters), run.how_many),
    fact("Code", `${run.bits} bits`),
    ...scores(run),
    ...(run.edits.count ? [fact("Edits", whole(run.edits.count))] : []),
  ];
  return el(
    "section.facts",
    { "aria-label": "The run" },
    el("dl.numbers", {}, numbers),
    weights(run.views),
    about(run),
  );
}

function fact(name, value, note = null) {
  return el("div", {}, el("dt", {}, name), el("dd", {}, value, note && el("small", {}, note)));
}

function scores({ scores: now, original_scores: before }) {
  if (!now) return [];
  return Object.entries(SCORES).map(([key, name]) => {
    const changed = before && percent(before[key]) !== percent(now[key]);
    return fact(name, percent(now[key]), changed ? `was ${percent(before[key])}` : null);
  });
}

function weights(views) {
  const most = Math.max(...views.map(({ weight }) => weight));
  const items = views.map(({ name, weight }) => ({ label: name, share: weight / most, text: weight.toFixed(3) }));
  return el("div.weights", {}, el("h2", {}, "View weights"), bars(items, { lines: true }));
}

function about(run) {
  const stages = Object.entries(run.seconds).map(([stage, duration]) => `${stage} ${seconds(duration)}`);
  const lines = [
    `Started ${day(run.begun)}, with bitmosaic ${run.bitmosaic}${run.seed === null ? "" : `, seed ${run.seed}`}.`,
    stages.length ? `Duration: ${stages.join(", ")}.` : null,
    `${count(run.skipped, "image")} could not be read.`,
  ];
  const log = run.edits.log.map((sentence) => el("li", {}, sentence));
  return el(
    "details.about",
    {},
    el("summary", {}, "About this run"),
    lines.filter(Boolean).map((line) => el("p", {}, line)),
    log.length > 0 && [el("h3", {}, "Latest edits, newest first"), el("ol", {}, log)],
  );
}
