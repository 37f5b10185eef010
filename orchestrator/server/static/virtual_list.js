// A list of any length with rows of one height, of which only the visible ones exist.

import { h } from "./dom.js";

const OVERSCAN = 8;

export class VirtualList {
  // `make(item)` returns a row, `update(row, item, index)` shows an item in it.
  // `role` is that of the element whose rows they are; the one between has none of its own.
  constructor({ label, rowHeight, keyOf, make, update, onEnd, role = "rowgroup" }) {
    this.rowHeight = rowHeight;
    this.keyOf = keyOf;
    this.make = make;
    this.update = update;
    this.onEnd = onEnd ?? (() => {});
    this.items = [];
    this.rows = new Map();
    this.active = 0;
    this.inner = h("div", { class: "virtual-inner", role: "presentation" });
    this.element = h("div", { class: "virtual", tabIndex: -1, role, "aria-label": label }, this.inner);
    this.element.addEventListener("scroll", () => this.schedule(), { passive: true });
    this.element.addEventListener("keydown", (event) => this.onKey(event));
    this.observer = new ResizeObserver(() => this.schedule());
    this.observer.observe(this.element);
  }

  stop() {
    this.observer.disconnect();
  }

  setItems(items) {
    this.items = items;
    this.active = Math.max(0, Math.min(this.active, items.length - 1));
    this.render();
  }

  schedule() {
    if (this.isScheduled) return;
    this.isScheduled = true;
    requestAnimationFrame(() => {
      this.isScheduled = false;
      this.render();
    });
  }

  range() {
    const height = this.rowHeight();
    const first = Math.floor(this.element.scrollTop / height) - OVERSCAN;
    const count = Math.ceil(this.element.clientHeight / height) + 2 * OVERSCAN;
    return [Math.max(0, first), Math.min(this.items.length, Math.max(0, first) + count)];
  }

  render() {
    const height = this.rowHeight();
    this.inner.style.height = `${this.items.length * height}px`;
    const [begin, end] = this.range();
    const shown = new Set();
    for (let index = begin; index < end; index += 1) shown.add(this.keyOf(this.items[index], index));
    for (const [key, row] of this.rows) {
      if (shown.has(key) || row.contains(document.activeElement)) continue;
      row.remove();
      this.rows.delete(key);
    }
    let place = this.inner.firstElementChild; // the order of rows is also that of reading
    for (let index = begin; index < end; index += 1) {
      const row = this.show(this.items[index], index, height);
      if (row === place) place = place.nextElementSibling;
      else this.inner.insertBefore(row, place);
    }
    if (end >= this.items.length) this.onEnd();
  }

  show(item, index, height) {
    const key = this.keyOf(item, index);
    let row = this.rows.get(key);
    if (row === undefined) {
      row = this.make(item);
      this.rows.set(key, row);
    }
    if (row.shownAt !== index * height) {
      row.shownAt = index * height;
      row.style.transform = `translateY(${row.shownAt}px)`;
    }
    if (row.shownItem !== item || row.shownIndex !== index) {
      row.shownItem = item;
      row.shownIndex = index;
      this.update(row, item, index);
    }
    const { focusable } = row;
    if (focusable) focusable.tabIndex = index === this.active ? 0 : -1;
    return row;
  }

  focus(index) {
    if (!this.items.length) return;
    this.active = Math.max(0, Math.min(index, this.items.length - 1));
    const height = this.rowHeight();
    const top = this.active * height;
    const { scrollTop, clientHeight } = this.element;
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + height > scrollTop + clientHeight) this.element.scrollTop = top + height - clientHeight;
    this.render();
    this.rows.get(this.keyOf(this.items[this.active], this.active))?.focusable?.focus({ preventScroll: true });
  }

  onKey(event) {
    if (event.altKey || event.ctrlKey || event.metaKey) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / this.rowHeight()) - 1);
    const steps = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: page, PageUp: -page };
    const focused = [...this.rows.values()].find((row) => row.contains(document.activeElement));
    if (!focused?.focusable) return;
    this.active = focused.shownIndex;
    if (event.key in steps) this.focus(this.active + steps[event.key]);
    else if (event.key === "Home") this.focus(0);
    else if (event.key === "End") this.focus(this.items.length - 1);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }
}
