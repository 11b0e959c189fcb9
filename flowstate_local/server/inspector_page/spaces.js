// The door: a key, and the spaces it opens.

import { get, setKey } from "./api.js";
import { h, put, say } from "./dom.js";
import { plural } from "./format.js";
import { link } from "./route.js";

/** Ask for a key; `problem` says why the last one was no good. */
export function askKey(root, problem, done) {
  const input = h("input", {
    id: "key",
    type: "password",
    autocomplete: "off",
    spellcheck: "false",
    required: true,
    "aria-describedby": "key-note",
  });
  const submit = (event) => {
    event.preventDefault();
    setKey(input.value.trim());
    done();
  };
  put(
    root,
    h(
      "form",
      { class: "card door", submit },
      h("h2", {}, "Look into a memory"),
      problem && h("p", { class: "problem", role: "alert" }, h("strong", {}, problem.message), " ", problem.remedy),
      h("label", { for: "key" }, "API key"),
      h("div", { class: "row" }, input, h("button", { type: "submit", class: "main" }, "Open")),
      h(
        "p",
        { class: "dim", id: "key-note" },
        "It stays in this tab until you close it, and goes nowhere but to this server. A key with the scope “read” is enough; ",
        h("code", {}, "flowstate serve"),
        " tells one at its first start.",
      ),
    ),
  );
  input.focus();
}

/** The list of spaces. */
export async function mount(root) {
  const spaces = await get("spaces");
  put(
    root,
    h("h2", { class: "title", tabindex: "-1" }, "Spaces"),
    spaces.length
      ? h("ul", { class: "spaces" }, spaces.map(card))
      : h(
          "p",
          { class: "card empty" },
          "No space yet. One begins with its first request: send a chat completion to this server, and refresh.",
        ),
  );
  say(plural(spaces.length, "space"));
  return {};
}

function card(space) {
  return h(
    "li",
    {},
    h(
      "a",
      { class: "card space", href: link({ space: space.space }) },
      h("strong", {}, space.space),
      h("span", { class: "dim" }, `${plural(space.version, "request")}, ${plural(space.nodes, "node")}, ${plural(space.events, "event")}`),
      space.open_request && h("span", { class: "badge busy" }, `${space.open_request} is under way`),
    ),
  );
}
