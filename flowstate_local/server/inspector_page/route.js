// The address after `#`: which space, which view, what of it. Reload and back lead to the same place.

const VIEWS = new Set(["request", "graph", "tasks", "tokens"]);

/** `#/space/trip/request/r3/step/2?raw=t1` as an object. Anything unknown is the list of spaces. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?");
  const parts = path.split("/").map(decoded);
  const params = new URLSearchParams(query);
  const route = { view: "spaces", space: "", id: "", step: 0, at: null, raw: "", within: "", page: 1 };
  if (parts[0] !== "space" || !parts[1]) return route;
  route.space = parts[1];
  route.view = VIEWS.has(parts[2]) ? parts[2] : "request";
  route.id = VIEWS.has(parts[2]) ? parts[3] ?? "" : "";
  route.step = parts[4] === "step" ? Number(parts[5]) || 0 : 0;
  route.at = /^\d+$/.test(params.get("at") ?? "") ? Number(params.get("at")) : null;
  route.raw = params.get("raw") ?? "";
  route.within = params.get("within") ?? "";
  route.page = Number(params.get("page")) || 1;
  return route;
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** The hash of a route; what it doesn't name is left out. */
export function link({ space = "", view = "request", id = "", step = 0, at = null, raw = "", within = "", page = 1 }) {
  if (!space) return "#/";
  const parts = ["#/space", encodeURIComponent(space), view];
  if (id) parts.push(encodeURIComponent(id));
  if (id && step) parts.push("step", step);
  const params = new URLSearchParams();
  if (at !== null) params.set("at", at);
  if (raw) params.set("raw", raw);
  if (raw && within) params.set("within", within);
  if (raw && page > 1) params.set("page", page);
  return parts.join("/") + (params.size ? `?${params}` : "");
}

export const here = () => parse(location.hash);

/** Go to a route. */
export function go(route) {
  location.hash = link(route);
}

/** Change the address without a new entry in the history, and tell the page. */
export function slide(route) {
  history.replaceState(null, "", link(route));
  window.dispatchEvent(new HashChangeEvent("hashchange"));
}
