// A long list of pictures that is fetched page by page, where it is looked at.

import { say } from "./message.js";

export class Pages {
  /** `load(start, count)` -> the pictures [{row, path, …}] of one page. */
  constructor(load, size, total) {
    this.load = load;
    this.size = size;
    this.total = total;
    this.pages = new Map();
    this.arrived = () => {};
  }

  /** A list that is there already. */
  static of(pictures) {
    const list = new Pages(null, Math.max(1, pictures.length), pictures.length);
    list.pages.set(0, pictures);
    return list;
  }

  /** The picture at an index, or undefined while it is not here. */
  at(index) {
    return this.pages.get(Math.floor(index / this.size))?.[index % this.size];
  }

  /** Fetch what is missing between two indexes (both included). */
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
    this.pages.set(page, promise); // a promise has no indexes, so at() answers undefined until it is replaced
    try {
      this.pages.set(page, await promise);
      this.arrived();
    } catch (problem) {
      this.pages.delete(page);
      if (problem.name !== "AbortError") say(problem.message, { error: true });
    }
  }
}
