// Where each node stands. Pure: the same graph and filter give the same places.

export const COLUMN = 210;
export const ROW = 46;
export const WIDTH = 168;
export const HEIGHT = 34;
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
  requests.forEach((request, column) => {
    const inside = columns.get(request).sort((a, b) => ORDER[a.type] - ORDER[b.type]);
    inside.forEach((node, row) => places.set(node.id, { node, x: column * COLUMN, y: row * ROW, column, row }));
  });
  const edges = graph.edges.filter((edge) => edge.relation !== "evidence" && places.has(edge.source) && places.has(edge.target));
  return { nodes, edges, places, requests, columns, behind: chains(graph, byId), raw: rawOf(graph) };
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
