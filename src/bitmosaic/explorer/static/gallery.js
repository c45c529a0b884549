// A grid of square tiles. Only the rows near the visible part of the page are in the DOM.

import { el } from "./dom.js";
import { altText, thumb } from "./thumbs.js";

const GAP = 4;
const HEADING = 44; // px, of a section with a title
const LONG_BADGE = 120; // px, the smallest tile with a long badge
const MAX_HEIGHT = 15_000_000; // px; browsers cannot draw much taller pages
const SETTLE = 50; // ms without scrolling before pages are fetched, so that dragging the scroll bar does not fetch all of them

export class Gallery {
  /**
   * list: PagedList · sections: [{from, to, title}] · badge: image -> [text, more text for large tiles]
   * onselect: called when `selected` (Map row -> image) changes · signal: ends the gallery
   */
  constructor({ list, sections, badge, onselect, size, signal }) {
    Object.assign(this, { list, badge, onselect, size });
    this.sections = sections ?? [{ from: 0, to: list.total, title: null }];
    this.selected = new Map();
    this.selecting = false;
    this.anchor = 0;
    this.tiles = new Map(); // index -> element
    this.element = el(
      "div.gallery",
      {
        testid: "gallery",
        role: "list",
        onclick: (event) => this.#click(event),
        onkeydown: (event) => this.#key(event),
      },
    );
    list.arrived = () => this.#fill();
    addEventListener("scroll", () => this.#soon(), { passive: true, signal });
    const observer = new ResizeObserver(() => this.#layOut());
    observer.observe(this.element);
    signal.addEventListener("abort", () => observer.disconnect());
  }

  resize(size) {
    const middle = this.#indexAt(innerHeight / 3 - this.element.getBoundingClientRect().top);
    const before = this.#place(middle).y;
    this.size = size;
    this.#layOut();
    if (this.element.getBoundingClientRect().top < 0) scrollBy(0, this.#place(middle).y - before);
  }

  choose(images) {
    this.selected = new Map(images.map((image) => [image.row, image]));
    this.#marksChanged();
  }

  // ---- geometry

  #layOut() {
    const width = this.element.clientWidth;
    if (!width) return;
    this.columns = Math.max(3, Math.floor((width + GAP) / (this.size + GAP)));
    this.side = (width - GAP * (this.columns - 1)) / this.columns;
    let y = 0;
    for (const section of this.sections) {
      section.top = y + (section.title ? HEADING : 0);
      y = section.top + Math.ceil((section.to - section.from) / this.columns) * (this.side + GAP);
    }
    this.element.classList.toggle("cramped", this.side < LONG_BADGE);
    this.element.style.setProperty("--side", `${this.side}px`);
    this.element.style.height = `${Math.min(y, MAX_HEIGHT)}px`;
    const titles = this.sections.filter((section) => section.title && section.to > section.from);
    this.element.replaceChildren(
      ...titles.map((section) =>
        el("p.divider", { style: { transform: `translateY(${section.top - HEADING}px)` } }, section.title),
      ),
    );
    this.tiles.clear();
    this.#draw();
  }

  #place(index) {
    const section = this.sections.find(({ to }) => index < to) ?? this.sections.at(-1);
    const line = Math.floor((index - section.from) / this.columns);
    const column = (index - section.from) % this.columns;
    return { x: column * (this.side + GAP), y: section.top + line * (this.side + GAP) };
  }

  /** The first index of the line at this y coordinate. */
  #indexAt(y) {
    let found = 0;
    for (const { from, to, top } of this.sections) {
      if (to === from || y < top) continue;
      const line = Math.floor((y - top) / (this.side + GAP));
      found = Math.min(to - 1, from + line * this.columns);
    }
    return found;
  }

  // ---- drawing

  #soon() {
    this.frame ??= requestAnimationFrame(() => {
      this.frame = undefined;
      this.#draw();
    });
  }

  #draw() {
    const { top } = this.element.getBoundingClientRect();
    if (!this.list.total || !this.side || !this.element.isConnected) return;
    const first = this.#indexAt(-top - innerHeight / 2);
    const last = Math.min(this.list.total - 1, this.#indexAt(-top + innerHeight * 1.5) + this.columns - 1);
    for (const [index, tile] of this.tiles) {
      if ((index < first || index > last) && !tile.contains(document.activeElement)) this.#drop(index, tile);
    }
    const fresh = document.createDocumentFragment();
    for (let index = first; index <= last; index++) if (!this.tiles.has(index)) fresh.append(this.#tile(index));
    this.element.append(fresh);
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.list.want(first, last), this.started ? SETTLE : 0);
    this.started = true;
  }

  #drop(index, tile) {
    tile.querySelector("img")?.removeAttribute("src"); // cancels the download
    tile.remove();
    this.tiles.delete(index);
  }

  #tile(index) {
    const { x, y } = this.#place(index);
    const tile = el(
      "div.tile",
      { role: "listitem", data: { index }, style: { transform: `translate(${x}px, ${y}px)` } },
    );
    this.tiles.set(index, tile);
    this.#fillTile(tile, index);
    return tile;
  }

  #fill() {
    for (const [index, tile] of this.tiles) if (!tile.dataset.row) this.#fillTile(tile, index);
  }

  #fillTile(tile, index) {
    const image = this.list.at(index);
    if (!image) return;
    tile.dataset.row = image.row;
    tile.dataset.testid = "tile";
    const [text, more] = this.badge(image);
    tile.append(
      el(
        "a",
        { href: `/image/${image.row}`, title: image.path ?? "", tabIndex: index === this.anchor ? 0 : -1 },
        thumb(image),
      ),
      el("button.check", { type: "button", tabIndex: -1, "aria-label": `Select ${altText(image)}` }, "✓"),
      el("span.badge", {}, text, more && el("span.more", {}, ` · ${more}`)),
    );
    this.#mark(tile, image.row);
  }

  #mark(tile, row) {
    const chosen = this.selected.has(row);
    tile.classList.toggle("chosen", chosen);
    tile.querySelector(".check").setAttribute("aria-pressed", chosen);
  }

  // ---- selection

  #click(event) {
    const tile = event.target.closest(".tile");
    if (!tile?.dataset.row) return;
    const index = Number(tile.dataset.index);
    const toggles = this.selecting || event.ctrlKey || event.metaKey || event.target.closest(".check");
    if (!event.shiftKey && !toggles) return;
    event.preventDefault();
    if (event.shiftKey) this.#chooseTo(index);
    else this.#toggle(index);
  }

  #toggle(index) {
    const image = this.list.at(index);
    if (!this.selected.delete(image.row)) this.selected.set(image.row, image);
    this.#focusable(index);
    this.#marksChanged();
  }

  async #chooseTo(index) {
    const [first, last] = [this.anchor, index].sort((a, b) => a - b);
    for (const image of await this.list.between(first, last)) this.selected.set(image.row, image);
    this.#focusable(index);
    this.#marksChanged();
  }

  #marksChanged() {
    for (const tile of this.tiles.values()) if (tile.dataset.row) this.#mark(tile, Number(tile.dataset.row));
    this.onselect?.(this.selected);
  }

  // ---- keyboard

  #key(event) {
    const index = Number(event.target.closest(".tile")?.dataset.index);
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -this.columns, ArrowDown: this.columns };
    if (Number.isNaN(index) || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "x") this.#toggle(index);
    else if (event.key in steps) this.#goTo(index + steps[event.key]);
    else return;
    event.preventDefault();
  }

  /** Move the focus from the focused image to another one, or to the image that had the focus last. */
  step(by) {
    const tile = document.activeElement?.closest(".tile");
    return this.element.isConnected && this.#goTo(tile ? Number(tile.dataset.index) + by : this.anchor);
  }

  #goTo(index) {
    if (index < 0 || index >= this.list.total) return;
    const y = this.#place(index).y + this.element.getBoundingClientRect().top;
    if (y < 80) scrollBy(0, y - 80);
    else if (y + this.side > innerHeight - 80) scrollBy(0, y + this.side - innerHeight + 80);
    this.#draw();
    this.#focusable(index);
    this.tiles.get(index)?.querySelector("a")?.focus({ preventScroll: true });
  }

  /** Only one tile is in the tab order. */
  #focusable(index) {
    this.tiles.get(this.anchor)?.querySelector("a")?.setAttribute("tabindex", -1);
    this.anchor = index;
    this.tiles.get(index)?.querySelector("a")?.setAttribute("tabindex", 0);
  }
}
