// Small charts drawn from the data of the page. Every series has a colour and a shape of its own.
const SHAPES = ["circle", "square", "triangle", "diamond"];

function ticks(low, high, wanted) {
  const span = high - low || 1;
  const raw = span / wanted;
  const power = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let x = Math.ceil(low / step) * step; x <= high + step * 1e-9; x += step) found.push(Number(x.toPrecision(12)));
  return found;
}

// A frame with axes; x and y map data to the drawing.
function frame(options) {
  const { width = 420, height = 260, left = 46, bottom = 38, top = 26, right = 12 } = options;
  const [x0, x1] = options.x;
  const [y0, y1] = options.y || [0, 1];
  const x = (v) => left + ((v - x0) / (x1 - x0 || 1)) * (width - left - right);
  const y = (v) => height - bottom - ((v - y0) / (y1 - y0 || 1)) * (height - bottom - top);
  const root = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": options.label });
  const format = (v, kind) => (kind === "percent" ? Math.round(100 * v) + "%" : String(v));
  for (const v of ticks(x0, x1, options.xticks || 5))
    root.append(svg("text", { x: x(v), y: height - bottom + 15, "text-anchor": "middle" }, format(v, options.xkind)));
  for (const v of options.y ? ticks(y0, y1, 4) : []) {
    root.append(svg("path", { class: "axis", d: `M${left} ${y(v)}H${width - right}` }));
    root.append(svg("text", { x: left - 6, y: y(v) + 4, "text-anchor": "end" }, format(v, options.ykind)));
  }
  root.append(svg("path", { class: "axis", d: `M${left} ${top}V${height - bottom}H${width - right}` }));
  root.append(svg("text", { x: width - right, y: height - 6, "text-anchor": "end" }, options.xname));
  root.append(svg("text", { x: 4, y: 11 }, options.yname));
  if (options.title) root.append(svg("text", { class: "strong", x: width - right, y: 11, "text-anchor": "end" }, options.title));
  return { root, x, y, width, height, left, right, top, bottom };
}

function shape(kind, cx, cy, r) {
  if (kind === "square") return svg("rect", { x: cx - r, y: cy - r, width: 2 * r, height: 2 * r });
  if (kind === "triangle") return svg("path", { d: `M${cx} ${cy - r * 1.2}l${r * 1.15} ${r * 2}h${-r * 2.3}z` });
  if (kind === "diamond") return svg("path", { d: `M${cx} ${cy - r * 1.3}l${r * 1.3} ${r * 1.3}l${-r * 1.3} ${r * 1.3}l${-r * 1.3} ${-r * 1.3}z` });
  return svg("circle", { cx, cy, r });
}

const shapeOf = (arm) => SHAPES[D.arms.indexOf(arm) % SHAPES.length];

// A mark for one trajectory, which opens it where it is shown in full.
function mark(arm, point, cx, cy) {
  const node = shape(shapeOf(arm), cx, cy, 3.4);
  node.setAttribute("class", "mark " + arm.colour);
  const where = `${D.prompts[point.p].id}, trajectory ${point.n}`;
  const text = `${arm.name}: ${where}\nspend ${fine(point.z)}, budget ${fine(point.b)}, recall ${percent(point.c)}`;
  node.append(svg("title", {}, text + (point.v >= 0 ? "\nclick to read it" : "\nnot among those shown in full")));
  if (point.v >= 0) node.addEventListener("click", () => (location.hash = "t" + point.v));
  return node;
}

const top = (values, least) => Math.max(least, ...values.filter(known)) * 1.05;
const plot = (id) => byId(id).querySelector(".plot");

function spendPanels() {
  const panels = el("div", { class: "panels" });
  for (const arm of D.arms.filter((a) => !a.baseline)) {
    const points = arm.points.filter((p) => known(p.z) && known(p.b));
    if (!points.length) continue;
    const widest = top(points.map((p) => p.b), 1);
    const most = Math.max(top(points.map((p) => p.z), 1), Math.min(2 * widest, top(points.map((p) => p.r), widest)));
    const f = frame({ width: 300, height: 240, x: [0, widest], y: [0, most], xname: "budget B (nats)", yname: "spend Z (nats)", title: arm.name, label: `Spend against budget at ${arm.name}`, xticks: 4 });
    const limit = Math.min(widest, most);
    f.root.append(svg("path", { class: "limit", d: `M${f.x(0)} ${f.y(0)}L${f.x(limit)} ${f.y(limit)}` }));
    for (const p of points.filter((q) => known(q.r))) {
      const ghost = p.r <= most ? svg("circle", { class: "ghost", cx: f.x(p.b), cy: f.y(p.r), r: 2.6 }) : svg("path", { class: "ghost", d: `M${f.x(p.b) - 3} ${f.top + 5}l3 -5l3 5` });
      ghost.append(svg("title", {}, `the risky model alone: ${fine(p.r)} nats`));
      f.root.append(ghost);
    }
    for (const p of points) f.root.append(mark(arm, p, f.x(p.b), f.y(p.z)));
    panels.append(f.root);
  }
  plot("f-spend").append(panels.children.length ? panels : "What was spent, or granted, is not known.");
}

function stairs(f, counts, most) {
  let d = `M${f.x(0)} ${f.y(0)}`;
  counts.forEach((c, i) => (d += `V${f.y(c / most)}H${f.x((i + 1) / 20)}`));
  return d + `V${f.y(0)}`;
}

function usePanels() {
  const panels = el("div", { class: "panels" });
  for (const arm of D.arms.filter((a) => !a.baseline && a.hist.some((c) => c))) {
    const total = arm.hist.reduce((a, b) => a + b, 0) || 1;
    const other = arm.ghost.reduce((a, b) => a + b, 0) || 1;
    const most = Math.max(...arm.hist.map((c) => c / total), ...arm.ghost.map((c) => c / other), 0.05) * 1.05;
    const f = frame({ width: 300, height: 210, x: [0, 1.05], y: [0, Math.min(1, most)], xname: "spend / own budget (last bar: above 1)", yname: "trajectories", title: arm.name, ykind: "percent", xkind: "percent", label: `Utilisation at ${arm.name}`, xticks: 4 });
    arm.hist.forEach((count, i) => {
      const share = count / total;
      const bar = svg("rect", { class: "bar " + arm.colour, x: f.x(i / 20) + 0.5, y: f.y(share), width: f.x(0.05) - f.x(0) - 1, height: f.y(0) - f.y(share) });
      bar.append(svg("title", {}, `${i < 20 ? `${5 * i}–${5 * i + 5}%` : "above 100%"}: ${count} trajectories`));
      f.root.append(bar);
    });
    if (arm.ghost.some((c) => c)) f.root.append(svg("path", { class: "outline", d: stairs(f, arm.ghost, other) }));
    panels.append(f.root);
  }
  plot("f-use").append(panels.children.length ? panels : "How much of a budget was spent is not known.");
}

function regimeBars() {
  const height = 26 * D.arms.length + 30;
  const root = svg("svg", { viewBox: `0 0 420 ${height}`, role: "img", "aria-label": "Shares of forced, active and free steps" });
  D.arms.forEach((arm, i) => {
    const y = 6 + 26 * i;
    root.append(svg("text", { class: "strong", x: 0, y: y + 14 }, arm.name));
    let x = 105;
    ["forced", "active", "free"].forEach((name, j) => {
      const share = arm.regime[j];
      if (!known(share)) return;
      const width = 310 * share;
      const bar = svg("rect", { class: name, x, y, width, height: 19 });
      bar.append(svg("title", {}, `${arm.name}: ${percent(share)} ${name}`));
      root.append(bar);
      if (width > 34) root.append(svg("text", { class: "inbar in-" + name, x: x + width / 2, y: y + 14, "text-anchor": "middle" }, percent(share)));
      x += width;
    });
    if (!known(arm.regime[0])) root.append(svg("text", { x: 105, y: y + 14 }, "not recorded"));
  });
  const legend = el("div", { class: "plot-legend" });
  for (const name of ["forced", "active", "free"]) {
    const box = svg("svg", { viewBox: "0 0 10 10", class: "box" }, svg("rect", { class: name, width: 10, height: 10 }));
    legend.append(el("span", {}, box, " " + name));
  }
  plot("f-regime").append(root, legend);
}

function armLegend(arms) {
  const legend = el("div", { class: "plot-legend" });
  for (const arm of arms) {
    const sign = shape(shapeOf(arm), 5, 5, 4);
    sign.setAttribute("class", arm.colour);
    legend.append(el("span", {}, svg("svg", { viewBox: "0 0 10 10", class: "box" }, sign), " " + arm.name));
  }
  return legend;
}

function tailLines() {
  const arms = D.arms.filter((arm) => arm.tail.length);
  if (!arms.length) return plot("f-tails").append("No log-probabilities were recorded.");
  const values = arms.flatMap((arm) => arm.tail.filter(known));
  const f = frame({ x: [Math.min(0, ...values), top(values, 1)], y: [0, 1], ykind: "percent", xname: "L (nats)", yname: "outputs with a larger L", label: "Tails of the log-likelihood ratio" });
  for (const arm of arms) {
    const n = arm.tail.length;
    let d = "";
    arm.tail.forEach((v, i) => {
      if (known(v)) d += `${d ? "L" : "M"}${f.x(v).toFixed(1)} ${f.y(n > 1 ? 1 - i / (n - 1) : 0).toFixed(1)}`;
    });
    f.root.append(svg("path", { class: "line " + arm.colour + " nofill", d }));
    if (known(arm.K) && arm.K > 0 && arm.K <= Math.max(...values) * 1.05) {
      const line = svg("path", { class: "dash " + arm.colour + " nofill", d: `M${f.x(arm.K)} ${f.y(0)}V${f.y(1)}` });
      line.append(svg("title", {}, `K at ${arm.name}: ${arm.K} nats`));
      f.root.append(line);
    }
    const middle = arm.tail[Math.floor(n / 2)];
    if (known(middle)) {
      const sign = shape(shapeOf(arm), f.x(middle), f.y(0.5), 4);
      sign.setAttribute("class", arm.colour);
      f.root.append(sign);
    }
  }
  return plot("f-tails").append(f.root, armLegend(arms));
}

function overlapPoints() {
  const arms = D.arms.filter((arm) => arm.points.some((p) => known(p.c) && known(p.z)));
  if (!arms.length) return plot("f-overlap").append("No prompt has a reference to compare with.");
  const points = arms.flatMap((arm) => arm.points.filter((p) => known(p.c) && known(p.z)).map((p) => [arm, p]));
  const f = frame({ x: [0, top(points.map(([, p]) => p.z), 1)], y: [0, 1], ykind: "percent", xname: "spend Z (nats)", yname: "recall of the reference", label: "Recall against spend" });
  for (const [arm, p] of points) f.root.append(mark(arm, p, f.x(p.z), f.y(p.c)));
  return plot("f-overlap").append(f.root, armLegend(arms));
}

function boundBars() {
  if (!D.bounds.length) return;
  const values = D.bounds.flatMap((b) => [b.high, b.mean]).filter(known);
  const height = 28 * D.bounds.length + 44;
  const f = frame({ width: 420, height, left: 92, right: 60, top: 6, x: [0, top(values, 1)], y: null, xname: "nats", yname: "", label: "Mean spend with its upper limit" });
  D.bounds.forEach((b, i) => {
    const arm = D.arms[b.arm];
    const y = 18 + 28 * i;
    f.root.append(svg("text", { class: "strong", x: 0, y: y + 4 }, arm.name));
    f.root.append(svg("path", { class: "line " + arm.colour + " nofill", d: `M${f.x(b.mean)} ${y}H${f.x(b.high)}m0 -5v10` }));
    const sign = shape(shapeOf(arm), f.x(b.mean), y, 4);
    sign.setAttribute("class", arm.colour);
    f.root.append(sign, svg("text", { x: f.x(b.high) + 6, y: y + 4 }, "+" + nats(b.high - b.mean)));
  });
  plot("f-bounds").append(f.root);
}
