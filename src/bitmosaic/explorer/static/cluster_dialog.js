// The dialog to select a cluster: a searchable list, or a new cluster.

import { get } from "./api.js";
import { el } from "./dom.js";
import { showMessage } from "./message.js";
import { thumb } from "./thumbs.js";
import { clusterTitle, count } from "./format.js";

const SHOWN = 100;

/** The number of the selected cluster, null for a new one, undefined if the dialog was closed. */
export async function chooseCluster(title, without = null) {
  let clusters;
  try {
    ({ clusters } = await get("/api/clusters"));
  } catch (problem) {
    return void showMessage(problem.message, { error: true });
  }
  const others = clusters.filter(({ number }) => number !== without).sort((a, b) => b.size - a.size);
  return new Promise((resolve) => open(title, others, resolve));
}

/** Whether the typed text is the number of a cluster, or a part of its name or label. */
export function matches(cluster, typed) {
  const sought = typed.trim().toLowerCase();
  const texts = [clusterTitle(cluster), cluster.label ?? ""];
  return String(cluster.number) === sought || texts.some((text) => text.toLowerCase().includes(sought));
}

function open(title, clusters, resolve) {
  const list = el("div.choices");
  const input = el(
    "input",
    { type: "search", placeholder: "Name, number or label", "aria-label": "Search clusters" },
  );
  const finish = (answer) => {
    resolve(answer);
    dialog.close();
  };
  const fill = () => {
    const found = clusters.filter((cluster) => matches(cluster, input.value));
    list.replaceChildren(...found.slice(0, SHOWN).map((cluster) => choice(cluster, finish)));
    if (!found.length) list.append(el("p.muted", {}, "No matching clusters."));
  };
  const pickFirst = (event) => {
    event.preventDefault();
    list.querySelector("button")?.click();
  };
  const dialog = el(
    "dialog.choose",
    { "aria-label": title, onclose: () => (resolve(undefined), dialog.remove()) },
    el(
      "form.dialog-head",
      { method: "dialog" },
      el("h2", {}, title),
      el("button.quiet", { "aria-label": "Close" }, "×"),
    ),
    el("form", { onsubmit: pickFirst }, input),
    list,
    el("button.new", { type: "button", onclick: () => finish(null) }, "+ New cluster"),
  );
  input.addEventListener("input", fill);
  fill();
  document.body.append(dialog);
  dialog.showModal();
  input.focus();
}

function choice(cluster, finish) {
  const title = clusterTitle(cluster);
  const facts = [cluster.label, count(cluster.size, "image")].filter(Boolean).join(" · ");
  return el(
    "button.choice",
    { type: "button", title, data: { cluster: cluster.number }, onclick: () => finish(cluster.number) },
    el("span.shot", {}, cluster.central.slice(0, 1).map((row) => thumb({ row, cluster }))),
    el("span", {}, el("strong", {}, title), el("small", {}, facts)),
  );
}
