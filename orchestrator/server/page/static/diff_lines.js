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
    if (end - added === added - index) {
      for (let offset = 0; offset < added - index; offset += 1) {
        lines[index + offset].partner = lines[added + offset];
        lines[added + offset].partner = lines[index + offset];
      }
    }
    index = end;
  }
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
    for (let row = 0; row < Math.max(removed.length, added.length); row += 1) rows.push({ left: removed[row], right: added[row] });
  }
  return rows;
}

// Where a line differs from its partner: [begin, end], null when it is all of it.
export function changedRange(line) {
  if (!line.partner || line.text.length > MAX_CHARACTERS) return null;
  const [mine, other] = [line.text, line.partner.text];
  const most = Math.min(mine.length, other.length);
  let begin = 0;
  while (begin < most && mine[begin] === other[begin]) begin += 1;
  let end = 0;
  while (end < most - begin && mine[mine.length - 1 - end] === other[other.length - 1 - end]) end += 1;
  return begin + end < mine.length * 0.3 ? null : [begin, mine.length - end];
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
