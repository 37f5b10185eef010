// The only way in which the page makes elements. Every text becomes a text node: nothing that a
// model, a user or a file has written is ever read as markup, a script or a foreign link.

import { visible } from "./text.js";

const PROPERTIES = new Set(["value", "checked", "disabled", "hidden", "tabIndex", "open", "required", "selected"]);
const FORBIDDEN = /^(on|src|srcdoc|style|action|formaction|data|xlink|ping)/;

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === undefined || value === null) continue;
    if (name === "on") listen(element, value);
    else if (PROPERTIES.has(name)) element[name] = value;
    else setAttribute(element, name, value);
  }
  element.append(...nodes(children));
  return element;
}

function listen(element, listeners) {
  for (const [event, listener] of Object.entries(listeners)) element.addEventListener(event, listener);
}

function setAttribute(element, name, value) {
  if (FORBIDDEN.test(name) && !name.startsWith("data-")) throw new Error(`${name} is not for this page`);
  if (name === "href" && !isOwn(value)) throw new Error("links lead to this service only");
  if (value === false) return;
  element.setAttribute(name, value === true ? "" : visible(value));
}

function isOwn(href) {
  return href.startsWith("?") || href.startsWith("#") || /^\/(?![/\\])/.test(href);
}

// Children may be nodes, texts, lists of them, or nothing (null, undefined, false).
function nodes(children) {
  const given = children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false);
  return given.map((child) => (child instanceof Node ? child : document.createTextNode(visible(child))));
}

// Sets a text if it is another one: an unchanged element costs no layout.
export function setText(element, text) {
  const shown = visible(text ?? "");
  if (element.firstChild === null || element.firstChild.data !== shown) element.textContent = shown;
}

export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

// A link that the operator has configured: the only kind that leaves the service.
export function externalLink(label, address) {
  const url = new URL(address);
  if (url.protocol !== "https:" && url.protocol !== "http:") return null;
  const element = h("a", { target: "_blank", rel: "noopener noreferrer" }, label);
  element.href = url.href;
  return element;
}

// Keeps one element for each key, in order, and touches only what changed.
export function keyed(container, items, keyOf, make, update) {
  const known = container.keyedElements ?? (container.keyedElements = new Map());
  const wanted = new Set(items.map(keyOf));
  for (const [key, element] of known) {
    if (wanted.has(key)) continue;
    element.remove();
    known.delete(key);
  }
  let place = container.firstElementChild;
  for (const item of items) {
    const key = keyOf(item);
    let element = known.get(key);
    if (element === undefined) {
      element = make(item);
      known.set(key, element);
    }
    update?.(element, item);
    if (element === place) place = place.nextElementSibling;
    else container.insertBefore(element, place);
  }
}

export function stateBadge(state) {
  return h("span", { class: `state state-${String(state).replace(/[^a-z_]/g, "")}` }, String(state).replace("_", " "));
}

export function empty(text) {
  return h("p", { class: "empty" }, text);
}
