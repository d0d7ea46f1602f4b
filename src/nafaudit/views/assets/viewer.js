// Reads one trajectory: tokens shaded by charge, with the ledger of the step under the cursor.
const SHADES = 8;
const view = { index: -1, step: 0, tokens: [], pinned: false };

// The columns of a record, in nats; derived ones are summed here.
function unpack(record) {
  const n = record.th.length;
  const arm = D.arms[record.a];
  // Logarithms are kept as surprisals: an infinite one is a probability of 0.
  const one = (x, scale) => (known(x) ? x / scale : typeof x === "string" && scale < 0 ? "-" + x : x);
  const scaled = (list, scale) => Array.from({ length: n }, (_, i) => (list ? one(list[i], scale) : null));
  const charge = scaled(record.c, 1e6);
  const spent = [];
  const ratio = [];
  let sum = 0;
  let total = 0;
  const [served, safe, risky] = [scaled(record.sv, -1e3), scaled(record.sf, -1e3), scaled(record.rk, -1e3)];
  for (let i = 0; i < n; i++) {
    sum = known(charge[i]) && known(sum) ? sum + charge[i] : null;
    spent.push(sum);
    total = known(served[i]) && known(safe[i]) && known(total) ? total + served[i] - safe[i] : null;
    ratio.push(total);
  }
  let granted = null;
  if (record.g) granted = scaled(record.g, 1e6);
  else if (record.lin) granted = charge.map((_, i) => (i + 1) * arm.k - record.d);
  const allowed = record.al === "inf" ? charge.map(() => "inf") : record.al ? scaled(record.al, 1e6) : charge.map((_, i) => Math.max(0, granted[i] - (i ? spent[i - 1] : 0)));
  return { n, arm, charge, spent, granted, allowed, ratio, served, safe, risky, theta: scaled(record.th, 1e4) };
}

const regimeOf = (theta) => (theta === null ? "" : theta <= 0 ? "forced" : theta >= 1 ? "free" : "active");
const REGIME = { forced: "forced: the safe model wrote it", active: "active: a mixture of both models", free: "free: the risky model as it is", "": "not recorded" };

function setUp() {
  if (!D.view.length) {
    byId("view").replaceChildren(el("p", {}, "No steps were recorded, only totals; there is nothing to read token by token."));
    byId("view").hidden = false;
    return;
  }
  byId("view").hidden = false;
  byId("v-find").addEventListener("input", listPrompts);
  byId("v-prompt").addEventListener("change", (e) => pick({ p: Number(e.target.value) }));
  byId("v-number").addEventListener("change", (e) => pick({ n: Number(e.target.value) }));
  const box = byId("v-text");
  box.addEventListener("mousemove", (e) => !view.pinned && point(e));
  box.addEventListener("click", (e) => ((view.pinned = point(e) && !view.pinned), ledger()));
  box.addEventListener("keydown", keys);
  window.addEventListener("resize", chart);
  listPrompts();
}

function point(event) {
  const token = event.target.closest(".t");
  if (token) moveTo(view.tokens.indexOf(token));
  return Boolean(token);
}

function keys(event) {
  const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
  let to = null;
  if (step) to = view.step + step;
  else if (event.key === "Home") to = 0;
  else if (event.key === "End") to = view.tokens.length - 1;
  else if (event.key === "ArrowDown" || event.key === "ArrowUp") to = nextActive(event.key === "ArrowDown" ? 1 : -1);
  else if (event.key === "Escape") view.pinned = false;
  if (to === null) return;
  event.preventDefault();
  view.pinned = true;
  moveTo(to);
}

function nextActive(direction) {
  const theta = view.columns.theta;
  for (let i = view.step + direction; i >= 0 && i < theta.length; i += direction) if (regimeOf(theta[i]) === "active") return i;
  return view.step;
}

// Keeps as much of the present choice as there are records for.
function pick(wish) {
  const now = D.view[view.index] || D.view[0];
  const want = { p: now.p, a: now.a, n: now.n, ...wish };
  const score = (r) => (r.p === want.p ? 8 : 0) + ("a" in wish ? 4 : 2) * (r.a === want.a) + 3 * (r.n === want.n);
  let best = 0;
  D.view.forEach((record, i) => score(record) > score(D.view[best]) && (best = i));
  show(best);
}

function listPrompts() {
  const wanted = byId("v-find").value.toLowerCase();
  const names = [...new Set(D.view.map((r) => r.p))].filter((p) => `${D.prompts[p].id} ${D.prompts[p].label}`.toLowerCase().includes(wanted));
  const now = D.view[view.index];
  byId("v-prompt").replaceChildren(...names.map((p) => el("option", { value: p }, `${D.prompts[p].id} · ${D.prompts[p].label}`)));
  if (now && names.includes(now.p)) byId("v-prompt").value = now.p;
  else if (names.length && now) pick({ p: names[0] });
}

function show(index, step) {
  const record = D.view[index];
  view.index = index;
  view.columns = unpack(record);
  view.pinned = false;
  const prompt = D.prompts[record.p];
  const siblings = D.view.filter((r) => r.p === record.p);
  if (byId("v-prompt").value !== String(record.p)) {
    byId("v-find").value = "";
    listPrompts();
  }
  const buttons = D.arms.map((arm, i) => {
    const there = siblings.some((r) => r.a === i);
    return el("button", { type: "button", disabled: !there && "", "aria-pressed": String(i === record.a), click: () => pick({ a: i }) }, el("span", { class: "swatch " + arm.colour, "aria-hidden": "true" }), arm.name);
  });
  byId("v-arms").replaceChildren(el("legend", {}, "Budget"), ...buttons);
  const numbers = [...new Set(siblings.map((r) => r.n))].sort((a, b) => a - b);
  byId("v-number").replaceChildren(...numbers.map((n) => el("option", { value: n }, n)));
  byId("v-number").value = record.n;
  text(record, prompt);
  beside(record, prompt);
  let first = step;
  if (first === undefined) first = Math.max(0, view.columns.charge.indexOf(Math.max(...view.columns.charge.filter(known))));
  moveTo(first, true);
}

function text(record, prompt) {
  const { n, arm, charge, spent, granted, theta } = view.columns;
  const most = D.mostCharge;
  byId("v-most").textContent = nats(most);
  const copied = new Set((record.cp || []).flatMap(([from, to]) => Array.from({ length: to - from }, (_, i) => from + i)));
  view.tokens = theta.map((weight, i) => {
    const piece = record.tok ? D.pieces[record.tok[i]] : "▇▇ ";
    const special = record.sp && record.sp.includes(i);
    const shade = known(charge[i]) && charge[i] > 0 ? Math.min(SHADES, Math.ceil((SHADES * Math.log1p(charge[i])) / Math.log1p(most))) : 0;
    const kinds = ["t", "s" + shade, regimeOf(weight), copied.has(i) ? "copied" : "", special ? "special" : "", record.ov === i ? "over" : ""];
    return el("span", { class: kinds.filter(Boolean).join(" ") }, piece);
  });
  const given = D.redacted ? "(prompt hidden) " : prompt.text ? prompt.text : "";
  byId("v-text").replaceChildren(el("span", { class: "given" }, given), ...view.tokens);
  byId("v-text").scrollTop = 0;
  const end = record.s ? "ended by itself" : "cut at the length limit";
  const budget = granted ? ` of a budget of ${nats(Math.max(0, granted[n - 1]))}` : "";
  const scored = known(record.rc) ? `; ${percent(record.rc)} of the reference came back nearly word for word` : "";
  byId("v-sum").textContent = `${arm.name}: ${n} tokens, ${end}; spent ${nats(spent[n - 1])}${budget} nats; debt ${nats(record.d)}${scored}.`;
}

function beside(record, prompt) {
  const reference = byId("v-reference");
  reference.replaceChildren();
  if (prompt.reference) reference.append(el("h3", {}, "Reference", el("small", {}, "a snippet")), el("blockquote", {}, el("bdi", {}, prompt.reference)));
  else if (D.redacted && prompt.has) reference.append(el("h3", {}, "Reference"), "(hidden)");
  else reference.append(el("h3", {}, "Reference"), el("p", { class: "record" }, "This prompt has none."));
  const place = `${D.parts[record.at[0]]}:${record.at[1]}`;
  byId("v-record").replaceChildren("Record ", el("bdi", {}, record.rec), " in ", el("a", { href: "../parts/" + encodeURIComponent(D.parts[record.at[0]]) }, place), " · again: ", el("code", {}, `nafaudit report . --record ${record.rec}`));
}

function moveTo(step, quiet) {
  const to = Math.max(0, Math.min(view.tokens.length - 1, step));
  if (view.tokens[view.step]) view.tokens[view.step].classList.remove("here");
  view.step = to;
  const token = view.tokens[to];
  if (!token) return;
  token.classList.add("here");
  if (!quiet && view.pinned) token.scrollIntoView({ block: "nearest" });
  ledger();
  chart();
}

function ledger() {
  const c = view.columns;
  const i = view.step;
  const list = el("dl", {});
  const entry = (name, value) => list.append(el("dt", {}, name), el("dd", {}, value));
  const rule = () => list.append(el("div", { class: "rule" }));
  entry("allowed in this step", fine(c.allowed[i]));
  entry("charged", fine(c.charge[i]));
  entry("weight of the risky model θ", known(c.theta[i]) ? c.theta[i].toFixed(3) : "–");
  rule();
  entry("granted so far", c.granted ? fine(c.granted[i]) : c.arm.k === "inf" ? "no limit" : "–");
  entry("spent so far", fine(c.spent[i]));
  entry("left", c.granted && known(c.spent[i]) ? fine(Math.max(0, c.granted[i]) - c.spent[i]) : "–");
  rule();
  entry("log p served", fine(c.served[i]));
  entry("log p safe", fine(c.safe[i]));
  entry("log p risky", fine(c.risky[i]));
  entry("log-ratio L so far", fine(c.ratio[i]));
  const kind = regimeOf(c.theta[i]);
  byId("v-ledger").replaceChildren(
    el("h3", {}, `Step ${i} `, el("span", { class: "token" }, el("bdi", {}, view.tokens[i].textContent.replace(/\n/g, "⏎")))),
    el("span", { class: "badge" }, REGIME[kind]),
    list,
    el("p", { class: "hint" }, view.pinned ? "Held. Click or press Escape to let go; ← → move, ↑ ↓ go to active steps." : "Point at a token, or click into the text and use ← → ↑ ↓. All in nats."),
  );
}

// The same ledger as a picture: what was granted and what was spent, step by step.
function chart() {
  const c = view.columns;
  const values = [...c.spent, ...(c.granted || [])].filter(known);
  if (!values.length) return byId("v-chart").replaceChildren(el("p", { class: "record" }, "What each step was granted and charged is not recorded."));
  // As wide as its place, so that its words keep their size on a phone.
  const width = Math.max(280, Math.min(720, byId("v-chart").clientWidth || 720));
  const f = frame({ width, height: 170, left: 42, x: [0, Math.max(1, c.n - 1)], y: [Math.min(0, ...values), top(values, 1)], xname: "step", yname: "nats", title: c.granted ? "dashed: granted; solid: spent" : "spent", label: "Granted and spent, step by step" });
  const path = (list) => list.map((v, i) => (known(v) ? `${i && known(list[i - 1]) ? "L" : "M"}${f.x(i).toFixed(1)} ${f.y(v).toFixed(1)}` : "")).join("");
  if (c.granted) f.root.append(svg("path", { class: "granted", d: path(c.granted) }));
  f.root.append(svg("path", { class: "spent", d: path(c.spent) }));
  f.root.append(svg("path", { class: "cursor", d: `M${f.x(view.step)} ${f.top}V${f.height - f.bottom}` }));
  f.root.addEventListener("click", (event) => {
    const box = f.root.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * f.width;
    view.pinned = true;
    moveTo(Math.round(((at - f.left) / (f.width - f.left - f.right)) * (c.n - 1)));
  });
  return byId("v-chart").replaceChildren(f.root);
}
