// Where the tokens went: each request by cached, new and written; by segment; and all of them added up.

import { all, inSpace } from "./api.js";
import { h, put, say, svg } from "./dom.js";
import { count, plural, seconds, share, short } from "./format.js";
import { SEGMENTS, legend, quoted, segmentClass, table } from "./pieces.js";
import { link } from "./route.js";

const MOST_BARS = 120;

/** Totals, three charts, and the same numbers as a table. */
export async function mount(root, { space }) {
  const costs = await all(inSpace(space, "costs"));
  if (!costs.length) {
    put(root, h("p", { class: "card empty" }, "No request has ended here yet, so nothing was spent."));
    return {};
  }
  const shown = costs.slice(-MOST_BARS);
  put(
    root,
    h("h2", { class: "title", tabindex: "-1" }, `Tokens of ${plural(costs.length, "request")}`),
    totals(costs),
    costs.length > shown.length && h("p", { class: "dim small" }, `Charts show the newest ${MOST_BARS}; the table shows all.`),
    h("div", { class: "charts" }, kinds(space, shown), segments(space, shown), cumulative(costs)),
    numbers(space, costs),
  );
  say(`Tokens of ${plural(costs.length, "request")}`);
  return {};
}

const sum = (costs, of) => costs.reduce((all, one) => all + of(one), 0);

function totals(costs) {
  const prompt = sum(costs, (one) => one.prompt_tokens);
  const facts = [
    [count(prompt), "prompt tokens"],
    [share(sum(costs, (one) => one.cached_tokens), prompt), "from the prefix cache"],
    [count(sum(costs, (one) => one.generated_tokens)), "written"],
    [count(sum(costs, (one) => one.calls)), "model calls"],
    [seconds(sum(costs, (one) => one.model_s)), "in the model"],
  ];
  return h("p", { class: "totals" }, facts.map(([value, unit]) => h("span", {}, h("strong", {}, value), ` ${unit}`)));
}

function chart(title, key, body, note = "") {
  return h("figure", { class: "card chart" }, h("figcaption", {}, h("h3", {}, title), note && h("span", { class: "dim small" }, note)), body, key && legend(key));
}

/** A bar for each request, piled up from parts; the bar leads to the request. */
function bars(space, costs, partsOf) {
  const most = Math.max(1, ...costs.map((one) => sum(partsOf(one), ([, tokens]) => tokens)));
  return h(
    "div",
    { class: costs.length > 30 ? "bars many" : "bars", role: "list" },
    costs.map((one) => {
      const parts = partsOf(one).filter(([, tokens]) => tokens > 0);
      const all = sum(parts, ([, tokens]) => tokens);
      const told = `${one.request}: ${parts.map(([name, tokens]) => `${name.replace("_", " ")} ${count(tokens)}`).join(", ")}`;
      return h(
        "a",
        { class: "bar", role: "listitem", href: link({ space, id: one.request }), title: told, "aria-label": told },
        h("span", { class: "pile", size: { height: `${(100 * all) / most}%` } }, parts.map(([name, tokens, colour]) => h("i", { class: colour, size: { "flex-grow": tokens } })).reverse()),
        costs.length <= 30 && h("span", { class: "bar-name mono" }, one.request),
      );
    }),
    h("span", { class: "most small dim", "aria-hidden": "true" }, short(most)),
  );
}

function kinds(space, costs) {
  const partsOf = (one) => [
    ["cached", one.cached_tokens, "seg-cached"],
    ["new in the prompt", one.prompt_tokens - one.cached_tokens, "seg-uncached"],
    ["written", one.generated_tokens, "seg-generated"],
  ];
  return chart("Cached, new, written", [["cached", "seg-cached"], ["new in the prompt", "seg-uncached"], ["written", "seg-generated"]], bars(space, costs, partsOf), "what the model had to read anew is orange");
}

function segments(space, costs) {
  const names = [...new Set(costs.flatMap((one) => Object.keys(one.segments)))].sort((a, b) => SEGMENTS.indexOf(a) - SEGMENTS.indexOf(b));
  const used = names.filter((name) => costs.some((one) => one.segments[name] > 0));
  if (!used.length) return null;
  return chart("Prompt by segment", used.map((name) => [name, segmentClass(name)]), bars(space, costs, (one) => used.map((name) => [name, one.segments[name] ?? 0, segmentClass(name)])), "all calls of a request together");
}

function cumulative(costs) {
  const [width, height] = [600, 180];
  let prompt = 0;
  let cached = 0;
  const points = costs.map((one) => [(prompt += one.prompt_tokens), (cached += one.cached_tokens)]);
  const x = (i) => (points.length > 1 ? (width * i) / (points.length - 1) : width);
  const y = (value) => height - (height * value) / Math.max(1, prompt);
  const path = (of) => `M0 ${height} ${points.map((point, i) => `L${x(i).toFixed(1)} ${y(of(point)).toFixed(1)}`).join(" ")}`;
  const told = `Added up: ${count(prompt)} prompt tokens, ${count(cached)} of them cached`;
  const lines = svg(
    "svg",
    { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": told, class: "lines" },
    svg("path", { d: `${path(([all]) => all)} L${width} ${height} Z`, class: "area area-prompt" }),
    svg("path", { d: `${path(([, hit]) => hit)} L${width} ${height} Z`, class: "area area-cached" }),
  );
  return chart("Added up over the requests", [["prompt", "seg-uncached"], ["cached", "seg-cached"]], lines, `${short(prompt)} prompt tokens in the end`);
}

function numbers(space, costs) {
  const row = (one) => [
    [h("a", { href: link({ space, id: one.request }) }, one.request), h("span", { class: "dim" }, ` ${quoted(one.text, 60)}`)],
    one.calls,
    count(one.prompt_tokens),
    `${count(one.cached_tokens)} (${share(one.cached_tokens, one.prompt_tokens)})`,
    count(one.generated_tokens),
    seconds(one.model_s),
  ];
  return h("section", { class: "card" }, table("Tokens by request", ["request", "calls", "prompt", "cached", "written", "in the model"], costs.map(row)));
}
