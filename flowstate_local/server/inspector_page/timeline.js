// A request step by step: what the model wrote, what came of it, and what the prompt was made of.

import { all, get, inSpace } from "./api.js";
import { h, put, rove, say } from "./dom.js";
import { bytes, clip, count, outcomeWord, plural, seconds, share, when } from "./format.js";
import { badge, idLink, legend, nodeLine, outcomeKind, quoted, rawLink, segmentClass, table } from "./pieces.js";
import { go, link, slide } from "./route.js";

/** The list of requests beside the one that is chosen. */
export async function mount(root, { space }) {
  const [known, info] = await Promise.all([all(inSpace(space, "requests")), get(inSpace(space))]);
  const ids = known.map((record) => record.id);
  if (info.open_request) ids.push(info.open_request);
  const items = [...known.map((record) => item(space, record)), ...(info.open_request ? [openItem(space, info.open_request)] : [])];
  const list = h("ol", { class: "requests", keydown: (event) => rove(event, items.map((one) => one.firstChild)) }, items);
  const detail = h("section", { class: "detail", "aria-label": "The request" });
  put(root, h("nav", { class: "side", "aria-label": "Requests" }, h("h2", {}, plural(ids.length, "request")), list), detail);
  let drawn = "";

  async function update(route) {
    const id = route.id || ids.at(-1);
    if (!id) return put(detail, h("p", { class: "card empty" }, "Nothing was asked here yet."));
    for (const one of items) one.firstChild.setAttribute("aria-current", one.dataset.id === id ? "true" : "false");
    if (drawn !== id) {
      const found = await get(inSpace(space, "requests", id, "events"));
      put(detail, ...requestOf(space, found));
      detail.scrollTop = 0;
      drawn = id;
      items.find((one) => one.dataset.id === id)?.scrollIntoView({ block: "nearest" });
      say(`Request ${id}, ${plural(detail.querySelectorAll(".step").length, "step")}`);
    }
    const step = detail.querySelector(`[data-step="${route.step}"]`);
    if (step && !step.contains(document.activeElement)) step.focus();
  }

  function key(event, typing) {
    if (typing || event.target.closest(".requests, .scroll, pre")) return false;
    const shift = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (shift) {
      const next = ids[ids.indexOf(drawn) + shift];
      if (next) go({ space, id: next });
      return Boolean(next);
    }
    return alongSteps(event, detail, (step) => slide({ space, id: drawn, step }));
  }
  return { update, key };
}

function alongSteps(event, detail, choose) {
  const steps = [...detail.querySelectorAll(".step")];
  const here = steps.indexOf(document.activeElement?.closest(".step"));
  if (event.key === "Enter" && steps[here] === document.activeElement) {
    const verbatim = steps[here].querySelector("details.verbatim");
    if (verbatim) verbatim.open = !verbatim.open;
    return Boolean(verbatim);
  }
  const move = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  const next = steps[here + move] ?? (here < 0 && move ? steps[0] : null);
  if (!next) return false;
  event.preventDefault();
  next.focus();
  next.scrollIntoView({ block: "nearest" });
  choose(Number(next.dataset.step));
  return true;
}

// --- the list -----------------------------------------------------------------------------------------------------

function item(space, record) {
  return h(
    "li",
    { "data-id": record.id },
    h(
      "a",
      { href: link({ space, id: record.id }), "data-rove": true },
      h("span", { class: "row between" }, h("strong", { class: "mono" }, record.id), badge(outcomeWord(record.outcome), outcomeKind(record.outcome))),
      h("span", { class: "asked" }, quoted(record.text, 120)),
      h("span", { class: "dim small" }, `${plural(record.steps, "step")}, ${plural(record.nodes.length, "node")}, ${when(record.at).slice(0, 16)}`),
    ),
  );
}

function openItem(space, id) {
  return h(
    "li",
    { "data-id": id },
    h("a", { href: link({ space, id }), "data-rove": true }, h("span", { class: "row between" }, h("strong", { class: "mono" }, id), badge("under way", "busy")), h("span", { class: "dim small" }, "not persisted yet")),
  );
}

// --- one request --------------------------------------------------------------------------------------------------

function requestOf(space, found) {
  const started = found.events.find((event) => event.kind === "RequestStarted");
  const finished = found.events.find((event) => event.kind === "RequestFinished");
  const steps = stepsOf(found.events);
  const replies = found.events.filter((event) => event.kind === "ModelReplied");
  const longest = Math.max(1, ...replies.map((reply) => reply.prompt_tokens));
  const used = [...new Set(replies.flatMap((reply) => Object.keys(reply.segments).filter((name) => reply.segments[name])))];
  return [
    h(
      "header",
      { class: "request-head" },
      h("div", { class: "row" }, h("h2", { tabindex: "-1" }, found.request), badge(outcomeWord(finished?.outcome), outcomeKind(finished?.outcome)), started?.date && h("span", { class: "dim" }, `today is ${started.date}`), started && h("span", { class: "dim" }, when(started.at))),
      h("blockquote", { class: "asked-whole" }, started?.text ?? found.record?.text ?? ""),
      finished?.message && h("div", { class: "reply" }, h("span", { class: "dim small" }, "Reply"), h("p", {}, finished.message)),
      totals(replies),
      started?.cause && h("p", { class: "dim small" }, `asked by step ${started.cause.step} of task ${started.cause.task}`),
    ),
    used.length > 0 && h("div", { class: "prompt-key" }, h("span", { class: "dim small" }, "Prompt, by segment:"), legend([...used.map((name) => [name, segmentClass(name)]), ["from the prefix cache", "seg-cache"]])),
    h("div", { class: "steps", role: "list" }, steps.map((events) => stepCard(space, found.request, events, longest))),
    finished && h("p", { class: "dim small end" }, `Persisted: ${plural(finished.nodes.length, "node")}`, finished.nodes.map((id, i) => [i ? ", " : " (", idLink(space, id)]), finished.nodes.length ? ")" : "", `, ${plural(finished.evidence.length, "raw result")}.`),
  ].filter(Boolean);
}

function totals(replies) {
  const sum = (name) => replies.reduce((all, reply) => all + reply[name], 0);
  const prompt = sum("prompt_tokens");
  const facts = [
    [plural(replies.length, "model call"), ""],
    [count(prompt), "prompt tokens"],
    [share(sum("cached_tokens"), prompt), "of them cached"],
    [count(sum("generated_tokens")), "tokens written"],
    [seconds(sum("total_s")), "in the model"],
  ];
  return h("p", { class: "totals" }, facts.map(([value, unit]) => h("span", {}, h("strong", {}, value), unit && ` ${unit}`)));
}

/** Events by step, in order; what belongs to no step is left out. */
function stepsOf(events) {
  const steps = new Map();
  for (const event of events) {
    if (event.step < 1 || event.kind === "RequestStarted" || event.kind === "RequestFinished") continue;
    steps.set(event.step, [...(steps.get(event.step) ?? []), event]);
  }
  return [...steps.values()];
}

function stepCard(space, request, events, longest) {
  const number = events[0].step;
  const reply = events.find((event) => event.kind === "ModelReplied");
  const output = reply && parsed(reply.text);
  const last = events.at(-1);
  return h(
    "article",
    { class: "card step", "data-step": number, tabindex: "0", role: "listitem", "aria-label": `Step ${number}${output ? `, ${shapeOf(output)}` : ""}` },
    h(
      "div",
      { class: "row between" },
      h("h3", {}, `Step ${number}`, output && h("span", { class: "shape" }, shapeOf(output))),
      h("a", { class: "small", href: link({ space, view: "graph", at: last.seq }), title: `The graph just after event ${last.seq}` }, "memory after this step"),
    ),
    reply ? promptBar(reply, longest) : h("p", { class: "dim" }, "The model has not answered yet."),
    h(
      "div",
      { class: "two" },
      h("section", {}, h("h4", {}, "The model wrote"), reply && wrote(space, request, reply, output)),
      h("section", {}, h("h4", {}, "What came of it"), cameOf(space, request, events, output)),
    ),
  );
}

function parsed(text) {
  try {
    const output = JSON.parse(text);
    return output && typeof output === "object" && !Array.isArray(output) ? output : null;
  } catch {
    return null;
  }
}

const listOf = (value) => (Array.isArray(value) ? value : []);

function shapeOf(output) {
  const parts = [listOf(output.state_focus).length && "look", listOf(output.tool_calls).length && "act", String(output.assistant_message ?? "").trim() && "reply"].filter(Boolean);
  return parts.join(" + ") || (listOf(output.state_delta).length ? "note" : "empty");
}

// --- the prompt ---------------------------------------------------------------------------------------------------

function promptBar(reply, longest) {
  const segments = Object.entries(reply.segments).filter(([, tokens]) => tokens > 0);
  const parts = segments.length ? segments : [["prompt", reply.prompt_tokens]];
  const told = `${count(reply.prompt_tokens)} prompt tokens, ${count(reply.cached_tokens)} of them cached. ${parts.map(([name, tokens]) => `${name} ${count(tokens)}`).join(", ")}`;
  const bar = h(
    "div",
    { class: "prompt", role: "img", "aria-label": told, size: { width: `${(100 * reply.prompt_tokens) / longest}%` } },
    h("div", { class: "segments" }, parts.map(([name, tokens]) => h("span", { class: segmentClass(name), title: `${name}: ${count(tokens)} tokens (${share(tokens, reply.prompt_tokens)})`, size: { "flex-grow": tokens } }))),
    h("div", { class: "cache", title: `cached: the first ${count(reply.cached_tokens)} tokens` }, h("span", { size: { width: share(reply.cached_tokens, reply.prompt_tokens).replace(" ", "") } })),
  );
  return h(
    "div",
    { class: "prompt-box" },
    bar,
    h(
      "details",
      { class: "numbers" },
      h("summary", {}, `${count(reply.prompt_tokens)} prompt tokens, ${share(reply.cached_tokens, reply.prompt_tokens)} cached, ${count(reply.generated_tokens)} written; first token after ${seconds(reply.ttft_s)}, all after ${seconds(reply.total_s)}`),
      table("Prompt tokens by segment", ["segment", "tokens", "share", "cached"], cachedBySegment(parts, reply).map(([name, tokens, hit]) => [name.replace("_", " "), count(tokens), share(tokens, reply.prompt_tokens), count(hit)])),
    ),
  );
}

/** The cache serves a prefix, so it fills the segments from the first on. */
function cachedBySegment(parts, reply) {
  let left = reply.cached_tokens;
  return parts.map(([name, tokens]) => {
    const hit = Math.min(left, tokens);
    left -= hit;
    return [name, tokens, hit];
  });
}

// --- what it wrote ------------------------------------------------------------------------------------------------

function wrote(space, request, reply, output) {
  return [
    output && h(
      "dl",
      { class: "blocks" },
      block("open", listOf(output.state_focus).map((id) => idLink(space, String(id), { within: request }))),
      block("state", listOf(output.state_delta).map((op) => operation(space, request, op))),
      block("call", listOf(output.tool_calls).map((call) => h("code", { class: "call" }, callText(call.name, call.arguments)))),
      block("say", output.assistant_message ? [h("span", { class: "said" }, output.assistant_message)] : []),
    ),
    output && shapeOf(output) === "empty" && h("p", { class: "dim" }, "Nothing in any of its blocks."),
    h("details", { class: "verbatim", open: !output }, h("summary", {}, "word for word"), h("pre", { tabindex: "0", "aria-label": "The output, word for word" }, reply.text)),
  ];
}

const block = (name, items) => items.length > 0 && [h("dt", {}, name), h("dd", {}, items.map((one) => h("div", {}, one)))];

function operation(space, request, op) {
  const node = { id: String(op?.id ?? "?"), type: op?.type, summary: op?.summary ?? "", refs: listOf(op?.refs), evidence: listOf(op?.evidence) };
  if (op?.op === "add" && op.type) return [h("span", { class: "sign" }, "add "), nodeLine(space, node, { within: request })];
  return [h("span", { class: "sign" }, `${op?.op ?? "?"} `), idLink(space, node.id), ` ${node.summary}`];
}

const callText = (name, values) => `${name}(${Object.entries(values ?? {}).map(([key, value]) => `${key}=${JSON.stringify(value)}`).join(", ")})`;

// --- what came of it ----------------------------------------------------------------------------------------------

function cameOf(space, request, events, output) {
  const lines = events.flatMap((event) => (LINES[event.kind] ?? (() => []))(space, request, event, events));
  if (output && String(output.assistant_message ?? "").trim()) lines.push(line("reply", "said", "The reply ended the request.", "good"));
  return lines.length ? h("ul", { class: "came" }, lines) : h("p", { class: "dim" }, "Nothing.");
}

const line = (kind, word, content, tone = "") => h("li", { class: `came-${kind}` }, badge(word, tone), h("span", {}, content));

const refusals = (space, request, event) =>
  event.refused.map((refusal) => line("refused", "refused", [h("code", { class: "rule" }, refusal.rule), " ", h("span", { class: "mono" }, refusal.subject), `: ${refusal.advice}`], "bad"));

const LINES = {
  ModelReplied: (space, request, event) => (event.fault ? [line("fault", "unused", `The output was ${event.fault.replace("_", " ")}; nothing of it was committed (finish reason: ${event.finish_reason}).`, "bad")] : []),
  DeltaCommitted: (space, request, event) => [
    ...event.added.map((node) => line("accepted", "accepted", nodeLine(space, node, { within: request, at: null }), "good")),
    ...event.updated.map((node) => line("accepted", "updated", nodeLine(space, node, { within: request }), "good")),
    ...event.removed.map((id) => line("accepted", "removed", idLink(space, id), "good")),
    ...refusals(space, request, event),
  ],
  Disclosed: (space, request, event) => [
    ...event.granted.map((id) => line("opened", "opened", [idLink(space, id, { within: request }), h("span", { class: "dim" }, " in the prompt from the next step on")], "info")),
    ...refusals(space, request, event),
  ],
  ToolStarted: (space, request, event, events) => [toolLine(request, event, events.find((other) => other.kind === "ToolFinished" && other.evidence === event.evidence))],
  ToolFinished: (space, request, event, events) => (events.some((other) => other.kind === "ToolStarted" && other.evidence === event.evidence) ? [] : [toolLine(request, event, event)]),
};

function toolLine(request, started, finished) {
  const head = [h("a", { class: "id raw", href: rawLink(started.evidence, request) }, started.evidence), " ", h("code", { class: "call" }, started.arguments ? clip(callText(started.name, started.arguments), 160) : started.name)];
  if (!finished) return line("tool", "called", [head, h("span", { class: "dim" }, started.external ? " waits for its result from the client" : " is running, or was cut off")], "busy");
  const facts = h("span", { class: "dim" }, ` ${bytes(finished.size_bytes)} in ${seconds(finished.duration_s)}`);
  if (!finished.failure) return line("tool", "result", [head, facts], "info");
  return line("tool", "failed", [head, facts, h("div", {}, h("code", { class: "rule" }, finished.failure.kind), ` ${finished.failure.message}`, finished.failure.retryable && h("span", { class: "dim" }, " (may be tried again)"))], "bad");
}
