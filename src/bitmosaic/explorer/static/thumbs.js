// One picture in a square box of fixed size; a picture that is not there becomes a neutral tile with its name.

import { thumbUrl } from "./api.js";
import { el } from "./dom.js";
import { clusterTitle, fileName } from "./words.js";

let picturesThere = true;

export function expectPictures(run) {
  picturesThere = run.pictures;
}

/** The words for a picture: its file name (or number) and its cluster. */
export function altText({ row, path, cluster }) {
  const name = path ? fileName(path) : `picture ${row}`;
  return cluster ? `${name}, in ${clusterTitle(cluster)}` : name;
}

/** `picture` is {row, path?, cluster? {number, name}}; `lazy`: fetched only when it comes near the screen. */
export function thumb(picture, { lazy = false } = {}) {
  const name = picture.path ? fileName(picture.path) : `#${picture.row}`;
  if (!picturesThere) return missing(name);
  const loading = lazy ? "lazy" : "eager";
  const image = el(
    "img",
    { loading, alt: altText(picture), decoding: "async", draggable: false, src: thumbUrl(picture.row) },
  );
  image.addEventListener("error", () => image.replaceWith(missing(name)));
  return image;
}

/** A linked thumbnail with a badge, for strips of a few pictures. */
export function linkedThumb(picture, badge = null) {
  return el(
    "a.shot",
    { href: `/picture/${picture.row}`, title: picture.path ?? `Picture ${picture.row}`, data: { row: picture.row } },
    thumb(picture, { lazy: true }),
    badge !== null && el("span.badge", {}, badge),
  );
}

export function missing(name) {
  return el("span.missing", { role: "img", "aria-label": `${name}: the picture is not there` }, el("span", {}, name));
}
