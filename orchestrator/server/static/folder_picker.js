// Chooses a folder of the person's own machine, on the service of one person.

import { get } from "./api.js";
import { fill, h, setText } from "./dom.js";
import { notice } from "./dialogs.js";
import { Latest } from "./latest.js";
import { plural } from "./text.js";

// Asks for a folder in a dialog; returns its path, or null. `start` is where it begins.
export function chooseFolder(title, { start = "", yes = "Choose this folder" } = {}) {
  return new Promise((resolve) => {
    const path = h("input", { type: "text", id: "folder-path", spellcheck: "false", autocomplete: "off", class: "folder-path" });
    const names = h("ul", { class: "folders", tabIndex: -1, "aria-label": "Folders" });
    const note = h("p", { class: "muted", role: "status" });
    const use = h("button", { type: "button", class: "primary", disabled: true, on: { click: () => dialog.close("yes") } }, yes);
    const latest = new Latest();
    let shown = null;

    // What is chosen is the folder that is shown: not while another one is being written or read.
    const allowUse = () => (use.disabled = latest.isReading || path.value !== shown?.path);
    const show = async (wanted) => {
      const written = path.value;
      const reading = latest.read((signal) => get("/v1/folders", { path: wanted }, { signal }));
      allowUse();
      const found = await reading.catch((problem) => problem.status !== 401 && notice(problem.message, true));
      if (found) showFolder(found, path.value === written);
      allowUse();
    };
    const showFolder = (found, isWritable) => {
      shown = found;
      if (isWritable) path.value = found.path; // else the person has begun to write another one
      const row = (label, to, name) => h("li", {}, h("button", { type: "button", class: "quiet folder", on: { click: () => show(to) } }, h("span", { "aria-hidden": "true" }, name), h("bdi", {}, label)));
      fill(names, found.parent !== null && row("Up to the folder above", found.parent, "↑"), found.folders.map((one) => row(one, join(found.path, one), "▸")));
      names.scrollTop = 0;
      const more = found.omitted ? ` ${plural(found.omitted, "more folder")} are not listed: write the path.` : "";
      setText(note, `${found.is_repository ? "A Git repository: files that it ignores stay here." : "Not a Git repository: all of its files are copied, except those that seem to be secret."}${more}`);
    };

    path.addEventListener("input", allowUse);
    const form = h("form", { class: "folder-form" }, h("label", { for: "folder-path" }, "Folder"), h("div", { class: "folder-line" }, path, h("button", {}, "Open")));
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      show(path.value);
    });
    const cancel = h("button", { type: "button", on: { click: () => dialog.close("no") } }, "Not now");
    const dialog = h("dialog", { class: "dialog folder-dialog", "aria-label": title }, h("h2", {}, title), form, names, note, h("div", { class: "buttons" }, cancel, use));
    dialog.addEventListener("close", () => {
      latest.stop();
      dialog.remove();
      resolve(dialog.returnValue === "yes" && shown ? shown.path : null);
    });
    document.body.append(dialog);
    dialog.showModal();
    show(start);
  });
}

function join(path, name) {
  return path.endsWith("/") ? `${path}${name}` : `${path}/${name}`;
}
