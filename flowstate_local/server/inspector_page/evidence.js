// A raw result, byte for byte, in a dialog above whatever led to it.

import { blob, get, inSpace } from "./api.js";
import { h, put, say } from "./dom.js";
import { bytes, count } from "./format.js";
import { go, here, link } from "./route.js";
import { rawLink } from "./pieces.js";

const dialog = document.getElementById("raw");
let opener = null;

dialog.addEventListener("close", () => {
  const route = here();
  if (route.raw) go({ ...route, raw: "", within: "", page: 1 });
  opener?.isConnected && opener.focus();
  opener = null;
});

/** Open, change or close the dialog as the address says. */
export async function follow(route) {
  if (!route.raw) return dialog.open && dialog.close();
  if (!dialog.open) {
    opener = document.activeElement;
    put(dialog, bar(`Raw result ${route.raw}`), h("p", { class: "dim" }, "Loading…"));
    dialog.showModal();
  }
  try {
    const params = { page: route.page, ...(route.within ? { within: route.within } : {}) };
    const found = await get(inSpace(route.space, "evidence", route.raw, "text"), params);
    if (here().raw === route.raw) show(route, found);
  } catch (problem) {
    put(dialog, bar(`Raw result ${route.raw}`), h("p", { class: "problem", role: "alert" }, h("strong", {}, problem.message), " ", problem.remedy));
  }
}

function bar(title) {
  return h(
    "div",
    { class: "dialog-bar" },
    h("h2", { id: "raw-title" }, title),
    h("button", { type: "button", click: () => dialog.close() }, "Close"),
  );
}

function show(route, found) {
  const { record, text, form, page, pages } = found;
  const pre = h("pre", { class: "raw-text", tabindex: "0", "aria-label": "The raw result" }, text);
  put(
    dialog,
    bar(`Raw result ${record.id}`),
    h(
      "p",
      { class: "dim facts" },
      h("span", {}, "brought by ", h("strong", {}, record.tool), " in "),
      h("a", { href: link({ space: route.space, id: record.request, step: record.step }) }, `${record.request}, step ${record.step}`),
      h("span", {}, `; ${count(record.size_bytes)} bytes (${bytes(record.size_bytes)})`),
      form === "hex" && h("span", {}, "; not text, shown as a hex dump"),
      !found.kept && h("span", {}, "; no kept node cites it"),
    ),
    pre,
    pages > 1 && pager(route, page, pages),
    h(
      "div",
      { class: "row between" },
      h("code", { class: "digest", title: "SHA-256 of the bytes, checked now" }, `sha256 ${record.digest}`),
      found.kept && h("button", { type: "button", click: () => download(route, record) }, "Save the bytes"),
    ),
  );
  say(`Raw result ${record.id}, page ${page} of ${pages}`);
}

function pager(route, page, pages) {
  const to = (number, word) => (number >= 1 && number <= pages ? h("a", { href: rawLink(route.raw, route.within, number) }, word) : h("span", { class: "dim" }, word));
  return h("nav", { class: "row", "aria-label": "Pages of the raw result" }, to(page - 1, "Previous page"), h("span", {}, `page ${page} of ${pages}`), to(page + 1, "Next page"));
}

async function download(route, record) {
  const address = URL.createObjectURL(await blob(inSpace(route.space, "evidence", record.id)));
  const anchor = document.createElement("a");
  anchor.href = address;
  anchor.download = record.id;
  anchor.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}
