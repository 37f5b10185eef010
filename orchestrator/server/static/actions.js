// What a person can do with a job or a run: cancel, retry, continue, tell, take its changes. Every
// view takes its buttons from here; the service decides again whether the caller may do it.

import { post } from "./api.js";
import { copyButton } from "./copy.js";
import { ask, askText, attempt, notice, showDialog } from "./dialogs.js";
import { h } from "./dom.js";
import { ENDED } from "./text.js";

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
