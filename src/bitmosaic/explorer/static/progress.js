// A line that tells how far the server is with something that takes a while.

import { el } from "./dom.js";
import { whole } from "./words.js";

/** It takes the place of the page's content; `note` is added to every stage. */
export function progressLine(place, note = "") {
  const words = el("p", {});
  const meter = el("progress", { max: 1, "aria-label": "Progress" });
  const line = el("div.progress", { role: "status" }, words, meter);
  return {
    show({ stage, done, total }) {
      if (!line.isConnected) place.replaceChildren(line);
      const counted = done ? `: ${whole(done)} of ${whole(total)}` : "";
      words.textContent = `${stage[0].toUpperCase()}${stage.slice(1)}${counted}. ${note}`;
      if (done) meter.value = done / total;
      else meter.removeAttribute("value"); // on the move, with no end in sight
    },
  };
}
