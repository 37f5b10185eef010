// The shell: who is logged in, which view the address names, shortcuts.

import { get, LiveJobs, post, session, whenLoggedOut } from "./api.js";
import { ApprovalInbox, ApprovalsView } from "./approvals_view.js";
import { attempt, notice, shortcutsOn, showHelp } from "./dialogs.js";
import { externalLink, fill, h } from "./dom.js";
import { JobView } from "./job_view.js";
import { JobsView } from "./jobs_view.js";
import { RunView } from "./run_view.js";
import { SubmitView } from "./submit_view.js";

const main = document.getElementById("main");
const VIEWS = { approvals: ApprovalsView, new: SubmitView };
const app = { live: new LiveJobs(), navigate, navigateLater, agents: [], session: null, inbox: null };
let view = null;
let listAddress = "?";

function navigate(parameters, { replace = false } = {}) {
  const query = parameters instanceof URLSearchParams ? parameters : new URLSearchParams(parameters);
  const address = query.size ? `?${query}` : "/";
  history[replace ? "replaceState" : "pushState"](null, "", address);
  show();
}

// Returns a function that navigates after an answer, unless the person has gone to another view meanwhile.
function navigateLater() {
  const from = view;
  return (parameters) => view === from && navigate(parameters);
}

function viewClass(parameters) {
  if (parameters.has("job")) return JobView;
  if (parameters.has("run")) return RunView;
  return VIEWS[parameters.get("view")] ?? JobsView;
}

function show() {
  const parameters = new URLSearchParams(location.search);
  const wanted = viewClass(parameters);
  if (wanted === JobsView) listAddress = location.search || "?";
  markCurrent(parameters);
  if (view instanceof wanted && (view.accepts?.(parameters) ?? true)) {
    view.show(parameters);
  } else {
    view?.stop();
    view = new wanted(app, parameters);
    fill(main, view.element);
    view.show(parameters);
    main.focus({ preventScroll: true });
    window.scrollTo(0, 0);
  }
  document.title = `${view.title} · fanout`;
}

function markCurrent(parameters) {
  const current = ["job", "run"].find((name) => parameters.has(name)) ?? parameters.get("view") ?? "jobs";
  for (const link of document.querySelectorAll("nav a[data-view]")) {
    if (link.dataset.view === current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function header() {
  const { name, flower_url: flower, scopes } = app.session;
  const link = (label, view, href) => h("a", { href, "data-view": view }, label);
  const out = h("button", { type: "button", class: "quiet", on: { click: () => attempt(out, logOut) } }, "Log out");
  const help = h("button", { type: "button", class: "quiet", "aria-label": "Keyboard shortcuts", on: { click: showHelp } }, "?");
  const approvals = link("Approvals", "approvals", "?view=approvals");
  approvals.append(app.inbox.badge);
  fill(
    document.getElementById("header"),
    h("a", { class: "brand", href: "/" }, "fanout"),
    h(
      "nav",
      { "aria-label": "Views" },
      link("Runs", "jobs", "/"),
      approvals,
      scopes.includes("submit") && link("New job", "new", "?view=new"),
      flower && externalLink("Flower", flower),
    ),
    h("span", { class: "who", title: "Who is logged in" }, name),
    out,
    help,
  );
}

async function logOut() {
  await post("/logout");
  location.assign("/login");
}

function loggedOut() {
  const next = encodeURIComponent(location.pathname + location.search);
  const link = h("a", { class: "button primary", href: `/login?next=${next}` }, "Log in");
  view?.stop();
  view = null;
  fill(document.getElementById("header"), h("span", { class: "brand" }, "fanout"));
  fill(main, h("section", { class: "login", role: "alert" }, h("h1", {}, "You are not logged in"), h("p", {}, "Log in with a key, or open a new link of ", h("code", {}, "fanout up"), "."), link));
  link.focus();
}

// Links to our own views change the address without loading the page again.
document.addEventListener("click", (event) => {
  const link = event.target.closest?.("a[href]");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey) return;
  const href = link.getAttribute("href");
  if (link.target || link.hasAttribute("download") || !(href.startsWith("?") || href === "/")) return;
  event.preventDefault();
  if (app.session) navigate(new URLSearchParams(href === "/" ? "" : href));
});

document.addEventListener("keydown", (event) => {
  if (event.altKey || event.ctrlKey || event.metaKey || event.defaultPrevented || !app.session) return;
  if (event.target.closest?.("input, textarea, select, dialog, [contenteditable]") || !shortcutsOn()) return;
  const actions = {
    "?": showHelp,
    r: () => navigate(""),
    a: () => navigate("view=approvals"),
    n: () => navigate("view=new"),
    u: () => navigate(new URLSearchParams(listAddress)),
    "/": () => {
      if (!(view instanceof JobsView)) navigate("");
      view.focusSearch();
    },
  };
  if (event.key in actions) actions[event.key]();
  else if (!view?.onKey?.(event)) return;
  event.preventDefault();
});

window.addEventListener("popstate", show);
window.addEventListener("unhandledrejection", (event) => {
  if (event.reason?.status === 401) event.preventDefault(); // `loggedOut` has said so
  else notice(event.reason?.message ?? "The page has a fault.", true);
});

async function start() {
  whenLoggedOut(loggedOut);
  app.session = await session();
  app.inbox = new ApprovalInbox(app.live);
  header();
  app.live.start();
  app.inbox.refresh();
  get("/v1/agents").then((found) => {
    app.agents = found.items;
    view?.agentsKnown?.();
  });
  show();
}

start().catch((problem) => {
  if (problem.status !== 401) fill(main, h("p", { class: "empty", role: "alert" }, problem.message));
});
