// Groups of points on the map, their colors, and the legend that shows and hides them.

import { el } from "./dom.js";
import { clusterTitle, count, whole } from "./format.js";

// Readable in both themes. Each of the largest groups has its own color; all others share REST.
const COLORS = [
  "#3b82d6", "#e5762f", "#3da35d", "#d8475a", "#8a63d2", "#96704f", "#d667a8", "#1fa5a5", "#b8a11f", "#6f87a8",
  "#5ab4e8", "#f2a25c", "#7cc576", "#f08a8a", "#b79cf0", "#c4a182", "#f0a3cf", "#6fd0c8", "#dccb5c", "#9db3cc",
];
const REST = "#8b8f96";

/** [{title, color, members: indexes into the map}], the largest first. */
export function groupsOf(map, by, names) {
  const keys = by === "label" ? map.labels : map.clusters;
  const members = new Map();
  keys.forEach((key, i) => members.get(key)?.push(i) ?? members.set(key, [i]));
  const title = (key) => (by === "label" ? key : clusterTitle(names.get(key) ?? { number: key }));
  const sorted = [...members].sort(([a, inA], [b, inB]) => inB.length - inA.length || (a < b ? -1 : 1));
  const groups = sorted.slice(0, COLORS.length).map(([key, inside], i) =>
    ({ title: title(key), color: COLORS[i], members: inside }),
  );
  const rest = sorted.slice(COLORS.length);
  if (rest.length) groups.push({
    title: count(rest.length, "smaller group"),
    color: REST,
    members: rest.flatMap(([, inside]) => inside),
  });
  return groups;
}

/** `onchange` gets a list of booleans, one for each group. */
export function legend(groups, onchange) {
  const shown = groups.map(() => true);
  const buttons = groups.map(({ title, color, members }, i) =>
    el(
      "button",
      { type: "button", "aria-pressed": true, title: `Show or hide ${title}`, onclick: () => toggle(i) },
      el("span.swatch", { style: { background: color } }),
      el("span.legend-name", {}, title),
      el("span.muted", {}, whole(members.length)),
    ),
  );
  const toggle = (i) => {
    shown[i] = !shown[i];
    buttons[i].setAttribute("aria-pressed", shown[i]);
    onchange(shown);
  };
  return el("div.legend", { role: "group", "aria-label": "Legend" }, buttons);
}
