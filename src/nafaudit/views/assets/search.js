// How a search went: a line per strategy and seed, told apart by colour, shape and dashes.
const searched = (() => {
  const series = D.search.filter((s) => s.points.length);
  const whos = [...new Set(series.map((s) => s.who))];
  const seeds = [...new Set(series.map((s) => s.seed))];
  const colour = (s) => "c" + (whos.indexOf(s.who) % 6);
  const dash = (s) => ["none", "6 3", "2 3"][seeds.indexOf(s.seed) % 3];

  function sign(s, x, y, text) {
    const node = shape(SHAPES[whos.indexOf(s.who) % SHAPES.length], x, y, 3.6);
    node.setAttribute("class", colour(s));
    if (text) node.append(svg("title", {}, `${s.who}, seed ${s.seed}${text}`));
    return node;
  }

  // Lines lie close together, so their axis begins a little below the lowest of them.
  function soFar() {
    const bests = series.flatMap((s) => s.points.map((p) => p[2]));
    const [low, high] = [Math.min(...bests), Math.max(...bests)];
    const room = Math.max(0.02, 0.1 * (high - low));
    const [share, axis] = [series[0].share, series[0].axis];
    const shown = (v) => (share ? percent(v) : v.toFixed(3));
    const spent = Math.max(...series.flatMap((s) => s.points.map((p) => p[1])), 1);
    const f = frame({ width: 420, height: 270, x: [0, spent * 1.05], y: [Math.max(0, low - room), high + room], ykind: share ? "percent" : "", xname: "trajectories spent", yname: axis, label: `${axis}, against trajectories spent, by strategy and search seed`, title: "on the draws that chose" });
    for (const s of series) {
      const d = s.points.map((p, j) => `${j ? "L" : "M"}${f.x(p[1]).toFixed(1)} ${f.y(p[2]).toFixed(1)}`).join("");
      f.root.append(svg("path", { class: "line " + colour(s) + " nofill", "stroke-dasharray": dash(s), d }));
      for (const p of s.points) f.root.append(sign(s, f.x(p[1]), f.y(p[2]), `, generation ${p[0]}: ${shown(p[2])} after ${p[1]} trajectories`));
    }
    return f.root;
  }

  function fresh() {
    const shown = series.filter((s) => known(s.use[0]));
    if (!shown.length) return el("p", { class: "note" }, "No prompt was drawn afresh.");
    const most = top(shown.flatMap((s) => s.use), 0.05);
    const f = frame({ width: 420, height: 270, x: [0.3, shown.length + 0.7], y: [0, most], ykind: "percent", xname: "best prompt of each", yname: "utilisation", label: "Utilisation of the best prompts on fresh draws, with limits", title: "on fresh draws", xticks: 0.001 });
    shown.forEach((s, i) => {
      const [use, low, high] = s.use;
      const x = f.x(i + 1);
      const end = known(high) ? high : most;
      if (known(low)) f.root.append(svg("path", { class: "line " + colour(s) + " nofill", "stroke-dasharray": dash(s), d: `M${x} ${f.y(low)}V${f.y(end)}` }));
      f.root.append(sign(s, x, f.y(use), `, on fresh draws: ${percent(use)}, limits ${percent(low)} to ${percent(high)}`));
    });
    return f.root;
  }

  function legend() {
    const row = el("div", { class: "plot-legend" });
    for (const s of series) {
      const line = svg("path", { class: "line " + colour(s) + " nofill", "stroke-dasharray": dash(s), d: "M0 5H28" });
      row.append(el("span", {}, svg("svg", { viewBox: "0 0 28 10", class: "stroke" }, line, sign(s, 14, 5)), ` ${s.who}, seed ${s.seed}`));
    }
    return row;
  }

  return { any: series.length > 0, soFar, fresh, legend };
})();
if (searched.any) plot("f-search").append(el("div", { class: "panels" }, searched.soFar(), searched.fresh()), searched.legend());
else plot("f-search").append("No generation was recorded.");
