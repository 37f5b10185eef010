// Markdown as elements: what models write most of it. Every text becomes a text node and every link
// leads to http or https; images and HTML stay the text that they are. Each part of the text is read a
// bounded number of times, so that a hostile text of any form takes time linear in its length.

import { copyable } from "./dialogs.js";
import { externalLink, h } from "./dom.js";
import { tokens } from "./diff_lines.js";

const MAX_LENGTH = 50_000; // characters that are rendered; the rest is shown as plain text
const MAX_DEPTH = 6; // of lists and quotes in each other, and of emphasis; what is deeper is plain text
const MAX_COLUMNS = 50;
const MAX_HIGHLIGHTED = 20_000; // characters of a block of code
const MAX_ADDRESS = 2_000;

export function markdown(text) {
  const whole = String(text ?? "").replaceAll("\r\n", "\n");
  const shown = whole.length > MAX_LENGTH ? whole.slice(0, MAX_LENGTH) : whole;
  const rest = whole.length > shown.length ? h("pre", { class: "prose" }, whole.slice(shown.length)) : null;
  return h("div", { class: "markdown" }, blocks(shown.split("\n"), 0), rest);
}

// The text without its marks, for a line of a list.
export function plainText(text) {
  return markdown(String(text).slice(0, 2000)).textContent;
}

const FENCE = /^ {0,3}(`{3,}|~{3,})([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})(?:[ \t]+(.*))?$/;
const RULE = /^ {0,3}(?:(?:\*[ \t]*){3,}|(?:-[ \t]*){3,}|(?:_[ \t]*){3,})$/;
const QUOTE = /^ {0,3}> ?/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])(?:[ \t]+|$)/;
const DIVIDER = /^[ \t]*\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?[ \t]*$/;
const MAX_LINE = 5_000; // of a line that may be a heading, a rule or a part of a table

const short = (line) => line.length <= MAX_LINE;
const isBlank = (line) => line === undefined || (short(line) && !line.trim());
const isRule = (line) => short(line) && RULE.test(line);
const startsBlock = (line) => FENCE.test(line.slice(0, MAX_LINE)) || HEADING.test(line.slice(0, 8)) || isRule(line) || QUOTE.test(line) || ITEM.test(line.slice(0, 100));

function blocks(lines, depth) {
  const found = [];
  for (let at = 0; at < lines.length; ) {
    const [element, next] = block(lines, at, depth);
    if (element) found.push(element);
    at = next;
  }
  return found;
}

// Returns the element of the block that begins at a line, and where the next one begins.
function block(lines, at, depth) {
  const line = lines[at];
  if (isBlank(line)) return [null, at + 1];
  const fence = short(line) && FENCE.exec(line);
  if (fence) return codeBlock(lines, at, fence);
  const heading = short(line) && HEADING.exec(line);
  if (heading) return [h(`h${Math.min(6, heading[1].length + 2)}`, { class: `level-${heading[1].length}` }, inline((heading[2] ?? "").replace(/ #+ *$/, ""))), at + 1];
  if (isRule(line)) return [h("hr", {}), at + 1];
  if (depth < MAX_DEPTH && QUOTE.test(line)) return quote(lines, at, depth);
  if (depth < MAX_DEPTH && ITEM.test(line.slice(0, 100))) return list(lines, at, depth);
  if (isTable(lines, at)) return table(lines, at);
  return paragraph(lines, at);
}

function codeBlock(lines, at, [, marks, info]) {
  const closing = new RegExp(`^ {0,3}${marks[0]}{${marks.length},}[ \\t]*$`);
  let end = at + 1;
  while (end < lines.length && !(short(lines[end]) && closing.test(lines[end]))) end += 1;
  const text = lines.slice(at + 1, end).join("\n");
  return [codeElement(text, info.trim().split(/\s/)[0]), end + 1];
}

// `copied` is what its button copies, when only a part of the code is shown.
export function codeElement(text, language = "", copied = text) {
  const path = language ? `code.${language}` : "code.txt";
  const code = h("code", {}, text.length > MAX_HIGHLIGHTED ? text : highlight(text, path));
  return copyable(h("pre", { class: "code", tabIndex: 0, "data-language": language.slice(0, 30) }, code), copied, "the code");
}

function highlight(text, path) {
  return text.split("\n").flatMap((line, index) => [index ? "\n" : "", ...tokens(line, path).map((one) => (one.kind ? h("span", { class: `t-${one.kind}` }, one.text) : one.text))]);
}

function quote(lines, at, depth) {
  let end = at;
  while (end < lines.length && QUOTE.test(lines[end])) end += 1;
  const inner = lines.slice(at, end).map((line) => line.replace(QUOTE, ""));
  return [h("blockquote", {}, blocks(inner, depth + 1)), end];
}

function list(lines, at, depth) {
  const first = ITEM.exec(lines[at].slice(0, 100));
  const isOrdered = first[2].length > 1;
  const isSame = (found) => found && (found[2].length > 1) === isOrdered && found[1].length < first[1].length + 2;
  const items = [];
  let next = at;
  while (next < lines.length) {
    const found = ITEM.exec(lines[next].slice(0, 100));
    if (!isSame(found) || isRule(lines[next])) break;
    const [content, end] = itemLines(lines, next, found);
    items.push(item(content, depth));
    next = end;
  }
  const start = isOrdered ? Number.parseInt(first[2], 10) : 1;
  return [h(isOrdered ? "ol" : "ul", { start: isOrdered && start !== 1 ? String(start) : undefined }, items), next];
}

// The lines of an item without its mark: those that are indented below it, and lines that go on.
function itemLines(lines, at, found) {
  const indent = found[1].length + 2;
  const content = [lines[at].slice(found[0].length)];
  let end = at + 1;
  let isAfterBlank = false;
  for (; end < lines.length; end += 1) {
    const line = lines[end];
    if (isBlank(line)) {
      content.push("");
      isAfterBlank = true;
      continue;
    }
    const spaces = /^ {0,40}/.exec(line)[0].length;
    if (spaces >= indent) content.push(line.slice(Math.min(spaces, found[0].length || indent)));
    else if (isAfterBlank || startsBlock(line)) break;
    else content.push(line);
    isAfterBlank = false;
  }
  while (content.length > 1 && isBlank(content.at(-1))) content.pop();
  return [content, end];
}

function item(lines, depth) {
  const task = /^\[([ xX])\][ \t]+/.exec(lines[0]);
  if (task) lines[0] = lines[0].slice(task[0].length);
  const mark = task ? h("span", { class: "task-mark", role: "img", "aria-label": task[1] === " " ? "open" : "done" }, task[1] === " " ? "☐" : "☑") : null;
  const isTight = !lines.some(isBlank);
  const inner = blocks(lines, depth + 1).map((element) => (isTight && element.tagName === "P" ? [...element.childNodes] : element));
  return h("li", { class: task ? "task-item" : undefined }, mark, mark && " ", inner);
}

function isTable(lines, at) {
  const [head, divider] = [lines[at], lines[at + 1]];
  return divider !== undefined && short(head) && short(divider) && head.includes("|") && divider.includes("-") && DIVIDER.test(divider) && cellsOf(head).length === cellsOf(divider).length;
}

function cellsOf(line) {
  const inner = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  const found = [];
  let begin = 0;
  let isCode = false;
  for (let at = 0; at <= inner.length && found.length < MAX_COLUMNS; at += 1) {
    if (inner[at] === "\\") at += 1;
    else if (inner[at] === "`") isCode = !isCode && inner.indexOf("`", at + 1) > 0;
    if (at >= inner.length || (inner[at] === "|" && !isCode)) {
      found.push(inner.slice(begin, at).trim().replaceAll("\\|", "|"));
      begin = at + 1;
    }
  }
  return found;
}

function table(lines, at) {
  const head = cellsOf(lines[at]);
  const sides = cellsOf(lines[at + 1]).map((one) => (one.endsWith(":") ? (one.startsWith(":") ? "middle" : "end") : ""));
  let end = at + 2;
  while (end < lines.length && !isBlank(lines[end]) && short(lines[end]) && lines[end].includes("|")) end += 1;
  const row = (cells, tag) => h("tr", {}, cells.slice(0, head.length).map((cell, column) => h(tag, { class: sides[column] || undefined, scope: tag === "th" ? "col" : undefined }, inline(cell))));
  const body = lines.slice(at + 2, end).map((line) => row(cellsOf(line), "td"));
  return [h("div", { class: "table-box", tabIndex: 0, role: "region", "aria-label": "Table" }, h("table", {}, h("thead", {}, row(head, "th")), h("tbody", {}, body))), end];
}

function paragraph(lines, at) {
  let end = at + 1;
  while (end < lines.length && !isBlank(lines[end]) && !startsBlock(lines[end]) && !isTable(lines, end)) end += 1;
  return [h("p", {}, inline(lines.slice(at, end).join("\n"))), end];
}

// Code, links, emphasis and line breaks of one text. It is cut into pieces once; a stack of what was
// opened joins them to elements.
const PIECE = /\\[!-/:-@[-`{-~]|\\\n| {2,20}\n|`+|\*+|_+|~~|!?\[|\]|https?:\/\/[^\s<>"'`|\\^{}\[\]]{1,2000}/g;
const SPACE = /\s/;
const WORD = /[\p{L}\p{N}_]/u;

function inline(text) {
  const closers = codeClosers(text);
  const stack = [{ mark: "", nodes: [] }];
  const put = (node) => add(stack.at(-1).nodes, node);
  let at = 0;
  PIECE.lastIndex = 0;
  const pieces = new RegExp(PIECE);
  for (let match = pieces.exec(text); match; match = pieces.exec(text)) {
    const piece = match[0];
    if (match.index > at) put(text.slice(at, match.index));
    at = match.index + piece.length;
    if (piece[0] === "\\" && piece[1] !== "\n") put(piece.slice(1));
    else if (piece.endsWith("\n")) put(h("br", {}));
    else if (piece[0] === "`") at = code(text, match.index, piece.length, closers, put);
    else if (piece === "[" || piece === "![") open(stack, piece, piece);
    else if (piece === "]") at = closeLink(stack, text, at);
    else if (piece[0] === "h") at = bareLink(piece, match.index, put);
    else emphasis(stack, piece, text[match.index - 1], text[at]);
    pieces.lastIndex = at;
  }
  put(text.slice(at));
  while (stack.length > 1) flatten(stack);
  return stack[0].nodes;
}

// Texts next to each other are one node.
function add(nodes, node) {
  if (typeof node === "string" && typeof nodes.at(-1) === "string") nodes[nodes.length - 1] += node;
  else nodes.push(node);
}

function open(stack, mark, source) {
  if (stack.length > MAX_DEPTH * 2) add(stack.at(-1).nodes, source);
  else stack.push({ mark, source, nodes: [] });
}

// What was opened and never closed is text.
function flatten(stack) {
  const opened = stack.pop();
  const { nodes } = stack.at(-1);
  for (const node of [opened.source, ...opened.nodes]) add(nodes, node);
}

// For each run of backticks, where the next run of its length begins.
function codeClosers(text) {
  const found = new Map();
  const latest = new Map();
  const runs = [...text.matchAll(/`+/g)];
  for (const run of runs.reverse()) {
    found.set(run.index, latest.get(run[0].length));
    latest.set(run[0].length, run.index);
  }
  return found;
}

function code(text, at, length, closers, put) {
  const end = closers.get(at);
  if (end === undefined) {
    put(text.slice(at, at + length));
    return at + length;
  }
  const inner = text.slice(at + length, end).replaceAll("\n", " ");
  put(h("code", {}, /^ .*[^ ].* $/.test(inner.slice(0, 5000)) ? inner.slice(1, -1) : inner));
  return end + length;
}

const KINDS = { "**": "strong", "*": "em", __: "strong", _: "em", "~~": "s" };

function emphasis(stack, run, before, after) {
  const opens = after !== undefined && !SPACE.test(after) && !(run[0] === "_" && before !== undefined && WORD.test(before));
  const closes = before !== undefined && !SPACE.test(before) && !(run[0] === "_" && after !== undefined && WORD.test(after));
  let rest = run.length;
  if (rest > 3) {
    add(stack.at(-1).nodes, run);
    return;
  }
  while (closes && rest > 0) {
    const mark = nearest(stack, run[0], rest);
    if (mark === null) break;
    while (stack.at(-1).mark !== mark) flatten(stack);
    const { nodes } = stack.pop();
    stack.at(-1).nodes.push(h(KINDS[mark], {}, nodes));
    rest -= mark.length;
  }
  if (rest <= 0) return;
  const sizes = run[0] === "~" ? [2] : rest === 3 ? [2, 1] : [rest];
  for (const size of sizes) {
    const mark = run[0].repeat(size);
    if (opens) open(stack, mark, mark);
    else add(stack.at(-1).nodes, mark);
  }
}

// The mark that a run of this character closes: the innermost one, within the same link.
function nearest(stack, character, length) {
  for (let index = stack.length - 1; index > 0; index -= 1) {
    const { mark } = stack[index];
    if (mark[0] === "[" || mark[0] === "!") return null;
    if (mark[0] === character && mark.length <= length) return mark;
  }
  return null;
}

function closeLink(stack, text, at) {
  let index = stack.length - 1;
  while (index > 0 && !stack[index].mark.includes("[")) index -= 1;
  if (index === 0) {
    add(stack.at(-1).nodes, "]");
    return at;
  }
  while (stack.length - 1 > index) flatten(stack);
  const target = text[at] === "(" ? /^\(<?([^\s()<>]{0,2000}(?:\([^\s()<>]{0,200}\)[^\s()<>]{0,200})?)>?(?:[ \n]{1,3}"[^"\n]{0,500}")?\)/.exec(text.slice(at, at + MAX_ADDRESS + 1000)) : null;
  const opened = stack.at(-1);
  if (!target || opened.mark === "![" || opened.nodes.some((node) => node.tagName === "A")) {
    flatten(stack);
    add(stack.at(-1).nodes, "]");
    return at;
  }
  stack.pop();
  const link = foreign(target[1], opened.nodes);
  for (const node of link ? [link] : ["[", ...opened.nodes, "]", target[0]]) add(stack.at(-1).nodes, node);
  return at + target[0].length;
}

function bareLink(piece, begin, put) {
  const address = piece.replace(/[.,;:!?)\]*_~]{1,50}$/, (end) => (end.startsWith(")") && piece.includes("(") ? ")" : ""));
  put(foreign(address, [address]) ?? address);
  return begin + address.length;
}

// A link shows where it leads when its text does not say so. An address with a name before its host,
// and one that is no address, stay text.
function foreign(address, label) {
  if (address.length > MAX_ADDRESS || !URL.canParse(address)) return null;
  const url = new URL(address);
  if (url.username || url.password) return null;
  const link = externalLink(label, address);
  if (!link) return null;
  link.title = url.href;
  const says = link.textContent.trim();
  if (!(says === address || says === url.host)) link.append(h("span", { class: "host" }, ` (${url.host})`));
  return link;
}
