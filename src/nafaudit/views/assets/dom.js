// Everything on the page is made with createElement and textContent: text stays text.
const D = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function el(name, attributes, ...children) {
  const node = document.createElement(name);
  return fill(node, attributes, children);
}

function svg(name, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  return fill(node, attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes || {})) {
    if (typeof value === "function") node.addEventListener(key, value);
    else if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  for (const child of children) if (child !== null && child !== undefined) node.append(child);
  return node;
}

// A number as recorded: null is unknown, a string is "inf" or "-inf".
const known = (x) => typeof x === "number";
function nats(x) {
  if (x === null) return "–";
  if (!known(x)) return x === "inf" ? "no limit" : String(x);
  const size = Math.abs(x);
  return x.toFixed(size < 10 ? 2 : size < 100 ? 1 : 0);
}
function fine(x) {
  return known(x) ? x.toFixed(3).replace(/^-(0\.000)$/, "$1") : nats(x);
}
function percent(x) {
  if (!known(x)) return "–";
  if (x !== 0 && Math.abs(x) < 0.0005) return Number((100 * x).toPrecision(1)) + "%";
  const whole = (x >= 0.0995 && x < 0.995) || x === 0 || x === 1;
  return (100 * x).toFixed(whole ? 0 : 1) + "%";
}

// What a number rests on, shown at the foot of the page while it is pointed at.
function explain(target) {
  const bar = byId("source");
  const path = target && target.getAttribute("data-path");
  if (!path) {
    bar.hidden = true;
    return;
  }
  const [file, command] = path.startsWith("record ")
    ? [path, "nafaudit report . --record " + path.slice(7)]
    : ["report.json: " + path, "nafaudit report . --json"];
  bar.replaceChildren("from ", el("code", {}, file), " · again: ", el("code", {}, command));
  bar.hidden = false;
}
for (const kind of ["mouseover", "focusin"])
  document.addEventListener(kind, (event) => explain(event.target.closest && event.target.closest("[data-path]")));
