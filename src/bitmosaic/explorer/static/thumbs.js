// An image in a square box of fixed size. A missing image becomes a gray tile with its file name.

import { thumbUrl } from "./api.js";
import { el } from "./dom.js";
import { clusterTitle, fileName } from "./format.js";

let hasImages = true;

export function expectImages(run) {
  hasImages = run.images_found;
}

/** The alt text of an image: its file name (or number) and its cluster. */
export function altText({ row, path, cluster }) {
  const name = path ? fileName(path) : `image ${row}`;
  return cluster ? `${name}, in ${clusterTitle(cluster)}` : name;
}

/** `image` is {row, path?, cluster? {number, name}}; `lazy`: fetched only near the visible part of the page. */
export function thumb(image, { lazy = false } = {}) {
  const name = image.path ? fileName(image.path) : `#${image.row}`;
  if (!hasImages) return missing(name);
  const loading = lazy ? "lazy" : "eager";
  const img = el(
    "img",
    { loading, alt: altText(image), decoding: "async", draggable: false, src: thumbUrl(image.row) },
  );
  img.addEventListener("error", () => img.replaceWith(missing(name)));
  return img;
}

/** A linked thumbnail with a badge. */
export function linkedThumb(image, badge = null) {
  return el(
    "a.shot",
    { href: `/image/${image.row}`, title: image.path ?? `Image ${image.row}`, data: { row: image.row } },
    thumb(image, { lazy: true }),
    badge !== null && el("span.badge", {}, badge),
  );
}

export function missing(name) {
  return el("span.missing", { role: "img", "aria-label": `${name}: image not found` }, el("span", {}, name));
}
