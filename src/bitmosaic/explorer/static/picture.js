// A picture: itself, its code, the clusters and the pictures nearest to it.

import { get, imageUrl, thumbUrl } from "./api.js";
import { barcode, bars, panel } from "./charts.js";
import { chooseCluster } from "./choose.js";
import { el } from "./dom.js";
import { move } from "./edits.js";
import { bind } from "./keys.js";
import { altText, linkedThumb, missing } from "./thumbs.js";
import { bits, clusterTitle, fileName, whole } from "./words.js";

const NEIGHBOURS = 24;

export async function show({ run, signal }) {
  const row = Number(location.pathname.split("/").pop());
  const [picture, facts] = await Promise.all([get(`/api/picture/${row}`, signal), run]);
  const cluster = { number: picture.cluster, name: picture.cluster_name };
  document.title = `${fileName(picture.path)} · ${facts.name}`;
  const neighbours = el(
    "section.panel.neighbours",
    { testid: "neighbours" },
    el("h2", {}, "Nearest pictures"),
    placeholders(),
  );
  fillNeighbours(neighbours, picture, facts, signal);
  return [
    el(
      "div.picture-page",
      {},
      el("div.stage-side", {}, stage(picture, cluster, facts), steps(picture)),
      el(
        "div.picture-facts",
        {},
        about(picture, cluster),
        panel("Distance to the nearest clusters", distances(picture)),
        panel("Code", barcode(picture.code, picture.bits)),
      ),
    ),
    neighbours,
  ];
}

/** The thumbnail at once, then the picture in the same box. */
function stage(picture, cluster, facts) {
  const box = el("div.stage");
  const image = el("img", { alt: altText({ ...picture, cluster }) });
  const replace = () => box.replaceChildren(missing(fileName(picture.path)));
  if (!facts.pictures) replace();
  else box.append(image);
  image.addEventListener("load", () => image.classList.toggle("tiny", image.naturalWidth <= 96));
  image.addEventListener("error", replace, { once: true });
  image.src = facts.pictures ? thumbUrl(picture.row) : "";
  if (facts.pictures) showFull(image, picture.row);
  return box;
}

async function showFull(image, row) {
  const full = new Image();
  full.src = imageUrl(row);
  await full.decode().then(() => (image.src = full.src), () => {}); // the thumbnail stays where there is nothing larger
}

function steps({ previous, next, position, size }) {
  const link = (row, words, key) => {
    bind(
      [key],
      `${words} picture of the cluster`,
      () => (row === null ? false : void (location.href = `/picture/${row}`)),
    );
    const shown = key === "ArrowLeft" ? `← ${words}` : `${words} →`;
    return row === null ? el("span.button.off", {}, shown) : el("a.button", { href: `/picture/${row}` }, shown);
  };
  return el(
    "nav.steps",
    { "aria-label": "Pictures of the cluster" },
    link(previous, "Previous", "ArrowLeft"),
    el("span.muted", {}, `${whole(position + 1)} of ${whole(size)}`),
    link(next, "Next", "ArrowRight"),
  );
}

function about(picture, cluster) {
  const moveIt = async () => {
    const to = await chooseCluster(`Move ${fileName(picture.path)} to…`, picture.cluster);
    if (to !== undefined) await move([picture.row], to);
  };
  const moved = picture.was !== picture.cluster && el("small.muted", {}, ` moved here from cluster ${picture.was}`);
  bind(["v"], "Move the picture", () => void moveIt());
  return el(
    "div.picture-head",
    {},
    el("h1", {}, fileName(picture.path)),
    el("p.path", {}, picture.path),
    el(
      "dl.pairs",
      {},
      el("dt", {}, "Cluster"),
      el("dd", {}, el("a", { href: `/cluster/${cluster.number}` }, clusterTitle(cluster)), moved),
      picture.label !== null && [el("dt", {}, "Label"), el("dd", {}, picture.label)],
      el("dt", {}, "Off center"),
      el("dd", {}, bits(picture.distance)),
      picture.width && [el("dt", {}, "Size"), el("dd", {}, `${whole(picture.width)} × ${whole(picture.height)}`)],
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

// ---- its neighbours

const placeholders = () => el("div.shots", {}, Array.from({ length: NEIGHBOURS }, () => el("span.shot")));

async function fillNeighbours(section, picture, facts, signal) {
  try {
    const [found, { clusters }] = await Promise.all([
      get(`/api/picture/${picture.row}/neighbours?count=${NEIGHBOURS}`, signal),
      get("/api/clusters", signal),
    ]);
    const byNumber = new Map(clusters.map((cluster) => [cluster.number, cluster]));
    const shots = found.rows.map((row, i) =>
      neighbour({ row, path: found.paths[i], cluster: byNumber.get(found.clusters[i]) }, found.distances[i], picture),
    );
    const took = `${found.milliseconds.toFixed(1)} ms`;
    const note = `by the bits in which their codes differ · found among ${whole(facts.images)} in ${took}`;
    section.replaceChildren(
      el("div.bar-head", {}, el("h2", {}, "Nearest pictures"), el("p.muted", {}, note)),
      el("div.shots", {}, shots),
    );
  } catch (problem) {
    if (problem.name !== "AbortError") section.replaceChildren(
      el("h2", {}, "Nearest pictures"),
      el("p.muted", { role: "alert" }, problem.message),
    );
  }
}

function neighbour(other, distance, picture) {
  const elsewhere = other.cluster && other.cluster.number !== picture.cluster;
  return el(
    "figure",
    {},
    linkedThumb(other, bits(distance)),
    el(`figcaption${elsewhere ? ".elsewhere" : ""}`, {}, elsewhere ? clusterTitle(other.cluster) : "same cluster"),
  );
}
