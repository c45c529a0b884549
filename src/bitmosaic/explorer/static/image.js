// The image page: the image, its code, and the nearest clusters and images.

import { get, largeUrl, thumbUrl } from "./api.js";
import { barcode, bars, panel } from "./charts.js";
import { chooseCluster } from "./cluster_dialog.js";
import { el } from "./dom.js";
import { move } from "./edits.js";
import { bind } from "./keys.js";
import { altText, linkedThumb, missing } from "./thumbs.js";
import { bits, clusterTitle, fileName, whole } from "./format.js";

const NEIGHBORS = 24;

export async function show({ run, signal }) {
  const row = Number(location.pathname.split("/").pop());
  const [image, facts] = await Promise.all([get(`/api/image/${row}`, signal), run]);
  const cluster = { number: image.cluster, name: image.cluster_name };
  document.title = `${fileName(image.path)} · ${facts.name}`;
  const neighbors = el(
    "section.panel.neighbors",
    { testid: "neighbors" },
    el("h2", {}, "Nearest images"),
    placeholders(),
  );
  fillNeighbors(neighbors, image, facts, signal);
  return [
    el(
      "div.image-page",
      {},
      el("div.stage-side", {}, stage(image, cluster, facts), steps(image)),
      el(
        "div.image-facts",
        {},
        about(image, cluster),
        panel("Distance to the nearest clusters", distances(image)),
        panel("Code", barcode(image.code, image.bits)),
      ),
    ),
    neighbors,
  ];
}

/** Shows the thumbnail first, then the large image in the same box. */
function stage(image, cluster, facts) {
  const box = el("div.stage");
  const replace = () => box.replaceChildren(missing(fileName(image.path)));
  if (!facts.images_found) {
    replace();
    return box;
  }
  const img = el("img", { alt: altText({ ...image, cluster }) });
  img.addEventListener("load", () => img.classList.toggle("tiny", img.naturalWidth <= 96));
  img.addEventListener("error", replace, { once: true });
  img.src = thumbUrl(image.row);
  box.append(img);
  showLarge(img, image.row);
  return box;
}

async function showLarge(img, row) {
  const large = new Image();
  large.src = largeUrl(row);
  await large.decode().then(() => (img.src = large.src), () => {}); // on error the thumbnail stays
}

function steps({ previous, next, position, size }) {
  const link = (row, words, key) => {
    bind(
      [key],
      `${words} image of the cluster`,
      () => (row === null ? false : void (location.href = `/image/${row}`)),
    );
    const shown = key === "ArrowLeft" ? `← ${words}` : `${words} →`;
    return row === null ? el("span.button.off", {}, shown) : el("a.button", { href: `/image/${row}` }, shown);
  };
  return el(
    "nav.steps",
    { "aria-label": "Images of the cluster" },
    link(previous, "Previous", "ArrowLeft"),
    el("span.muted", {}, `${whole(position + 1)} of ${whole(size)}`),
    link(next, "Next", "ArrowRight"),
  );
}

function about(image, cluster) {
  const moveIt = async () => {
    const to = await chooseCluster(`Move ${fileName(image.path)} to…`, image.cluster);
    if (to !== undefined) await move([image.row], to);
  };
  const moved = image.was !== image.cluster && el("small.muted", {}, ` moved here from cluster ${image.was}`);
  bind(["v"], "Move the image", () => void moveIt());
  return el(
    "div.image-head",
    {},
    el("h1", {}, fileName(image.path)),
    el("p.path", {}, image.path),
    el(
      "dl.pairs",
      {},
      el("dt", {}, "Cluster"),
      el("dd", {}, el("a", { href: `/cluster/${cluster.number}` }, clusterTitle(cluster)), moved),
      image.label !== null && [el("dt", {}, "Label"), el("dd", {}, image.label)],
      el("dt", {}, "From center"),
      el("dd", {}, bits(image.distance)),
      image.width && [el("dt", {}, "Size"), el("dd", {}, `${whole(image.width)} × ${whole(image.height)}`)],
    ),
    el("button", { type: "button", testid: "move", onclick: moveIt }, "Move to…"),
  );
}

function distances({ clusters, cluster }) {
  const farthest = Math.max(1, ...clusters.map(({ distance }) => distance));
  return bars(
    clusters.map((other) => ({
      label: clusterTitle(other) + (other.label !== null && !other.name ? ` · ${other.label}` : ""),
      href: `/cluster/${other.number}`,
      share: other.distance / farthest,
      text: bits(other.distance),
      rank: other.number === cluster ? "main" : "less",
    })),
  );
}

// ---- nearest images

const placeholders = () => el("div.shots", {}, Array.from({ length: NEIGHBORS }, () => el("span.shot")));

async function fillNeighbors(section, image, facts, signal) {
  try {
    const [found, { clusters }] = await Promise.all([
      get(`/api/image/${image.row}/neighbors?count=${NEIGHBORS}`, signal),
      get("/api/clusters", signal),
    ]);
    const byNumber = new Map(clusters.map((cluster) => [cluster.number, cluster]));
    const shots = found.rows.map((row, i) =>
      neighbor({ row, path: found.paths[i], cluster: byNumber.get(found.clusters[i]) }, found.distances[i], image),
    );
    const time = `${found.milliseconds.toFixed(1)} ms`;
    const note = `by the number of differing code bits · searched ${whole(facts.images)} images in ${time}`;
    section.replaceChildren(
      el("div.bar-head", {}, el("h2", {}, "Nearest images"), el("p.muted", {}, note)),
      el("div.shots", {}, shots),
    );
  } catch (problem) {
    if (problem.name !== "AbortError") section.replaceChildren(
      el("h2", {}, "Nearest images"),
      el("p.muted", { role: "alert" }, problem.message),
    );
  }
}

function neighbor(other, distance, image) {
  const elsewhere = other.cluster && other.cluster.number !== image.cluster;
  return el(
    "figure",
    {},
    linkedThumb(other, bits(distance)),
    el(`figcaption${elsewhere ? ".elsewhere" : ""}`, {}, elsewhere ? clusterTitle(other.cluster) : "same cluster"),
  );
}
