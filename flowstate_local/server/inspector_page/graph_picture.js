// The canvas: draws what is in view, moves and zooms, and says which node is where.

import { COLUMN, HEAD, HEIGHT, WIDTH } from "./graph_layout.js";

/** Below these scales words can't be read, then ids can't. */
const FAR = 0.45;
const FARTHER = 0.19;
const RELATIONS = { supports: "--c-green", derives: "--c-blue", follows: "--c-grey", supersedes: "--c-orange" };

export class Picture {
  constructor(canvas, choose) {
    Object.assign(this, { canvas, choose, drawn: null, chosen: "", x: 0, y: 0, scale: 1, moved: false, waiting: 0 });
    this.context = canvas.getContext("2d");
    this.sizes = new ResizeObserver(() => this.resize());
    this.sizes.observe(canvas);
    this.theme = new MutationObserver(() => this.later());
    this.theme.observe(document.documentElement, { attributes: true, attributeFilter: ["data-theme"] });
    this.dark = matchMedia("(prefers-color-scheme: dark)");
    this.onDark = () => this.later();
    this.dark.addEventListener("change", this.onDark);
    this.listen();
  }

  show(drawn, chosen) {
    const first = this.drawn === null;
    Object.assign(this, { drawn, chosen });
    this.canvas.dataset.drawn = String(drawn.nodes.length);
    if (first) this.fit();
    this.later();
  }

  end() {
    this.sizes.disconnect();
    this.theme.disconnect();
    this.dark.removeEventListener("change", this.onDark);
    cancelAnimationFrame(this.waiting);
  }

  // --- moving -----------------------------------------------------------------------------------------------------

  get size() {
    return { width: this.canvas.clientWidth, height: this.canvas.clientHeight };
  }

  /** Everything in view. */
  fit() {
    if (!this.drawn?.requests.length) return;
    const { width, height } = this.size;
    if (!width) return;
    const { bands } = this.drawn;
    this.scale = Math.min(1.3, width / (bands.width + 30), height / (bands.height + 20));
    this.x = -20;
    this.y = -6;
    this.later();
  }

  zoom(factor, at = { x: this.size.width / 2, y: this.size.height / 2 }) {
    const scale = Math.min(2, Math.max(0.08, this.scale * factor));
    this.x += at.x / this.scale - at.x / scale;
    this.y += at.y / this.scale - at.y / scale;
    this.scale = scale;
    this.later();
  }

  /** Bring a node into view. */
  reveal(id) {
    const place = this.drawn?.places.get(id);
    const { width, height } = this.size;
    if (!place || !width) return;
    if (this.scale < FAR) this.scale = 0.8;
    const [left, top] = [(place.x - this.x) * this.scale, (place.y - this.y) * this.scale];
    if (left < 4 || left > width - WIDTH * this.scale - 4) this.x = place.x + WIDTH / 2 - width / 2 / this.scale;
    if (top < 4 || top > height - HEIGHT * this.scale - 10) this.y = place.y + HEIGHT / 2 - height / 2 / this.scale;
    this.later();
  }

  /** The node that an arrow key leads to. */
  neighbour(key, from) {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[key];
    if (!step || !this.drawn?.nodes.length) return "";
    const place = this.drawn.places.get(from);
    if (!place) return this.at(this.drawn.requests.length - 1, 0);
    return this.at(place.column + step[0], place.row + step[1]);
  }

  at(column, row) {
    const inside = this.drawn.columns.get(this.drawn.requests[column]);
    return inside && row >= 0 ? (inside[Math.min(row, inside.length - 1)]?.id ?? "") : "";
  }

  listen() {
    let grip = null;
    this.canvas.addEventListener("pointerdown", (event) => {
      grip = { x: event.clientX, y: event.clientY, far: 0 };
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (!grip) return;
      const [dx, dy] = [event.clientX - grip.x, event.clientY - grip.y];
      grip = { x: event.clientX, y: event.clientY, far: grip.far + Math.abs(dx) + Math.abs(dy) };
      this.x -= dx / this.scale;
      this.y -= dy / this.scale;
      this.later();
    });
    this.canvas.addEventListener("pointerup", (event) => {
      if (grip && grip.far < 5) {
        const id = this.hit(event.offsetX, event.offsetY);
        if (id !== this.chosen) this.choose(id);
      }
      grip = null;
    });
    this.canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      this.zoom(Math.exp(-event.deltaY / 400), { x: event.offsetX, y: event.offsetY });
    }, { passive: false });
  }

  hit(left, top) {
    const [x, y] = [left / this.scale + this.x, top / this.scale + this.y];
    for (const place of this.drawn?.places.values() ?? []) {
      if (x >= place.x && x <= place.x + WIDTH && y >= place.y && y <= place.y + HEIGHT) return place.node.id;
    }
    return "";
  }

  // --- drawing ----------------------------------------------------------------------------------------------------

  resize() {
    const { width, height } = this.size;
    const density = window.devicePixelRatio || 1;
    this.canvas.width = Math.round(width * density);
    this.canvas.height = Math.round(height * density);
    if (this.drawn && !this.moved) this.fit();
    this.moved = true;
    this.later();
  }

  later() {
    cancelAnimationFrame(this.waiting);
    this.waiting = requestAnimationFrame(() => this.draw());
  }

  draw() {
    const { context: c, drawn } = this;
    if (!drawn || !this.canvas.clientWidth) return;
    const style = getComputedStyle(this.canvas);
    const colour = (name) => resolved(style, name);
    const density = window.devicePixelRatio || 1;
    c.setTransform(density, 0, 0, density, 0, 0);
    c.clearRect(0, 0, this.size.width, this.size.height);
    c.setTransform(density * this.scale, 0, 0, density * this.scale, -this.x * this.scale * density, -this.y * this.scale * density);
    const lit = new Set((drawn.behind.get(this.chosen) ?? []).map((hop) => hop.id));
    for (const edge of drawn.edges) if (edge.source === this.chosen || edge.target === this.chosen) lit.add(edge.source).add(edge.target);
    if (lit.size < 2) lit.clear(); // a node without links need not hide all others
    this.drawEdges(c, drawn, lit, colour);
    this.drawNodes(c, drawn, lit, colour);
    this.drawHeads(c, drawn, colour, density);
  }

  drawEdges(c, drawn, lit, colour) {
    for (const edge of drawn.edges) {
      const [from, to] = [drawn.places.get(edge.source), drawn.places.get(edge.target)];
      const isLit = lit.size > 0 && lit.has(edge.source) && lit.has(edge.target);
      c.globalAlpha = lit.size ? (isLit ? 1 : 0.08) : 0.45;
      c.lineWidth = isLit ? 2.2 : 1.2;
      c.strokeStyle = colour(RELATIONS[edge.relation] ?? "--c-grey");
      c.setLineDash(edge.relation === "supersedes" ? [6, 4] : []);
      c.beginPath();
      const same = from.column === to.column;
      const [x1, y1, x2, y2] = [same ? from.x + WIDTH : from.x, from.y + HEIGHT / 2, to.x + WIDTH, to.y + HEIGHT / 2];
      const bend = same ? 26 : Math.max(30, Math.abs(x1 - x2) / 2.5);
      c.moveTo(x1, y1);
      c.bezierCurveTo(same ? x1 + bend : x1 - bend, y1, x2 + bend, y2, x2, y2);
      c.stroke();
    }
    c.setLineDash([]);
    c.globalAlpha = 1;
  }

  drawNodes(c, drawn, lit, colour) {
    const { width, height } = this.size;
    const [left, top, right, bottom] = [this.x - WIDTH, this.y - HEIGHT, this.x + width / this.scale, this.y + height / this.scale];
    c.textBaseline = "middle";
    for (const { node, x, y } of drawn.places.values()) {
      if (x < left || x > right || y < top || y > bottom) continue;
      const isChosen = node.id === this.chosen;
      c.globalAlpha = lit.size && !lit.has(node.id) ? 0.32 : node.old || node.erased ? 0.6 : 1;
      c.fillStyle = colour("--card");
      c.strokeStyle = isChosen ? colour("--focus") : colour("--line");
      c.lineWidth = isChosen ? 3 : 1.2;
      box(c, x, y);
      c.fillStyle = colour(TYPE_COLOURS[node.type] ?? "--c-grey");
      c.fillRect(x, y + 4, 5, HEIGHT - 8);
      if (this.scale >= FAR) this.drawWords(c, node, x, y, colour);
      else if (this.scale >= FARTHER) this.drawId(c, node, x, y, colour);
      c.globalAlpha = 1;
    }
  }

  /** From afar: the id alone, as large as its box allows. */
  drawId(c, node, x, y, colour) {
    c.fillStyle = colour("--fg");
    c.font = `600 ${Math.min(30, 9 / this.scale)}px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace`;
    c.fillText(node.id, x + 14, y + HEIGHT / 2 + 1, WIDTH - 20);
  }

  drawWords(c, node, x, y, colour) {
    c.fillStyle = colour("--fg");
    c.font = "600 12px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
    c.fillText(node.id, x + 12, y + 11);
    const raw = this.drawn.raw.get(node.id) ?? [];
    if (raw.length) {
      c.fillStyle = colour("--dim");
      c.textAlign = "right";
      c.fillText(raw.slice(0, 3).join(" "), x + WIDTH - 8, y + 11);
      c.textAlign = "left";
    }
    c.fillStyle = colour("--dim");
    c.font = "11.5px system-ui, 'Segoe UI', 'Liberation Sans', sans-serif";
    const words = fitted(c, node.summary, WIDTH - 20);
    c.fillText(words, x + 12, y + 25);
    if (node.old) c.fillRect(x + 12, y + 25, c.measureText(words).width, 1);
  }

  /** The requests, above their columns; as many as there is room for. */
  drawHeads(c, drawn, colour, density) {
    c.setTransform(density, 0, 0, density, 0, 0);
    c.fillStyle = colour("--dim");
    c.font = "12px ui-monospace, Menlo, Consolas, 'DejaVu Sans Mono', monospace";
    let [free, line] = [-Infinity, null];
    drawn.requests.forEach((request, column) => {
      const start = drawn.bands.start(column);
      const [x, y] = [(start.x - this.x) * this.scale, (start.y - this.y) * this.scale - 10];
      if (start.y !== line) [free, line] = [-Infinity, start.y];
      if (x < free || x > this.size.width || y < 0 || y > this.size.height) return;
      c.fillText(request, x, y);
      free = x + 8 * request.length + 8;
    });
  }
}

const TYPE_COLOURS = { preference: "--c-pink", knowledge: "--c-blue", attribute: "--c-green", judgement: "--c-orange", artifact: "--c-violet" };

function box(c, x, y) {
  c.beginPath();
  c.roundRect(x, y, WIDTH, HEIGHT, 6);
  c.fill();
  c.stroke();
}

function fitted(c, text, width) {
  const line = text.replace(/\s+/g, " ");
  if (c.measureText(line).width <= width) return line;
  let most = Math.min(line.length, 48);
  while (most > 1 && c.measureText(`${line.slice(0, most)}…`).width > width) most -= 1;
  return `${line.slice(0, most)}…`;
}

/** A custom property as a colour: canvas knows no light-dark(), so the arm of the theme is chosen here. */
function resolved(style, name) {
  const said = style.getPropertyValue(name).trim();
  const arms = /^light-dark\(\s*([^,]+),\s*([^)]+)\)$/.exec(said);
  if (!arms) return said;
  const theme = document.documentElement.dataset.theme;
  const dark = theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
  return arms[dark ? 2 : 1];
}
