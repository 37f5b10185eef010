// A button that copies a text: an id, a command, code. It has no text of its own, so that the text
// around it stays what it is.

import { attempt, notice } from "./dialogs.js";
import { h } from "./dom.js";

// `what` names it for those who do not see the button; `text` may be a function that returns it later.
export function copyButton(text, what) {
  const button = h("button", { type: "button", class: "copy", "aria-label": `Copy ${what}`, title: `Copy ${what}` });
  button.addEventListener("click", () => attempt(button, async () => copy(typeof text === "function" ? await text() : text)));
  return button;
}

// An element with a button that copies its text.
export function copyable(element, text, what) {
  return h("div", { class: "copyable" }, element, copyButton(text, what));
}

async function copy(text) {
  if (!navigator.clipboard) throw new Error("This browser copies over https or on localhost only: select the text.");
  await navigator.clipboard.writeText(text);
  notice("Copied.");
}
