// A long list of images, fetched page by page when a part of it becomes visible.

import { showMessage } from "./message.js";

export class PagedList {
  /** `load(start, count)` -> the images [{row, path, …}] of one page. */
  constructor(load, size, total) {
    this.load = load;
    this.size = size;
    this.total = total;
    this.pages = new Map();
    this.arrived = () => {};
  }

  /** A list that needs no fetching. */
  static of(images) {
    const list = new PagedList(null, Math.max(1, images.length), images.length);
    list.pages.set(0, images);
    return list;
  }

  /** The image at an index; undefined if not fetched yet. */
  at(index) {
    return this.pages.get(Math.floor(index / this.size))?.[index % this.size];
  }

  /** Fetch the missing pages from index `first` to `last`, inclusive. */
  async want(first, last) {
    const numbers = [];
    for (let page = Math.floor(first / this.size); page <= Math.floor(last / this.size); page++) numbers.push(page);
    await Promise.all(numbers.map((page) => this.#fetch(page)));
  }

  async between(first, last) {
    await this.want(first, last);
    return Array.from({ length: last - first + 1 }, (_, i) => this.at(first + i)).filter(Boolean);
  }

  async #fetch(page) {
    if (this.pages.has(page)) return void (await this.pages.get(page));
    const promise = this.load(page * this.size, this.size);
    this.pages.set(page, promise); // a promise has no indexes, so at() returns undefined until it is replaced
    try {
      this.pages.set(page, await promise);
      this.arrived();
    } catch (problem) {
      this.pages.delete(page);
      if (problem.name !== "AbortError") showMessage(problem.message, { error: true });
    }
  }
}
