// Nodes and what they rest on: a column for each request, in time; a row for each node of it, by type.
// Drawn on a canvas, so that a thousand nodes scroll and zoom at once; the list beside it says the same to everybody.

import { get, inSpace } from "./api.js";
import { h, put, rove, say } from "./dom.js";
import { clip, plural, when } from "./format.js";
import { layout } from "./graph_layout.js";
import { Picture } from "./graph_picture.js";
import { TYPES, badge, idLink, legend, typeMark } from "./pieces.js";
import { go, here, link, slide } from "./route.js";

const MOST_LISTED = 400;

/** The picture, the list, the node that is chosen, and the slider of time. */
export async function mount(root, { space }) {
  const now = await get(inSpace(space, "moment"));
  const state = { space, now, at: null, graph: null, moment: now, chosen: "", filter: { text: "", types: new Set(TYPES) } };
  const canvas = h("canvas", { tabindex: "0", role: "application", "aria-label": "The graph; arrow keys go from node to node, Enter opens the request" });
  const picture = new Picture(canvas, (id) => choose(id));
  const list = h("ol", { class: "nodes", "aria-label": "Nodes" });
  list.addEventListener("keydown", (event) => rove(event, [...list.querySelectorAll("[data-rove]")]));
  const chosen = h("section", { class: "card chosen", "aria-label": "The chosen node" });
  const summary = h("p", { class: "dim small", role: "status" });
  const time = timeBar(state, (at) => slide({ space, view: "graph", id: state.chosen, at }));
  const search = filterBar(state, redraw);
  put(
    root,
    h("div", { class: "graph-bars" }, search.element, time.element),
    h("div", { class: "graph-box" }, h("div", { class: "drawing" }, canvas, zoomButtons(picture)), h("aside", { class: "graph-side" }, chosen, summary, list)),
  );

  async function update(route) {
    if (state.graph === null || state.at !== route.at) {
      const params = route.at === null ? {} : { as_of_seq: route.at };
      const [graph, moment] = await Promise.all([
        get(inSpace(space, "graph"), params),
        get(inSpace(space, "moment"), route.at === null ? {} : { seq: route.at }),
      ]);
      Object.assign(state, { at: route.at, moment, graph: whole(graph, moment) });
      time.show(moment, route.at);
    }
    state.chosen = route.id;
    redraw();
    if (route.id) picture.reveal(route.id);
  }

  function redraw() {
    const drawn = layout(state.graph, state.filter);
    picture.show(drawn, state.chosen);
    showList(list, state, drawn);
    showChosen(chosen, state, drawn);
    put(summary, `${plural(drawn.nodes.length, "node")} of ${plural(state.graph.nodes.length, "node")}, ${plural(drawn.edges.length, "link")}`);
    say(`${plural(drawn.nodes.length, "node")} shown`);
  }

  function choose(id) {
    go({ ...here(), view: "graph", id, raw: "" });
  }

  function key(event, typing) {
    if (event.key === "Escape" && (typing || state.chosen)) {
      if (typing) search.clear();
      if (typing) canvas.focus();
      else choose("");
      event.preventDefault();
      return true;
    }
    if (typing) return false;
    const zoom = { "+": 1.25, "=": 1.25, "-": 0.8 }[event.key];
    if (zoom) picture.zoom(zoom);
    else if (event.key === "0") picture.fit();
    else if (event.key === "/") search.focus();
    else if (event.key === "[" || event.key === "]") time.step(event.key === "[" ? -1 : 1);
    else if (document.activeElement !== canvas) return false;
    else if (event.key === "Enter" && state.chosen) openRequest(state);
    else {
      const next = picture.neighbour(event.key, state.chosen);
      if (!next) return false;
      slide({ ...here(), id: next, raw: "" });
    }
    event.preventDefault();
    return true;
  }

  return { update, key, placed: () => picture.fit(), unmount: () => picture.end() };
}

/** What is persisted, and what the request under way has made so far. */
function whole(graph, moment) {
  const making = new Set(moment.making.map((node) => node.id));
  return {
    nodes: [...graph.nodes, ...moment.making.filter((node) => !graph.nodes.some((known) => known.id === node.id))],
    edges: [...graph.edges, ...moment.making_edges],
    making,
  };
}

function openRequest(state) {
  const node = state.graph.nodes.find((one) => one.id === state.chosen);
  if (node) go({ space: state.space, id: node.request, step: node.step });
}

// --- bars ---------------------------------------------------------------------------------------------------------

function filterBar(state, redraw) {
  const input = h("input", { type: "search", id: "filter", placeholder: "filter: words of a node, or its id", "aria-label": "Filter the nodes", maxlength: "200", spellcheck: "false" });
  input.addEventListener("input", () => {
    state.filter.text = input.value;
    redraw();
  });
  const boxes = TYPES.map((type) => {
    const box = h("input", { type: "checkbox", id: `type-${type}`, checked: true });
    box.addEventListener("change", () => {
      box.checked ? state.filter.types.add(type) : state.filter.types.delete(type);
      redraw();
    });
    return h("label", { class: "check", for: `type-${type}` }, box, typeMark(type));
  });
  const clear = () => {
    input.value = state.filter.text = "";
    redraw();
  };
  return { element: h("div", { class: "row" }, input, boxes), focus: () => input.focus(), clear };
}

function timeBar(state, change) {
  const slider = h("input", { type: "range", id: "time", min: "0", max: String(state.now.last), value: String(state.now.last), "aria-label": "As of event" });
  const told = h("output", { for: "time", class: "told small" });
  const latest = h("button", { type: "button", click: () => change(null) }, "Now");
  let waiting = 0;
  slider.addEventListener("input", () => {
    put(told, `event ${slider.value}`);
    clearTimeout(waiting);
    waiting = setTimeout(() => change(atOf(Number(slider.value))), 120);
  });
  const atOf = (seq) => (seq >= state.now.last ? null : seq);

  async function step(direction) {
    const { data } = await get(inSpace(state.space, "requests"), { limit: 1000 });
    const ends = [0, ...data.map((record) => record.last_seq)];
    const at = state.at ?? state.now.last;
    const next = direction < 0 ? ends.filter((seq) => seq < at).at(-1) : ends.find((seq) => seq > at);
    if (next !== undefined) change(atOf(next));
  }

  function show(moment, at) {
    slider.value = String(at ?? state.now.last);
    const where = moment.kind ? `${moment.kind} of ${moment.request}${moment.step ? `, step ${moment.step}` : ""}` : "before everything";
    put(told, at === null ? "now" : `as of event ${moment.seq}: ${where}${moment.at ? `, ${when(moment.at)}` : ""}`);
    slider.setAttribute("aria-valuetext", told.textContent);
    latest.disabled = at === null;
  }
  return { element: h("div", { class: "row time" }, h("label", { for: "time", class: "dim small" }, "Time"), slider, latest, told), show, step };
}

function zoomButtons(picture) {
  return h(
    "div",
    { class: "zoom" },
    h("button", { type: "button", "aria-label": "Nearer", click: () => picture.zoom(1.25) }, "+"),
    h("button", { type: "button", "aria-label": "Farther", click: () => picture.zoom(0.8) }, "−"),
    h("button", { type: "button", "aria-label": "Everything", click: () => picture.fit() }, "⤢"),
  );
}

// --- the side -----------------------------------------------------------------------------------------------------

function showList(list, state, drawn) {
  const listed = drawn.nodes.slice(-MOST_LISTED);
  const item = (node) =>
    h(
      "li",
      {},
      h(
        "a",
        { href: link({ space: state.space, view: "graph", id: node.id, at: state.at }), "data-rove": true, "aria-current": node.id === state.chosen ? "true" : null, class: node.old ? "old" : "" },
        typeMark(node.type),
        h("span", { class: "mono" }, ` ${node.id} `),
        clip(node.summary, 110),
      ),
    );
  put(list, listed.map(item));
  if (drawn.nodes.length > listed.length) list.prepend(h("li", { class: "dim small" }, `the newest ${MOST_LISTED}; filter to see others`));
}

function showChosen(box, state, drawn) {
  const node = state.graph.nodes.find((one) => one.id === state.chosen);
  box.hidden = !state.chosen;
  if (!state.chosen) return put(box);
  if (!node) return put(box, h("p", { class: "dim" }, `There is no node ${state.chosen} at this time.`));
  const chain = drawn.behind.get(node.id) ?? [];
  const at = state.at;
  const id = (one) => idLink(state.space, one, { within: node.request, at });
  put(
    box,
    h("div", { class: "row between" }, h("h3", {}, typeMark(node.type), h("span", { class: "mono" }, ` ${node.id}`)), h("a", { href: link({ space: state.space, id: node.request, step: node.step }), class: "small" }, `${node.request}, step ${node.step}`)),
    h("p", { class: "chosen-summary" }, node.summary),
    marks(state, node),
    node.content && h("pre", { tabindex: "0", "aria-label": "Its content" }, node.content),
    node.slots?.length > 0 && h("dl", { class: "slots" }, node.slots.map((slot) => [h("dt", {}, slot.name), h("dd", {}, slot.value)])),
    node.refs?.length > 0 && h("ul", { class: "links" }, node.refs.map((ref) => h("li", {}, h("span", { class: `relation r-${ref.relation}` }, ref.relation), " ", id(ref.target)))),
    node.evidence?.length > 0 && h("p", {}, h("span", { class: "dim" }, "on raw results "), node.evidence.map((one) => [id(one), " "])),
    chain.length > 1 && h("details", { class: "chain", open: true }, h("summary", {}, `what it rests on: ${plural(chain.length - 1, "node")}, hop by hop`), h("ol", {}, chain.slice(1, 60).map((hop) => h("li", { size: { "padding-left": `${10 * (hop.depth - 1)}px` } }, h("span", { class: `relation r-${hop.relation}` }, hop.relation), " ", id(hop.id), " ", h("span", { class: "dim" }, clip(hop.summary, 70)), hop.evidence.map((one) => [" ", id(one)]))))),
    legend([["supports, derives, follows", "edge-plain"], ["supersedes", "edge-supersedes"]]),
  );
}

function marks(state, node) {
  const marks = [
    node.old && badge(`superseded by ${node.old}`, "busy"),
    state.graph.making.has(node.id) && badge("not persisted yet", "busy"),
    node.erased && badge("erased", "bad"),
    node.valid_until && badge(`valid until ${node.valid_until}`),
    typeof node.confidence === "number" && badge(`confidence ${node.confidence}`),
  ].filter(Boolean);
  return marks.length > 0 && h("div", { class: "row" }, marks);
}
