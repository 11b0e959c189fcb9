// Where each node stands. Pure: the same graph and filter give the same places.

export const COLUMN = 210;
export const ROW = 46;
export const WIDTH = 168;
export const HEIGHT = 34;
/** Above each column, for the name of its request. */
export const HEAD = 26;
const ORDER = { preference: 0, knowledge: 1, attribute: 2, judgement: 3, artifact: 4 };

/** Nodes with their places, the links between those that are shown, and what each node rests on. */
export function layout(graph, filter) {
  const byId = new Map(graph.nodes.map((node) => [node.id, node]));
  for (const node of graph.nodes) node.old = "";
  for (const edge of graph.edges) {
    if (edge.relation === "supersedes" && byId.has(edge.target)) byId.get(edge.target).old = edge.source;
  }
  const words = filter.text.toLowerCase().split(/\s+/).filter(Boolean);
  const nodes = graph.nodes.filter((node) => filter.types.has(node.type) && holds(node, words));
  const columns = new Map();
  for (const node of nodes) {
    if (!columns.has(node.request)) columns.set(node.request, []);
    columns.get(node.request).push(node);
  }
  const requests = [...columns.keys()].sort((a, b) => Number(a.slice(1)) - Number(b.slice(1)));
  const places = new Map();
  const bands = bandsOf(requests, columns);
  requests.forEach((request, column) => {
    const inside = columns.get(request).sort((a, b) => ORDER[a.type] - ORDER[b.type]);
    const { x, y } = bands.start(column);
    inside.forEach((node, row) => places.set(node.id, { node, x, y: y + row * ROW, column, row }));
  });
  const edges = graph.edges.filter((edge) => edge.relation !== "evidence" && places.has(edge.source) && places.has(edge.target));
  return { nodes, edges, places, requests, columns, bands, behind: chains(graph, byId), raw: rawOf(graph) };
}

/** Many columns are laid in bands, one below the other like lines of a text, so that a window can hold them all. */
function bandsOf(requests, columns) {
  const rows = Math.max(1, ...requests.map((request) => columns.get(request).length));
  const height = rows * ROW + HEAD + 14;
  const many = requests.length;
  const perBand = many <= 4 ? Math.max(1, many) : Math.max(4, Math.ceil(Math.sqrt((1.5 * many * height) / COLUMN)));
  return {
    width: Math.min(many, perBand) * COLUMN,
    height: Math.ceil(many / perBand) * height,
    start: (column) => ({ x: (column % perBand) * COLUMN, y: HEAD + Math.floor(column / perBand) * height }),
  };
}

function holds(node, words) {
  if (!words.length) return true;
  const text = `${node.id} ${node.summary} ${node.content} ${(node.slots ?? []).map((slot) => `${slot.name} ${slot.value}`).join(" ")}`.toLowerCase();
  return words.every((word) => text.includes(word));
}

function rawOf(graph) {
  const raw = new Map();
  for (const edge of graph.edges) if (edge.relation === "evidence") raw.set(edge.source, [...(raw.get(edge.source) ?? []), edge.target]);
  return raw;
}

/** Node -> itself and all it rests on, depth first; computed when somebody asks. */
function chains(graph, byId) {
  const out = new Map();
  for (const edge of graph.edges) if (edge.relation !== "evidence") out.set(edge.source, [...(out.get(edge.source) ?? []), edge]);
  const known = new Map();
  const walk = (start) => {
    const seen = new Set([start]);
    const hops = [];
    const visit = (id, relation, depth) => {
      const node = byId.get(id);
      hops.push({ id, relation, depth, summary: node?.summary ?? "", evidence: node?.evidence ?? [] });
      for (const edge of out.get(id) ?? []) {
        if (seen.has(edge.target)) continue;
        seen.add(edge.target);
        visit(edge.target, edge.relation, depth + 1);
      }
    };
    visit(start, "", 0);
    return hops;
  };
  return { get: (id) => (byId.has(id) ? known.get(id) ?? (known.set(id, walk(id)), known.get(id)) : undefined) };
}
