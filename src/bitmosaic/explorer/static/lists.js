// The near-duplicates page (groups) and the outliers page (a gallery).

import { get, poll } from "./api.js";
import { el, whenNear } from "./dom.js";
import { showMessage } from "./message.js";
import { PagedList } from "./paged_list.js";
import { galleryPanel } from "./gallery_panel.js";
import { progressLine } from "./progress.js";
import { linkedThumb } from "./thumbs.js";
import { bits, clusterTitle, count, whole } from "./format.js";

const GROUPS = 50;
const OUTLIERS = 200;
const COMPARED = { features: "codes", both: "perceptual hashes or codes" }; // otherwise perceptual hashes

export async function show({ page, run, signal }) {
  const [{ clusters }] = await Promise.all([get("/api/clusters", signal), run]);
  const names = new Map(clusters.map((cluster) => [cluster.number, cluster]));
  return page === "duplicates" ? duplicates(names, signal) : outliers(names, signal);
}

const head = (title, note) => el("div.page-head", {}, el("h1", {}, title), el("p.muted", {}, note));

// ---- near-duplicates

async function duplicates(names, signal) {
  const note = "The other pages can be used meanwhile.";
  const progress = progressLine(document.getElementById("main"), "Finding near-duplicates", note);
  const first = await poll(`/api/duplicates?start=0&count=${GROUPS}`, progress.show, signal);
  const list = el("div.groups", { testid: "groups" });
  addGroups(list, first, names, signal);
  return [head("Near-duplicates", summary(first)), list];
}

function summary({ total, by, radius }) {
  const compared = COMPARED[by] ?? "perceptual hashes";
  const rule = `Images belong together if their ${compared} differ in at most ${bits(radius)}.`;
  if (!total) return `No groups found. ${rule}`;
  return `${count(total, "group")}. ${rule} The first image of a group is the one to keep; others show their distance from it.`;
}

/** Append a page of groups. The next page is fetched when the end of the list is near the visible part. */
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
      if (problem.name !== "AbortError") showMessage(problem.message, { error: true });
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
      el("strong", {}, count(size, "image")),
      " in ",
      places.flatMap((place, i) => (i ? [", ", place] : [place])),
      different && el("span.flag", {}, "different labels"),
    ),
    el("div.group-shots", {}, shots),
    size > rows.length && el("p.muted.small", {}, `Showing the first ${whole(rows.length)}.`),
  );
}

// ---- outliers

async function outliers(names, signal) {
  const fetchPage = async (start, n) => get(`/api/outliers?start=${start}&count=${n}`, signal);
  const asImages = (page) =>
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
  const list = new PagedList(
    async (start, n) => asImages(start === 0 ? first : await fetchPage(start, n)),
    OUTLIERS,
    first.total,
  );
  const gallery = galleryPanel({
    title: "Images",
    note: "highest score first",
    list,
    badge: ({ score, cluster }) => [score.toFixed(2), clusterTitle(cluster)],
    signal,
  });
  gallery.classList.add("badged");
  return [
    head(
      "Outliers",
      `${whole(first.total)} images, those farthest from their cluster center first. The score compares the distance with the other images of the cluster.`,
    ),
    gallery,
  ];
}
