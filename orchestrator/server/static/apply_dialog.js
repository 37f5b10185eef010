// Merges what a job has changed into a folder of the person's own machine: first it says what would
// happen, and does it when the person agrees.

import { get, post } from "./api.js";
import { ask, notice, showDialog } from "./dialogs.js";
import { h } from "./dom.js";
import { chooseFolder } from "./folder_picker.js";
import { oneLine, plural } from "./text.js";

const MAX_SHOWN = 30; // files of each kind

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
