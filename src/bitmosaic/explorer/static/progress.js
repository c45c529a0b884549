// A line that tells how far the server is with something that is computed once.

import { el } from "./dom.js";
import { whole } from "./words.js";

export function progressLine(place) {
  const words = el("p", {});
  const meter = el("progress", { max: 1, "aria-label": "Progress" });
  const line = el("div.progress", { role: "status" }, words, meter);
  return {
    show({ stage, done, total }) {
      if (!line.isConnected) place.replaceChildren(line);
      const counted = total ? `: ${whole(done)} of ${whole(total)}` : "";
      words.textContent = `${stage[0].toUpperCase()}${stage.slice(1)}${counted}. This is done once and kept in the run.`;
      if (total) meter.value = done / total;
    },
  };
}
