// The shell: which view stands in the page, the key, the keys.

import { forget, get, inSpace, key, setKey } from "./api.js";
import { h, put } from "./dom.js";
import * as evidence from "./evidence.js";
import * as graph from "./graph.js";
import { toggleHelp } from "./help.js";
import { problemCard } from "./pieces.js";
import { here, link } from "./route.js";
import * as spaces from "./spaces.js";
import * as tasks from "./tasks.js";
import * as timeline from "./timeline.js";
import * as tokens from "./tokens.js";

const VIEWS = { spaces, request: timeline, graph, tasks, tokens };
const TABS = [
  ["request", "Timeline"],
  ["graph", "Graph"],
  ["tasks", "Tasks"],
  ["tokens", "Tokens"],
];
const main = document.getElementById("main");
let shown = { name: "", view: null };
let turn = 0;

/** Bring the page to where the address says. */
async function follow() {
  const mine = ++turn;
  const route = here();
  frame(route);
  if (!key()) return door();
  const name = `${route.view} ${route.space}`;
  try {
    if (name !== shown.name) await mount(name, route, mine);
    if (mine !== turn) return;
    await shown.view?.update?.(route);
    await evidence.follow(route);
  } catch (problem) {
    if (mine === turn) failed(problem);
  }
}

async function mount(name, route, mine) {
  shown.view?.unmount?.();
  shown = { name: "", view: null };
  const root = h("div", { class: `view view-${route.view}` });
  const waiting = setTimeout(() => put(main, h("p", { class: "dim loading", role: "status" }, "Loading…")), 200);
  try {
    if (route.space) await get(inSpace(route.space));
    const view = await VIEWS[route.view].mount(root, route);
    if (mine !== turn) return view.unmount?.();
    put(main, root);
    shown = { name, view };
    view.placed?.();
  } finally {
    clearTimeout(waiting);
  }
}

function frame(route) {
  const tabs = document.getElementById("tabs");
  tabs.hidden = !route.space || !key();
  put(
    tabs,
    h("span", { class: "where", title: route.space }, route.space),
    TABS.map(([view, word]) =>
      h("a", { href: link({ space: route.space, view }), "aria-current": view === route.view ? "page" : null }, word),
    ),
  );
  document.getElementById("leave").hidden = !key();
  document.title = route.space ? `${route.space}: ${TABS.find(([view]) => view === route.view)[1]} · FlowState inspector` : "FlowState inspector";
}

function door(problem = null) {
  shown.view?.unmount?.();
  shown = { name: "", view: null };
  spaces.askKey(main, problem, follow);
}

function failed(problem) {
  if (problem.status === 401) {
    setKey("");
    frame(here());
    return door(problem);
  }
  if (problem.status === undefined) console.error(problem); // a fault of this page, not of what it asked
  shown.view?.unmount?.();
  shown = { name: "", view: null };
  put(main, problemCard(problem));
}

function refresh() {
  forget();
  shown.view?.unmount?.();
  shown = { name: "", view: null };
  follow();
}

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  const typing = event.target.closest("input:not([type=range]):not([type=checkbox]), textarea, select");
  if (shown.view?.key?.(event, Boolean(typing)) || typing) return;
  const route = here();
  const tab = TABS[Number(event.key) - 1];
  if (event.key === "?") toggleHelp();
  else if (event.key === "r") refresh();
  else if (event.key === "s") location.hash = "#/";
  else if (tab && route.space) location.hash = link({ space: route.space, view: tab[0] });
  else return;
  event.preventDefault();
}

document.getElementById("refresh").addEventListener("click", refresh);
document.getElementById("keys").addEventListener("click", toggleHelp);
document.getElementById("leave").addEventListener("click", () => {
  setKey("");
  follow();
});
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address after # is a place in the memory, not in the page
  main.focus();
});
document.addEventListener("keydown", onKey);
window.addEventListener("hashchange", follow);
follow();
