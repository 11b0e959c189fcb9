// Durable tasks: when each step ran, was tried again, was undone; drawn as bars in time.

import { get, inSpace } from "./api.js";
import { h, put, rove, say } from "./dom.js";
import { plural, seconds, when } from "./format.js";
import { badge, legend, table } from "./pieces.js";
import { link } from "./route.js";

const KIND = { completed: "good", failed: "bad", cancelled: "bad", running: "busy", paused: "busy" };
const TICKS = 5;

/** The list of tasks beside the one that is chosen. */
export async function mount(root, { space }) {
  const { data } = await get(inSpace(space, "tasks"));
  const items = data.map((record) => item(space, record));
  const list = h("ol", { class: "requests", keydown: (event) => rove(event, items.map((one) => one.firstChild)) }, items);
  const detail = h("section", { class: "detail", "aria-label": "The task" });
  put(root, h("nav", { class: "side", "aria-label": "Tasks" }, h("h2", {}, plural(data.length, "task")), list), detail);

  async function update(route) {
    const id = route.id || data.at(0)?.id;
    if (!id) return put(detail, h("p", { class: "card empty" }, "No durable task in this space. “flowstate task run” begins one."));
    for (const one of items) one.firstChild.setAttribute("aria-current", one.dataset.id === id ? "true" : "false");
    put(detail, ...taskOf(space, await get(inSpace(space, "tasks", id))));
    say(`Task ${id}`);
  }
  return { update };
}

function item(space, record) {
  return h(
    "li",
    { "data-id": record.id },
    h(
      "a",
      { href: link({ space, view: "tasks", id: record.id }), "data-rove": true },
      h("span", { class: "row between" }, h("strong", { class: "mono" }, record.id), badge(record.status, KIND[record.status] ?? "")),
      h("span", { class: "dim small" }, `${record.workflow ?? ""} ${when(record.created_at).slice(0, 16)}`),
    ),
  );
}

function taskOf(space, view) {
  const bars = barsOf(view);
  return [
    h("header", { class: "request-head" }, h("div", { class: "row" }, h("h2", { tabindex: "-1" }, view.record.id), badge(view.record.status, KIND[view.record.status] ?? "")), view.goal && h("p", { class: "asked-whole" }, view.goal), view.reason && h("p", { class: "dim" }, view.reason)),
    gantt(view, bars),
    legend([["done", "bar-done"], ["failed", "bar-failed"], ["waits to try again", "bar-wait"], ["undone", "bar-undo"], ["running", "bar-running"]]),
    table("Steps", ["step", "status", "tries", "after", "took", "error"], view.steps.map((step) => stepRow(space, step, bars))),
    h("details", {}, h("summary", {}, `the log: ${plural(view.events.length, "event")}${view.floor ? `, the first ${view.floor} compacted away` : ""}`), table("Events", ["seq", "time", "event", "step"], view.events.map((event) => [event.seq, when(event.at), event.kind, event.step ?? ""]))),
  ];
}

function stepRow(space, step, bars) {
  const took = bars.filter((bar) => bar.step === step.name && bar.kind !== "wait").reduce((sum, bar) => sum + bar.to - bar.from, 0);
  const name = [h("span", { class: "mono" }, step.name), step.title && h("span", { class: "dim" }, ` ${step.title}`), step.state.request && [" ", h("a", { href: link({ space, id: step.state.request }) }, step.state.request)]];
  return [name, badge(step.state.undo ? `${step.state.status}, undo ${step.state.undo}` : step.state.status, KIND[step.state.status] ?? ""), step.state.attempt, step.needs.join(", "), took ? seconds(took) : "", step.state.error?.message ?? ""];
}

/** What happened when: one bar for each try, each wait before the next, each undoing. */
function barsOf(view) {
  const bars = [];
  const open = new Map();
  const last = Math.max(view.record.updated_at ?? 0, ...view.events.map((event) => event.at));
  const end = (event, kind) => {
    const begun = open.get(event.step);
    if (begun) bars.push({ step: event.step, from: begun.at, to: event.at, kind: begun.undo ? (kind === "done" ? "undo" : kind) : kind });
    open.delete(event.step);
  };
  for (const event of view.events) {
    if (event.kind === "TaskStepStarted") open.set(event.step, { at: event.at, undo: false });
    if (event.kind === "UndoStarted") open.set(event.step, { at: event.at, undo: true });
    if (event.kind === "TaskStepFinished" || event.kind === "UndoFinished") end(event, "done");
    if (event.kind === "TaskStepFailed" || event.kind === "UndoFailed") {
      end(event, "failed");
      const kind = event.kind === "UndoFailed" ? "UndoStarted" : "TaskStepStarted";
      const again = view.events.find((other) => other.seq > event.seq && other.step === event.step && other.kind === kind);
      if (again) bars.push({ step: event.step, from: event.at, to: again.at, kind: "wait" });
    }
  }
  for (const [step, begun] of open) bars.push({ step, from: begun.at, to: last, kind: "running" });
  return bars;
}

function gantt(view, bars) {
  if (!bars.length) return h("p", { class: "card empty" }, "No step of it has run yet.");
  const from = Math.min(...bars.map((bar) => bar.from));
  const to = Math.max(...bars.map((bar) => bar.to), from + 1e-3);
  const percent = (at) => `${(100 * (at - from)) / (to - from)}%`;
  const row = (step) => {
    const mine = bars.filter((bar) => bar.step === step.name);
    const told = mine.map((bar) => `${bar.kind} ${seconds(bar.to - bar.from)}, from ${seconds(bar.from - from)}`).join("; ") || "has not run";
    return h(
      "div",
      { class: "gantt-row", role: "listitem", "aria-label": `${step.name}: ${told}` },
      h("span", { class: "gantt-name", title: step.title || step.name }, step.name),
      h("span", { class: "gantt-bars" }, mine.map((bar) => h("i", { class: `bar-${bar.kind}`, title: `${step.name}: ${bar.kind}, ${seconds(bar.to - bar.from)}`, size: { left: percent(bar.from), width: `max(3px, ${(100 * (bar.to - bar.from)) / (to - from)}%)` } }))),
    );
  };
  const ticks = Array.from({ length: TICKS }, (_, i) => ((to - from) * i) / (TICKS - 1));
  return h(
    "div",
    { class: "card gantt" },
    h("div", { role: "list", "aria-label": "Steps in time" }, view.steps.map(row)),
    h("div", { class: "gantt-row axis", "aria-hidden": "true" }, h("span", { class: "gantt-name dim small" }, when(from)), h("span", { class: "gantt-bars" }, ticks.map((tick, i) => h("span", { class: i === TICKS - 1 ? "tick last" : "tick", size: { left: `${(100 * i) / (TICKS - 1)}%` } }, seconds(tick))))),
  );
}
