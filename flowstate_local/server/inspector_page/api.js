// The memory API, read with the key that the reader typed. The key stays in this tab: sessionStorage, nowhere else.

const BASE = new URL("../v1/", import.meta.url);
const KEY = "flowstate-key";
const known = new Map();

/** What went wrong, in plain words, and what to do about it. */
export class Problem extends Error {
  constructor(title, remedy, status = 0) {
    super(title);
    this.remedy = remedy;
    this.status = status;
  }
}

export const key = () => sessionStorage.getItem(KEY) ?? "";

export function setKey(value) {
  known.clear();
  value ? sessionStorage.setItem(KEY, value) : sessionStorage.removeItem(KEY);
}

/** Forget answers, so that the next ones are new. */
export const forget = () => known.clear();

/** The path below /v1/ of something in a space. */
export const inSpace = (space, ...parts) => ["spaces", space, ...parts].map(encodeURIComponent).join("/");

/** A JSON answer; asked once, until `forget`. */
export function get(path, params = {}) {
  const asked = `${path}?${new URLSearchParams(params)}`;
  if (!known.has(asked)) {
    const answer = fetched(asked).then((response) => response.json());
    answer.catch(() => known.delete(asked));
    known.set(asked, answer);
  }
  return known.get(asked);
}

/** Every page of a list. */
export async function all(path, params = {}) {
  const data = [];
  let after = null;
  do {
    const page = await get(path, { ...params, limit: 1000, ...(after ? { after } : {}) });
    data.push(...page.data);
    after = page.next;
  } while (after);
  return data;
}

/** Raw bytes as they are stored. */
export const blob = async (path) => (await fetched(path)).blob();

async function fetched(path) {
  let response;
  try {
    response = await fetch(new URL(path, BASE), {
      headers: { Authorization: `Bearer ${key()}` },
      cache: "no-store",
      credentials: "omit",
    });
  } catch {
    throw new Problem("The server does not answer.", "Start it with “flowstate serve” if it has ended, then refresh.");
  }
  if (!response.ok) throw await problemOf(response);
  return response;
}

const REMEDIES = {
  401: ["This key is not accepted.", "It is mistyped, revoked or expired. Enter another one."],
  403: ["This key may not read.", "Ask whoever runs the server for a key with the scope “read”."],
  404: ["Not found.", "It does not exist, or it belongs to somebody else. Check the name, or go back to the spaces."],
  429: ["Too many questions at once.", "Wait a moment, then refresh."],
  503: ["The server is busy or shutting down.", "Wait a moment, then refresh."],
};

async function problemOf(response) {
  const body = await response.json().catch(() => ({}));
  const told = body?.error?.message ?? "";
  const [title, remedy] = REMEDIES[response.status] ?? ["The server could not answer.", "Refresh; if it stays, look into its log."];
  return new Problem(response.status === 401 ? title : `${title}${told ? ` (${told})` : ""}`, remedy, response.status);
}
