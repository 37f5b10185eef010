// What a person can do with a job or a run: cancel, retry, continue, tell, take its changes, merge
// them into a folder of the person's own machine. Every view takes its buttons from here; the service
// decides again whether the caller may do it.

import { get, Latest, post } from "./api.js";
import { ask, askText, attempt, copyButton, notice, showDialog } from "./dialogs.js";
import { fill, h, setText } from "./dom.js";
import { ENDED, oneLine, plural } from "./text.js";

const MAX_TASK = 200_000; // characters of a task and of a message, as the service allows them
const MAX_MESSAGE = 20_000;

const path = (id, rest = "") => `/v1/jobs/${encodeURIComponent(id)}${rest}`;

// The buttons for a job as it is now. `countLiveBelow()` returns how many jobs below it have not
// ended, and `onChange()` is called after its state may have changed.
export function actionButtons(app, job, { countLiveBelow = () => 0, onChange = () => {} } = {}) {
  const isEnded = ENDED.has(job.state);
  const mayChange = app.session.scopes.includes("submit");
  const button = (label, kind, action) => {
    const made = h("button", { type: "button", class: kind, on: { click: () => attempt(made, action) } }, label);
    return made;
  };
  return [
    mayChange && !isEnded && button("Cancel", "danger", async () => (await cancel(job, countLiveBelow())) && onChange()),
    isEnded && hasChanges(job) && button("Get changes …", "", () => showChangesDialog(job.id)),
    mayChange && isEnded && button("Continue …", "", () => continueJob(app, job)),
    mayChange && isEnded && button("Retry", "", () => retry(app, job)),
  ].filter(Boolean);
}

// A line of a list has no result: what it changed is then not known.
function hasChanges(job) {
  const { result } = job;
  return Boolean(result && (result.changes || result.files_modified?.length));
}

// Returns whether the job is being cancelled.
export async function cancel(job, below = 0) {
  const what = job.parent_id ? "job" : "run";
  const more = below ? ` and ${below} ${below === 1 ? "job" : "jobs"} below it` : "";
  const isSure = await ask(`Cancel this ${what}${more}? What is cancelled cannot be resumed.`, { yes: `Cancel the ${what}`, no: "Let it run", isDangerous: true });
  if (!isSure) return false;
  await post(path(job.id, ":cancel"));
  notice(`The ${what} is being cancelled.`);
  return true;
}

export async function retry(app, job) {
  const open = app.navigateLater();
  const { id } = await post(path(job.id, ":retry"));
  notice("Submitted again as a new job.");
  open({ job: id });
}

// A new job with the conversation and the files of one that has ended.
export async function continueJob(app, job) {
  const task = await askText("Continue with its conversation and its files", { label: "What should the agent do next?", yes: "Continue", maxLength: MAX_TASK });
  if (task === null) return;
  const open = app.navigateLater();
  const { id } = await post("/v1/jobs", { description: task, continues: job.id });
  notice("Continued as a new job.");
  open({ job: id });
}

// A form that sends a message to the agent of a job that has not ended.
export function tellForm(jobId) {
  const text = h("textarea", { rows: 1, "aria-label": "Message to the agent", placeholder: "Tell the agent something …", maxlength: MAX_MESSAGE, required: true, autocomplete: "off" });
  const send = h("button", { class: "primary" }, "Tell");
  const form = h("form", { class: "tell" }, text, send);
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    attempt(send, async () => {
      await post(path(jobId, ":tell"), { text: text.value });
      text.value = "";
      notice("The agent reads it before its next step.");
    });
  });
  return form;
}

// The page cannot write into a folder of the person's machine: it names the commands that do.
export function showChangesDialog(jobId) {
  const link = (label, address) => h("li", {}, h("a", { href: path(jobId, address), download: "" }, label));
  showDialog(
    "Get the changes",
    h("p", {}, "Into a folder of your machine:"),
    commandLine(`fanout apply ${jobId}`),
    h("p", {}, "Only look at them first:"),
    commandLine(`fanout diff ${jobId}`),
    h("p", {}, "Or download:"),
    h("ul", {}, link("The patch, for git apply", "/patch"), link("The changed files (tar.gz)", "/archive?changed=true"), link("The whole workspace (tar.gz)", "/archive")),
  );
}

function commandLine(command) {
  return h("div", { class: "command-line" }, h("code", {}, command), copyButton(command, "the command"));
}

const MAX_SHOWN = 30; // files of each kind

// Merges what a job has changed into a folder of the person's own machine: first it says what would
// happen, and does it when the person agrees.
export async function applyToFolder(jobId) {
  const known = await get(`/v1/folders/of/${encodeURIComponent(jobId)}`);
  const folder = await chooseFolder("Apply the changes to a folder", { start: known.folder ?? "" });
  if (folder === null) return;
  const merge = (check) => post("/v1/folders/merge", { job_id: jobId, folder, check });
  const planned = await merge(true);
  if (!planned.applied.some((file) => file.how !== "already")) {
    show("Nothing to apply", folder, planned);
    return;
  }
  const stay = [planned.conflicts.length && plural(planned.conflicts.length, "conflict"), planned.held_back.length && `${plural(planned.held_back.length, "file")} held back`].filter(Boolean);
  const question = `Change ${plural(planned.applied.length, "file")} in ${folder}?${stay.length ? ` Not applied: ${stay.join(", ")}.` : ""}`;
  if (!(await ask(question, { yes: "Apply", no: "Not now" }))) return;
  const done = await merge(false);
  notice(`Applied ${plural(done.applied.length, "file")} to ${folder}.`);
  if (done.conflicts.length || done.held_back.length || done.failed.length || done.refused.length) show("Not all was applied", folder, done, jobId);
}

function show(title, folder, report, jobId) {
  const list = (name, files, text) => files.length > 0 && [h("h3", {}, name), h("ul", {}, files.slice(0, MAX_SHOWN).map((file) => h("li", {}, h("code", {}, file.path), text(file))), files.length > MAX_SHOWN && h("li", {}, `… and ${files.length - MAX_SHOWN} more`))];
  const why = (file) => ` — ${oneLine(file.reason, 300)}`;
  showDialog(
    title,
    h("p", {}, "Folder: ", h("code", {}, folder)),
    list("In the folder already", report.applied.filter((file) => file.how === "already"), () => ""),
    list("Conflicts: both sides changed the same lines", report.conflicts, why),
    list("Held back: this machine may run it without asking", report.held_back, why),
    list("Not applied", [...report.refused, ...report.failed, ...report.skipped], why),
    jobId && report.conflicts.length > 0 && h("p", {}, "Both sides: ", h("code", {}, `fanout diff ${jobId} --conflicts`)),
    jobId && report.held_back.length > 0 && h("p", {}, "To apply what is held back: ", h("code", {}, `fanout apply ${jobId} --include-executable-config`)),
  );
}

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
