// The progress of a slow computation on the server.

import { el } from "./dom.js";
import { whole } from "./format.js";

/** Replaces the content of the page by a title, the stage of the computation, and a note. */
export function progressLine(place, title, note) {
  const words = el("p", {});
  const meter = el("progress", { max: 1, "aria-label": "Progress" });
  const line = el("div.progress", { role: "status" }, el("h1", {}, title), words, meter, el("p.muted", {}, note));
  return {
    show({ stage, done, total }) {
      if (!line.isConnected) place.replaceChildren(line);
      const known = done > 0 && total > 0; // a search through folders has no total
      const counted = known ? `: ${whole(done)} of ${whole(total)}` : done ? `: ${whole(done)}` : "";
      words.textContent = `${stage[0].toUpperCase()}${stage.slice(1)}${counted}`;
      if (known) meter.value = done / total;
      else meter.removeAttribute("value"); // indeterminate
    },
  };
}
