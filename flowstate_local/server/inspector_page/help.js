// The keys, in a dialog.

import { h, put } from "./dom.js";

const KEYS = [
  ["?", "show or hide this"],
  ["1  2  3  4", "timeline, graph, tasks, tokens"],
  ["s", "the spaces"],
  ["r", "ask the server again"],
  ["Tab", "to the next part of the page"],
  ["↑ ↓", "timeline: another step. Lists: another line. Graph: another node of the request"],
  ["← →", "timeline: another request. Graph: the request before or after"],
  ["Enter", "open what has the focus: a step word for word, a node, a raw result"],
  ["Esc", "close it, or let go of the node"],
  ["/", "graph: filter the nodes"],
  ["+  −  0", "graph: nearer, farther, everything"],
  ["[  ]", "graph: back in time, and forward, request by request"],
];
const dialog = document.getElementById("help");

/** Show the keys, or hide them. */
export function toggleHelp() {
  if (dialog.open) return dialog.close();
  put(
    dialog,
    h("div", { class: "dialog-bar" }, h("h2", { id: "help-title" }, "Keys"), h("button", { type: "button", click: () => dialog.close() }, "Close")),
    h("dl", { class: "keys" }, KEYS.map(([name, does]) => [h("dt", {}, h("kbd", {}, name)), h("dd", {}, does)])),
  );
  dialog.showModal();
}

dialog.addEventListener("keydown", (event) => {
  if (event.key === "?") dialog.close();
});
