// Functions to build elements. Data becomes text nodes and properties, never markup.

const SVG = "http://www.w3.org/2000/svg";

/** el("a.card", {href: "/", testid: "card", style: {"--share": 0.5}, onclick: open}, "text", otherElement) */
export function el(tag, props = {}, ...children) {
  const [name, ...classes] = tag.split(".");
  const node = document.createElement(name);
  if (classes.length) node.className = classes.join(" ");
  for (const [key, value] of Object.entries(props)) set(node, key, value);
  node.append(...shown(children));
  return node;
}

/** The same for SVG, which has attributes only. */
export function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...shown(children));
  return node;
}

const waiting = new WeakMap();
const observer = new IntersectionObserver(
  (entries) => {
    for (const { isIntersecting, target } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      waiting.get(target)();
    }
  },
  { rootMargin: "400px" },
);

/** Call `action` once, when the element is near the visible part of the page. */
export function whenNear(node, action) {
  waiting.set(node, action);
  observer.observe(node);
}

function set(node, key, value) {
  if (value === undefined || value === null) return;
  if (key === "testid") node.dataset.testid = value;
  else if (key === "data") Object.assign(node.dataset, value);
  else if (key === "style") for (const [name, setting] of Object.entries(value)) node.style.setProperty(name, setting);
  else if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
  else if (key in node && key !== "list") node[key] = value;
  else node.setAttribute(key, value);
}

function shown(children) {
  return children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
}
