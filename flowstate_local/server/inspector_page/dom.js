// Elements from plain values. Texts of models and tools become text nodes only: nothing here parses markup.

const SVG = "http://www.w3.org/2000/svg";

/** An HTML element: `h("p", {class: "dim"}, "text", child)`. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** An SVG element. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) set(element, name, value);
  append(element, children);
  return element;
}

function set(element, name, value) {
  if (value === null || value === undefined || value === false) return;
  if (typeof value === "function") return element.addEventListener(name, value);
  if (name === "size") return place(element, value);
  if (name.startsWith("on") || name === "style" || name === "srcdoc") throw new Error(`no attribute ${name}`);
  if (name === "href" && !String(value).startsWith("#")) throw new Error("only links within the page");
  element.setAttribute(name, value === true ? "" : value);
}

/** Geometry by properties of the style object: the page's policy forbids style attributes. */
function place(element, values) {
  for (const [name, value] of Object.entries(values)) element.style.setProperty(name, value);
}

function append(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace everything in `element`. */
export function put(element, ...children) {
  element.replaceChildren();
  append(element, children);
}

/** Tell screen readers, and nobody else. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

/** Move the focus among `items` by arrow keys; the event is used up if it did. */
export function rove(event, items, { previous = "ArrowUp", next = "ArrowDown" } = {}) {
  const step = { [previous]: -1, [next]: 1 }[event.key];
  const here = items.indexOf(document.activeElement?.closest("[data-rove]"));
  const there = event.key === "Home" ? 0 : event.key === "End" ? items.length - 1 : here + (step ?? NaN);
  if (here < 0 || !items[there]) return false;
  event.preventDefault();
  items[there].focus();
  return true;
}
