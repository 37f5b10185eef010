// What a job has changed: its files, the difference of each, and both sides of conflicts.

import { get, Latest } from "./api.js";
import { empty, fill, h } from "./dom.js";
import { MAX_CHARACTERS, parse, pieces, sideBySide } from "./diff_lines.js";
import { bytes, number, visible } from "./text.js";
import { VirtualList } from "./virtual_list.js";

const LINE_HEIGHT = 20;
const MAX_FILES = 1000;
const SIGNS = { add: "+", del: "−" };

export class ChangesView {
  constructor(app, jobId) {
    this.app = app;
    this.jobId = jobId;
    this.latest = new Latest();
    this.latestConflicts = new Latest();
    this.isSplit = matchMedia("(min-width: 1100px)").matches;
    this.files = h("ul", { class: "files" });
    this.shown = h("div", { class: "shown-file" });
    this.conflicts = h("div", {});
    this.element = h("div", { class: "changes" }, this.conflicts, (this.panes = h("div", { class: "panes" })));
  }

  stop() {
    this.latest.stop();
    this.latestConflicts.stop();
    this.list?.stop();
  }

  base() {
    return `/v1/jobs/${encodeURIComponent(this.jobId)}`;
  }

  async load(job, path) {
    this.loadConflicts();
    if (!job.result) {
      fill(this.panes, empty("The changes are known when the job has ended."));
      return;
    }
    const found = await this.latest.read((signal) => get(`${this.base()}/files`, {}, { signal }));
    if (!found) return;
    if (!found.items.length) {
      fill(this.panes, empty("This job changed nothing."));
      return;
    }
    this.items = found.items;
    this.buttons = new Map(found.items.slice(0, MAX_FILES).map((file) => [file.path, this.fileButton(file)]));
    const added = found.items.reduce((sum, file) => sum + file.lines_added, 0);
    const removed = found.items.reduce((sum, file) => sum + file.lines_removed, 0);
    fill(this.files, [...this.buttons.values()].map((button) => h("li", {}, button)));
    const more = found.items.length - this.buttons.size;
    const notes = [more > 0 && `${number(more)} more files are in the patch.`, ...found.skipped.slice(0, 20).map((file) => `Not included: ${file.path} (${file.reason})`)];
    fill(
      this.panes,
      h(
        "nav",
        { class: "file-pane", "aria-label": "Changed files" },
        h("p", { class: "muted" }, `${number(found.items.length)} ${found.items.length === 1 ? "file" : "files"} `, h("span", { class: "plus" }, `+${number(added)}`), " ", h("span", { class: "minus" }, `−${number(removed)}`), " ", h("a", { href: `${this.base()}/patch`, download: `${this.jobId}.patch` }, "Patch")),
        this.files,
        notes.filter(Boolean).map((note) => h("p", { class: "muted" }, note)),
      ),
      this.shown,
    );
    const wanted = found.items.find((file) => file.path === path) ?? found.items[0];
    await this.open(wanted);
  }

  fileButton(file) {
    const lines = file.binary ? h("span", { class: "muted" }, "binary") : [h("span", { class: "plus" }, `+${number(file.lines_added)}`), h("span", { class: "minus" }, `−${number(file.lines_removed)}`)];
    const letter = { added: "A", modified: "M", deleted: "D", renamed: "R", mode: "X" }[file.change] ?? "?";
    return h("button", { type: "button", class: "file", title: `${file.path} (${file.change})`, on: { click: () => this.open(file) } }, h("span", { class: `change change-${letter}`, "aria-label": file.change }, letter), h("span", { class: "path" }, h("bdi", {}, file.path)), lines);
  }

  async open(file) {
    for (const [path, button] of this.buttons) button.setAttribute("aria-current", String(path === file.path));
    const answer = await this.latest.read((signal) => get(`${this.base()}/files/patch`, { path: file.path }, { signal }));
    if (!answer) return;
    this.file = file;
    this.lines = parse(answer.patch);
    this.isTruncated = answer.truncated;
    this.showLines();
  }

  showLines() {
    const { file, lines } = this;
    this.list?.stop();
    const from = file.from_path ? `${file.from_path} → ` : "";
    const toggle = h("button", { type: "button", class: "chip split-toggle", "aria-pressed": String(this.isSplit) }, "Side by side");
    toggle.addEventListener("click", () => {
      this.isSplit = !this.isSplit;
      this.showLines();
    });
    const shown = lines.some((line) => line.kind !== "meta") ? this.diff(lines, file.path) : empty(file.binary ? `A binary file of ${bytes(file.size_bytes)}.` : "No lines differ: only its name or mode, or it is empty.");
    const metas = lines.filter((line) => line.kind === "meta" && !line.text.startsWith("\\")).slice(0, 8);
    fill(
      this.shown,
      h("header", { class: "file-head" }, h("h3", {}, h("bdi", {}, from + file.path)), toggle),
      file.binary ? null : metas.map((line) => h("p", { class: "muted" }, line.text)),
      this.isTruncated && h("p", { class: "hint" }, "This difference is cut; the patch has all of it."),
      shown,
    );
    this.list?.render();
  }

  diff(lines, path) {
    const body = lines.filter((line) => line.kind !== "meta" || line.text.startsWith("\\"));
    this.list = diffList(body, path, this.isSplit);
    return this.list.element;
  }

  async loadConflicts() {
    const found = await this.latestConflicts.read((signal) => get(`${this.base()}/conflicts`, {}, { signal }));
    if (!found) return;
    const { items } = found;
    if (!items.length) {
      fill(this.conflicts);
      return;
    }
    fill(
      this.conflicts,
      h("h3", {}, `Conflicts (${items.length})`),
      items.map((one) => h("details", { class: "conflict", open: items.length < 4 }, h("summary", {}, h("strong", {}, h("bdi", {}, one.path || "All of its changes")), ` — ${one.reason}`), h("p", {}, "Changed by ", h("a", { href: `?${new URLSearchParams({ job: one.job_id, tab: "changes" })}` }, `task ${one.job_id.slice(-8)}`)), one.diff ? bothSides(one) : null)),
    );
  }
}

function bothSides(conflict) {
  const names = /^--- (.*)\n\+\+\+ (.*)\n/.exec(conflict.diff);
  const rows = sideBySide(parse(conflict.diff)).filter((row) => row.left?.kind !== "meta");
  const side = (name, label) => {
    const lines = rows.map((row) => h("div", { class: "conflict-line" }, ...lineOf(row[name], conflict.path)));
    return h("div", { class: "side" }, h("h4", {}, label), h("div", { class: "conflict-lines", tabIndex: 0, role: "region", "aria-label": label }, lines));
  };
  if (!rows.length) return h("pre", {}, conflict.diff);
  return h("div", { class: "sides" }, side("left", names?.[1] ?? "before"), side("right", names?.[2] ?? "task"));
}

// Only the visible lines exist, so the length of a difference does not matter.
export function diffList(lines, path, isSplit) {
  const items = isSplit ? sideBySide(lines) : lines;
  const list = new VirtualList({
    label: `Difference of ${path}`,
    rowHeight: () => LINE_HEIGHT,
    keyOf: (_, index) => index,
    make: () => h("div", { class: isSplit ? "diff-row split" : "diff-row" }),
    update: (row, item) => fill(row, isSplit ? splitRow(item, path) : lineOf(item, path, true)),
    role: "region",
  });
  list.element.classList.add("diff");
  if (isSplit) list.element.classList.add("side-by-side");
  list.element.tabIndex = 0;
  const longest = lines.reduce((most, line) => Math.max(most, line.text.length), 0);
  const width = Math.min(longest, MAX_CHARACTERS + 40) + 14;
  // Both sides stay where they are, each in its half, and their texts move together.
  list.inner.style.minWidth = isSplit ? `max(100%, calc(50% + ${width}ch))` : `max(100%, ${width}ch)`;
  if (isSplit) list.element.addEventListener("scroll", () => list.element.style.setProperty("--shift", `${list.element.scrollLeft}px`), { passive: true });
  list.element.style.height = `${Math.min(items.length * LINE_HEIGHT + 14, 4000)}px`;
  list.items = items;
  return list;
}

function splitRow(row, path) {
  const half = (line, number) => h("div", { class: `half ${line?.kind ?? "none"}` }, line ? cells(line, path, [number]) : []);
  return [half(row.left, row.left?.before), half(row.right, row.right?.after)];
}

function lineOf(line, path, isNumbered = false) {
  if (!line) return [h("div", { class: "half none" }, " ")];
  return [h("div", { class: `half ${line.kind}` }, cells(line, path, isNumbered ? [line.before, line.after] : []))];
}

function cells(line, path, numbers) {
  const code = h("code", {});
  const more = line.text.length - MAX_CHARACTERS;
  const text = visible(more > 0 ? line.text.slice(0, MAX_CHARACTERS) : line.text);
  if (line.kind === "hunk" || line.kind === "meta") code.append(text);
  else fill(code, marked(line, text, path));
  if (more > 0) code.append(h("span", { class: "muted" }, ` … (${number(more)} more characters)`));
  return [...numbers.map((one) => h("span", { class: "number", "aria-hidden": "true" }, one ?? "")), h("span", { class: "sign" }, SIGNS[line.kind] ?? ""), h("span", { class: "clip" }, code)];
}

// The changed words of a line and what is between them.
export function marked(line, text, path) {
  return pieces(line, text, path).map(({ text: part, kind, isChanged }) => {
    const shown = kind ? h("span", { class: `t-${kind}` }, part) : part;
    return isChanged ? h("mark", {}, shown) : shown;
  });
}
