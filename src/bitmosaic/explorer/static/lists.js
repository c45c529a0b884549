// Near-duplicates as groups, outliers as a gallery.

import { get, poll } from "./api.js";
import { el, whenNear } from "./dom.js";
import { say } from "./message.js";
import { Pages } from "./pages.js";
import { galleryPanel } from "./panel.js";
import { progressLine } from "./progress.js";
import { linkedThumb } from "./thumbs.js";
import { bits, clusterTitle, count, whole } from "./words.js";

const GROUPS = 50;
const OUTLIERS = 200;

export async function show({ page, run, signal }) {
  const [{ clusters }] = await Promise.all([get("/api/clusters", signal), run]);
  const names = new Map(clusters.map((cluster) => [cluster.number, cluster]));
  return page === "duplicates" ? duplicates(names, signal) : outliers(names, signal);
}

const head = (title, note) => el("div.page-head", {}, el("h1", {}, title), el("p.muted", {}, note));

// ---- near-duplicates

async function duplicates(names, signal) {
  const progress = progressLine(document.getElementById("main"));
  const first = await poll(`/api/duplicates?start=0&count=${GROUPS}`, progress.show, signal);
  const list = el("div.groups", { testid: "groups" });
  addGroups(list, first, names, signal);
  const found = first.total ? count(first.total, "group") : "No groups";
  const note = `${found} of pictures that are almost the same: codes at most ${bits(first.radius)} apart`;
  return [head("Near-duplicates", note), list];
}

/** Append a page of groups; the next is fetched when the end of the list comes near. */
function addGroups(list, { groups, total }, names, signal) {
  list.append(...groups.map((one) => group(one, names)));
  if (list.children.length >= total || !groups.length) return;
  whenNear(list.lastElementChild, async () => {
    try {
      addGroups(
        list,
        await get(`/api/duplicates?start=${list.children.length}&count=${GROUPS}`, signal),
        names,
        signal,
      );
    } catch (problem) {
      if (problem.name !== "AbortError") say(problem.message, { error: true });
    }
  });
}

function group({ rows, distances, paths, clusters, labels, size }, names) {
  const inside = new Set(clusters);
  const places = [...inside].map((number) =>
    el("a", { href: `/cluster/${number}` }, clusterTitle(names.get(number) ?? { number })),
  );
  const different = labels && new Set(labels).size > 1;
  const shots = rows.map((row, i) =>
    linkedThumb({ row, path: paths[i], cluster: names.get(clusters[i]) }, i ? bits(distances[i]) : null),
  );
  return el(
    "section.group",
    {},
    el(
      "p.group-head",
      {},
      el("strong", {}, count(size, "picture")),
      " in ",
      places.flatMap((place, i) => (i ? [", ", place] : [place])),
      different && el("span.flag", {}, "different labels"),
    ),
    el("div.group-shots", {}, shots),
    size > rows.length && el("p.muted.small", {}, `The first ${whole(rows.length)} are shown.`),
  );
}

// ---- outliers

async function outliers(names, signal) {
  const fetchPage = async (start, n) => get(`/api/outliers?start=${start}&count=${n}`, signal);
  const asPictures = (page) =>
    page.rows.map((row, i) =>
      ({
        row,
        path: page.paths[i],
        distance: page.distances[i],
        score: page.scores[i],
        cluster: names.get(page.clusters[i]),
      }),
    );
  const first = await fetchPage(0, OUTLIERS);
  const list = new Pages(
    async (start, n) => asPictures(start === 0 ? first : await fetchPage(start, n)),
    OUTLIERS,
    first.total,
  );
  const gallery = galleryPanel({
    title: "Pictures",
    note: "farthest first; the number is the score",
    list,
    badge: ({ score, cluster }) => [score.toFixed(2), clusterTitle(cluster)],
    signal,
  });
  gallery.classList.add("badged");
  return [
    head(
      "Outliers",
      `${whole(first.total)} pictures by how far they are from the center of their cluster, compared with the others in it`,
    ),
    gallery,
  ];
}
