// Questions, notices and the help, as native dialogs, which keep the focus and close with Escape; and
// buttons that copy a text.

import { h } from "./dom.js";

export function ask(question, { yes = "Yes", no = "No", isDangerous = false } = {}) {
  return new Promise((resolve) => {
    const dialog = h(
      "dialog",
      { class: "dialog", "aria-label": question },
      h("p", {}, question),
      h(
        "div",
        { class: "buttons" },
        h("button", { type: "button", on: { click: () => dialog.close("no") } }, no),
        h("button", { type: "button", class: isDangerous ? "danger" : "primary", on: { click: () => dialog.close("yes") } }, yes),
      ),
    );
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

// Asks for a text; returns null when the person closes the dialog without one.
export function askText(title, { label, yes = "Send", maxLength }) {
  return new Promise((resolve) => {
    const area = h("textarea", { id: "asked-text", rows: 5, maxlength: maxLength, required: true });
    const cancel = h("button", { type: "button", on: { click: () => dialog.close() } }, "Not now");
    const form = h("form", { method: "dialog" }, h("h2", {}, title), h("label", { for: "asked-text" }, label), area, h("div", { class: "buttons" }, cancel, h("button", { class: "primary", value: "yes" }, yes)));
    const dialog = h("dialog", { class: "dialog", "aria-label": title }, form);
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes" && area.value.trim() ? area.value : null);
    });
    document.body.append(dialog);
    dialog.showModal();
    area.focus();
  });
}

export function showDialog(title, ...content) {
  const close = h("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, "Close");
  const dialog = h("dialog", { class: "dialog", "aria-label": title }, h("h2", {}, title), content, h("div", { class: "buttons" }, close));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

const NOTICE_MS = 6000;

export function notice(text, isProblem = false) {
  const area = document.getElementById("notices");
  const shown = h("div", { class: isProblem ? "notice problem" : "notice", role: isProblem ? "alert" : "status" }, text);
  const close = h("button", { type: "button", class: "quiet", "aria-label": "Dismiss", on: { click: () => shown.remove() } }, "×");
  shown.append(close);
  area.append(shown);
  while (area.children.length > 4) area.firstElementChild.remove();
  if (!isProblem) setTimeout(() => shown.remove(), NOTICE_MS);
  return shown;
}

// Runs an action once at a time, and says what went wrong.
export async function attempt(button, action) {
  if (button) button.disabled = true;
  try {
    return await action();
  } catch (problem) {
    notice(problem.message, true);
    return undefined;
  } finally {
    if (button) button.disabled = false;
  }
}

export const SHORTCUTS = [
  ["/", "Search"],
  ["j k or ↓ ↑", "Next and previous job of a list or tree"],
  ["Enter", "Open"],
  ["r", "Runs"],
  ["a", "Approvals"],
  ["n", "New job"],
  ["← → in a list", "Close and open what a run or a submission has below it"],
  ["+ − 0 in a timeline", "Zoom in, zoom out, whole run"],
  ["Shift ← → in a timeline", "Earlier and later, when zoomed in"],
  ["u", "From a job to the list"],
  ["1 – 4", "Tabs of a job"],
  ["← →", "Previous and next tab, when a tab has the focus"],
  ["?", "This help"],
  ["Esc", "Close"],
];

const SWITCH = "fanout.shortcuts";

export const shortcutsOn = () => localStorage.getItem(SWITCH) !== "off";

export function showHelp() {
  if (document.querySelector("dialog[open]")) return;
  const box = h("input", { type: "checkbox", checked: shortcutsOn() });
  box.addEventListener("change", () => localStorage.setItem(SWITCH, box.checked ? "on" : "off"));
  const dialog = h(
    "dialog",
    { class: "dialog", "aria-labelledby": "help-title" },
    h("h2", { id: "help-title" }, "Keyboard"),
    h("dl", { class: "keys" }, SHORTCUTS.map(([key, meaning]) => [h("dt", {}, h("kbd", {}, key)), h("dd", {}, meaning)])),
    h("label", { class: "check" }, box, "Keys of one letter work"),
    h("div", { class: "buttons" }, h("button", { type: "button", class: "primary", on: { click: () => dialog.close() } }, "Close")),
  );
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

// A button that copies a text: an id, a command, code. It has no text of its own, so that the text
// around it stays what it is. `what` names it for those who do not see the button; `text` may be a
// function that returns it later.
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
