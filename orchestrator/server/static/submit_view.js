// The form for a new job.

import { post } from "./api.js";
import { attempt, notice } from "./dialogs.js";
import { fill, h, setText } from "./dom.js";
import { chooseFolder } from "./actions.js";
import { bytes } from "./text.js";

const ARCHIVE = /\.(tar|tar\.gz|tgz|zip)$/i;
const LIMITS = [
  ["timeout_seconds", "Time (seconds)", "any"],
  ["max_model_calls", "Model calls", "1"],
  ["max_tokens", "Tokens", "1"],
  ["max_cost_usd", "Cost (USD)", "any"],
];

export class SubmitView {
  constructor(app) {
    this.app = app;
    this.title = "New job";
    this.idempotencyKey = crypto.randomUUID?.() ?? null; // a second click is the same job
    const text = (rows, attributes = {}) => h("textarea", { rows, ...attributes });
    this.fields = {
      agent: h("select", { required: true }),
      description: text(6, { required: true, placeholder: "What is to be done", maxlength: 200000 }),
      context: text(3, { placeholder: "What the agent should know besides the files" }),
      labels: text(2, { placeholder: "team=search\none label a line", spellcheck: "false" }),
      verify: h("input", { type: "text", placeholder: "make test", spellcheck: "false" }),
      model: h("input", { type: "text", placeholder: "that of the agent", spellcheck: "false" }),
    };
    this.limits = Object.fromEntries(LIMITS.map(([name, , step]) => [name, h("input", { type: "number", min: step === "1" ? "1" : "0", step })]));
    this.folder = null;
    this.archive = h("input", { type: "file", accept: ".tar,.tar.gz,.tgz,.zip" });
    this.archiveField = field("Archive (tar, tar.gz or zip)", this.archive);
    this.archive.addEventListener("change", () => this.archive.value && this.setFolder(null));
    this.workspace = this.workspaceField();
    this.about = h("p", { class: "muted about-agent" });
    this.fields.agent.addEventListener("change", () => this.describe());
    this.element = h("section", { class: "page" }, h("h1", {}, "New job"), this.form());
    this.agentsKnown();
  }

  form() {
    const send = h("button", { class: "primary" }, "Submit");
    const f = this.fields;
    const form = h(
      "form",
      { class: "form" },
      field("Agent", f.agent, this.about),
      field("Task", f.description),
      field("Context", f.context),
      this.workspace,
      field("Verification command", f.verify, "It has to exit with 0 before the job succeeds."),
      h(
        "details",
        {},
        h("summary", {}, "Labels, model and limits"),
        field("Labels", f.labels),
        field("Model", f.model),
        h("div", { class: "columns" }, LIMITS.map(([name, label]) => field(label, this.limits[name]))),
      ),
      h("div", { class: "buttons" }, send),
    );
    form.addEventListener("submit", (event) => {
      event.preventDefault();
      attempt(send, () => this.submit());
    });
    return form;
  }

  // A folder of one's own machine, where the service is one's own; an archive everywhere.
  workspaceField() {
    const chosen = h("output", { class: "chosen-folder" });
    const choose = h("button", { type: "button", on: { click: () => attempt(choose, () => this.choose()) } }, "Choose a folder …");
    const clear = h("button", { type: "button", class: "quiet", hidden: true, on: { click: () => this.setFolder(null) } }, "Use none");
    this.setFolder = (path) => {
      this.folder = path;
      if (path) this.archive.value = "";
      setText(chosen, path ?? "");
      clear.hidden = !path;
    };
    const folders = this.app.session.folders && h("div", { class: "folder-choice" }, choose, chosen, clear);
    const note = h("p", { class: "muted" }, "Without files the job starts with an empty workspace. It works on a copy: what it changes comes back when you apply it.");
    return h("fieldset", { class: "field workspace" }, h("legend", {}, "Workspace"), folders, this.archiveField, note);
  }

  async choose() {
    const path = await chooseFolder("Choose the workspace", { start: this.folder ?? "" });
    if (path) this.setFolder(path);
  }

  agentsKnown() {
    const { agents } = this.app;
    fill(this.fields.agent, agents.map((agent) => h("option", { value: agent.name }, agent.name)));
    const usual = agents.find((agent) => agent.name === "coordinator") ?? agents[0];
    if (usual) this.fields.agent.value = usual.name;
    this.describe();
  }

  describe() {
    const agent = this.app.agents.find((one) => one.name === this.fields.agent.value);
    setText(this.about, agent?.description ?? "");
  }

  show() {}

  stop() {}

  request() {
    const { agent, description, context, verify, model } = this.fields;
    const limits = Object.fromEntries(Object.entries(this.limits).filter(([, input]) => input.value).map(([name, input]) => [name, Number(input.value)]));
    const given = { agent: agent.value, description: description.value, context: context.value, verify: verify.value, model: model.value };
    const labels = parseLabels(this.fields.labels.value);
    return {
      ...Object.fromEntries(Object.entries(given).filter(([, value]) => value.trim())),
      ...(Object.keys(labels).length ? { labels } : {}),
      ...(Object.keys(limits).length ? { limits } : {}),
    };
  }

  async submit() {
    const open = this.app.navigateLater();
    const request = this.request();
    const [file] = this.archive.files;
    if (file) request.snapshot = await this.upload(file);
    if (this.folder) notice("Copying the folder …");
    const headers = this.idempotencyKey ? { "Idempotency-Key": this.idempotencyKey } : {};
    const { id } = this.folder ? await post("/v1/folders/jobs", { folder: this.folder, job: request }, headers) : await post("/v1/jobs", request, headers);
    notice("Submitted.");
    open({ job: id });
  }

  async upload(file) {
    if (!ARCHIVE.test(file.name)) throw new Error("The workspace is a .tar, .tar.gz or .zip archive.");
    notice(`Uploading ${bytes(file.size)} …`);
    const type = /\.zip$/i.test(file.name) ? "application/zip" : /gz$/i.test(file.name) ? "application/gzip" : "application/x-tar";
    const { snapshot } = await post("/v1/snapshots", file, { "Content-Type": type });
    return snapshot;
  }
}

function parseLabels(text) {
  const labels = {};
  for (const line of text.split("\n").filter((one) => one.trim())) {
    const at = line.indexOf("=");
    if (at < 1) throw new Error(`A label is written as name=value, one a line: ${line.trim().slice(0, 60)}`);
    labels[line.slice(0, at).trim()] = line.slice(at + 1).trim();
  }
  return labels;
}

function field(label, input, ...more) {
  const notes = more.map((note) => (typeof note === "string" ? h("span", { class: "muted" }, note) : note));
  return h("label", { class: "field" }, h("span", {}, label), input, notes);
}
