// A patch as lines to show: numbered, with what changed within a line, and simple highlighting.

const MAX_LINES = 200_000; // of one file; the service cuts at 4 MiB
export const MAX_CHARACTERS = 1_000; // of a shown line

export function parse(patch) {
  const lines = [];
  let before = 0;
  let after = 0;
  let isBody = false;
  for (const text of patch.split("\n", MAX_LINES)) {
    const head = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/.exec(text);
    if (head) {
      [before, after, isBody] = [Number(head[1]), Number(head[2]), true];
      lines.push({ kind: "hunk", text });
    } else if (!isBody) {
      if (isTelling(text)) lines.push({ kind: "meta", text });
    } else if (text.startsWith("+")) lines.push({ kind: "add", after: after++, text: text.slice(1) });
    else if (text.startsWith("-")) lines.push({ kind: "del", before: before++, text: text.slice(1) });
    else if (text.startsWith("\\")) lines.push({ kind: "meta", text });
    else if (text.startsWith(" ")) lines.push({ kind: "same", before: before++, after: after++, text: text.slice(1) });
  }
  pairUp(lines);
  return lines;
}

// The names are in the list of files already.
function isTelling(text) {
  return text && !/^(diff --git|index |--- |\+\+\+ )/.test(text);
}

// Lines that replace each other know their partner: what differs in them is marked.
function pairUp(lines) {
  for (let index = 0; index < lines.length; ) {
    if (lines[index].kind !== "del") {
      index += 1;
      continue;
    }
    let added = index;
    while (lines[added]?.kind === "del") added += 1;
    let end = added;
    while (lines[end]?.kind === "add") end += 1;
    partner(lines.slice(index, added), lines.slice(added, end));
    index = end;
  }
}

// Removed lines and those that took their place, as lines of a difference.
export function pairOfLines(before, after) {
  const removed = before.map((text) => ({ kind: "del", text }));
  const added = after.map((text) => ({ kind: "add", text }));
  partner(removed, added);
  return [...removed, ...added];
}

const MAX_PAIRS = 2_500; // compared pairs of one block of changed lines

// The pairs, in their order, that are most alike together.
function partner(removed, added) {
  const [rows, columns] = [removed.length, added.length];
  if (!rows || !columns) return;
  if (rows * columns > MAX_PAIRS) {
    if (rows === columns) removed.forEach((line, index) => join(line, added[index]));
    return;
  }
  const best = Array.from({ length: rows + 1 }, () => new Float64Array(columns + 1));
  const alike = removed.map((one) => added.map((other) => likeness(one.text, other.text)));
  for (let row = rows - 1; row >= 0; row -= 1) {
    for (let column = columns - 1; column >= 0; column -= 1) best[row][column] = Math.max(best[row + 1][column], best[row][column + 1], best[row + 1][column + 1] + alike[row][column]);
  }
  for (let row = 0, column = 0; row < rows && column < columns; ) {
    if (alike[row][column] > 0 && best[row][column] === best[row + 1][column + 1] + alike[row][column]) join(removed[row++], added[column++]);
    else if (best[row][column] === best[row + 1][column]) row += 1;
    else column += 1;
  }
}

function join(one, other) {
  one.partner = other;
  other.partner = one;
}

// The share of two lines that is equal at their begin and end; 0 when they have little in common.
function likeness(one, other) {
  const [begin, end] = sameEnds(one.slice(0, MAX_CHARACTERS), other.slice(0, MAX_CHARACTERS));
  const share = (begin + end) / Math.max(1, Math.min(MAX_CHARACTERS, one.length), Math.min(MAX_CHARACTERS, other.length));
  return share < 0.2 ? 0 : share;
}

// How much of two sequences is equal at their begin and at their end.
function sameEnds(one, other) {
  const most = Math.min(one.length, other.length);
  let begin = 0;
  while (begin < most && one[begin] === other[begin]) begin += 1;
  let end = 0;
  while (end < most - begin && one[one.length - 1 - end] === other[other.length - 1 - end]) end += 1;
  return [begin, end];
}

// Both sides next to each other: rows of {left, right}.
export function sideBySide(lines) {
  const rows = [];
  for (let index = 0; index < lines.length; ) {
    const line = lines[index];
    if (line.kind !== "del" && line.kind !== "add") {
      rows.push({ left: line, right: line });
      index += 1;
      continue;
    }
    const removed = [];
    const added = [];
    while (lines[index]?.kind === "del") removed.push(lines[index++]);
    while (lines[index]?.kind === "add") added.push(lines[index++]);
    rows.push(...aligned(removed, added));
  }
  return rows;
}

// Partners are in one row.
function aligned(removed, added) {
  const rows = [];
  let [left, right] = [0, 0];
  while (left < removed.length || right < added.length) {
    const [one, other] = [removed[left], added[right]];
    const isPair = one && other && (one.partner === other || (!one.partner && !other.partner));
    if (isPair || !one || !other) rows.push({ left: one, right: other });
    else rows.push(one.partner ? { right: other } : { left: one });
    if (rows.at(-1).left) left += 1;
    if (rows.at(-1).right) right += 1;
  }
  return rows;
}

const WORD = /\d[\d._]*\d|[\p{L}\p{N}_]+|\s+|[-+*/<>=!&|^%]+|[^\p{L}\p{N}_\s]/gu;
const MAX_COMPARED = 40_000; // pairs of words of one line and its partner

// Where whole words of a line differ from its partner: [[begin, end], …]; none when it is most of it.
export function changedRanges(line) {
  if (!line.partner || line.text.length > MAX_CHARACTERS) return [];
  const mine = line.text.match(WORD) ?? [];
  const isKept = keptWords(mine, line.partner.text.slice(0, MAX_CHARACTERS).match(WORD) ?? []);
  const ranges = [];
  let at = 0;
  let kept = 0;
  mine.forEach((word, index) => {
    if (isKept[index]) kept += word.trim().length;
    else if (ranges.at(-1)?.[1] === at) ranges.at(-1)[1] = at + word.length;
    else ranges.push([at, at + word.length]);
    at += word.length;
  });
  return kept < line.text.trim().length * 0.2 ? [] : joinedOverSpaces(ranges, line.text);
}

// Two changed words with only a space between them are one change.
function joinedOverSpaces(ranges, text) {
  const found = [];
  for (const [begin, end] of ranges) {
    const last = found.at(-1);
    if (last && /^\s+$/.test(text.slice(last[1], begin))) last[1] = end;
    else found.push([begin, end]);
  }
  for (const range of found) {
    const part = text.slice(...range);
    if (!part.trim()) continue; // only the space has changed
    range[1] -= part.length - part.trimEnd().length;
    range[0] += part.length - part.trimStart().length;
  }
  return found;
}

// Which words also are in the other line, in the same order (the longest common subsequence between
// equal ends; of very long lines the ends only).
function keptWords(mine, other) {
  const [begin, end] = sameEnds(mine, other);
  const kept = mine.map((_, index) => index < begin || index >= mine.length - end);
  const [rows, columns] = [mine.length - begin - end, other.length - begin - end];
  if (rows * columns === 0 || rows * columns > MAX_COMPARED) return kept;
  const best = Array.from({ length: rows + 1 }, () => new Uint16Array(columns + 1));
  const isSame = (row, column) => mine[begin + row] === other[begin + column];
  for (let row = rows - 1; row >= 0; row -= 1) {
    for (let column = columns - 1; column >= 0; column -= 1) best[row][column] = isSame(row, column) ? best[row + 1][column + 1] + 1 : Math.max(best[row + 1][column], best[row][column + 1]);
  }
  for (let row = 0, column = 0; row < rows && column < columns; ) {
    if (isSame(row, column)) {
      kept[begin + row] = true;
      row += 1;
      column += 1;
    } else if (best[row + 1][column] >= best[row][column + 1]) row += 1;
    else column += 1;
  }
  return kept;
}

// A line as pieces for the screen: [{text, kind, isChanged}], coloured and with its changed words.
export function pieces(line, text, path) {
  const ranges = text === line.text ? changedRanges(line) : [];
  const found = [];
  let at = 0;
  let range = 0;
  for (const token of tokens(text, path)) {
    const end = at + token.text.length;
    while (at < end) {
      while (ranges[range] && ranges[range][1] <= at) range += 1;
      const [from, to] = ranges[range] ?? [Infinity, Infinity];
      const isChanged = from <= at;
      const next = Math.min(end, isChanged ? to : from);
      found.push({ text: text.slice(at, next), kind: token.kind, isChanged });
      at = next;
    }
  }
  return found;
}

const WORDS = new Set(
  ("and as assert async await break case catch class const continue def default del do elif else enum except export extends " +
    "False finally fn for from func function global if impl import in interface is let local match mod mut new nil None not null " +
    "or package pass private pub public raise return self static struct super switch this throw trait True true false try type use var " +
    "void while with yield SELECT FROM WHERE INSERT UPDATE DELETE CREATE TABLE").split(" "),
);
const TOKEN =
  /(?<comment>(?:\/\/|#(?![0-9a-fA-F]{3,8}\b)|--\s).*$|\/\*.*?(?:\*\/|$))|(?<string>"(?:\\.|[^"\\])*"?|'(?:\\.|[^'\\])*'?|`(?:\\.|[^`\\])*`?)|(?<number>\b\d[\d_.a-fA-FxX]*\b)|(?<word>[A-Za-z_]\w*)/g;
const PLAIN = /\.(md|txt|rst|csv|log|svg|html?|xml)$/i;

// Returns [{text, kind}] with kind comment, string, number, keyword or "".
export function tokens(text, path) {
  if (PLAIN.test(path)) return [{ text, kind: "" }];
  const found = [];
  let at = 0;
  for (const match of text.matchAll(TOKEN)) {
    const { comment, string, number, word } = match.groups;
    const kind = comment ? "comment" : string ? "string" : number ? "number" : WORDS.has(word) ? "keyword" : "";
    if (!kind) continue;
    if (match.index > at) found.push({ text: text.slice(at, match.index), kind: "" });
    found.push({ text: match[0], kind });
    at = match.index + match[0].length;
  }
  if (at < text.length) found.push({ text: text.slice(at), kind: "" });
  return found;
}
