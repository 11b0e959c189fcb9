// What several views show alike: nodes, ids and raw results as links, badges, problems.

import { h } from "./dom.js";
import { clip } from "./format.js";
import { here, link } from "./route.js";

export const TYPES = ["preference", "knowledge", "attribute", "judgement", "artifact"];
export const SEGMENTS = ["rules", "tools", "instructions", "index", "request", "state", "opened", "raw_buffer", "observation"];

/** The class that gives a segment its colour. */
export const segmentClass = (name) => (SEGMENTS.includes(name) ? `seg-${name}` : "seg-other");

const RAW = /^(t[1-9]\d*)(#([1-9]\d*))?$/;
const REQUEST = /^r[1-9]\d*$/;
const SPAN = /^s[1-9]\d*_[1-9]\d*$/;

/** A link to whatever an id names: a raw result opens above the page, a node in the graph, a request in the timeline. */
export function idLink(space, id, { within = "", at = null } = {}) {
  const raw = RAW.exec(id);
  if (raw) return h("a", { class: "id raw", href: rawLink(raw[1], within), title: `Raw result ${raw[1]}` }, id);
  if (REQUEST.test(id)) return h("a", { class: "id", href: link({ space, id }) }, id);
  if (SPAN.test(id)) return h("span", { class: "id" }, id);
  return h("a", { class: "id", href: link({ space, view: "graph", id, at }), title: "In the graph" }, id);
}

/** The same place with a raw result opened above it. */
export const rawLink = (raw, within = "", page = 1) => link({ ...here(), raw, within, page });

/** A node in one line. */
export function nodeLine(space, node, { within = "", at = null } = {}) {
  return h(
    "span",
    { class: "node-line" },
    typeMark(node.type),
    idLink(space, node.id, { at }),
    " ",
    h("span", {}, node.summary),
    node.refs?.length > 0 && h("span", { class: "dim" }, " ", node.refs.map((ref, i) => [i ? ", " : "", `${ref.relation} `, idLink(space, ref.target, { at })])),
    node.evidence?.length > 0 && h("span", { class: "dim" }, " on ", node.evidence.map((id, i) => [i ? ", " : "", idLink(space, id, { within })])),
  );
}

/** The colour of a type, with its name beside it. */
export const typeMark = (type) => h("span", { class: `type t-${type}` }, type);

export const badge = (text, kind = "") => h("span", { class: `badge ${kind}` }, text);

/** How a request ended. */
export const outcomeKind = (outcome) => ({ replied: "good", failed: "bad", cancelled: "bad", step_budget: "bad", no_progress: "bad" })[outcome] ?? "busy";

/** What went wrong, with its remedy. */
export function problemCard(problem) {
  return h(
    "div",
    { class: "card problem", role: "alert" },
    h("h2", {}, problem.message || "Something in this page went wrong."),
    h("p", {}, problem.remedy ?? "Refresh the page."),
    h("p", {}, h("a", { href: "#/" }, "All spaces")),
  );
}

/** Colours and what they stand for. */
export const legend = (pairs) =>
  h("ul", { class: "legend" }, pairs.map(([name, colour]) => h("li", {}, h("i", { class: colour, "aria-hidden": "true" }), name.replace("_", " "))));

/** Numbers as a table; the first column names the row. */
export function table(caption, head, rows) {
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", { class: "visually-hidden" }, caption),
      h("thead", {}, h("tr", {}, head.map((cell) => h("th", { scope: "col" }, cell)))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, i) => h(i ? "td" : "th", i ? {} : { scope: "row" }, cell))))),
    ),
  );
}

export const quoted = (text, most = 90) => clip(text.replace(/\s+/g, " ").trim(), most);
