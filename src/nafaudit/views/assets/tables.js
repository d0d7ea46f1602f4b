// A table that can be sorted by any column and filtered by budget and by text.
function table(place, columns, rows, options) {
  const state = { column: -1, down: true, arm: -1, text: "", shown: options.page };
  const search = el("input", { type: "search", placeholder: options.hint, "aria-label": options.hint, input: (e) => ((state.text = e.target.value.toLowerCase()), refresh()) });
  const arms = el("select", { "aria-label": "Budget", change: (e) => ((state.arm = Number(e.target.value)), refresh()) }, el("option", { value: -1 }, "every budget"));
  D.arms.forEach((arm, i) => arms.append(el("option", { value: i }, arm.name)));
  const count = el("span", { class: "count", role: "status" });
  const heads = columns.map((column, i) =>
    el("th", { scope: "col", class: column.right ? "r" : null, title: column.meaning }, el("button", { type: "button", click: () => sortBy(i) }, column.name)),
  );
  const body = el("tbody");
  const more = el("button", { type: "button", click: () => ((state.shown += 200), refresh()) }, "show more");
  const meanings = el("dl", { class: "facts-list" });
  for (const column of columns.filter((one) => one.meaning)) meanings.append(el("dt", {}, column.name), el("dd", {}, column.meaning));
  place.append(el("div", { class: "tools" }, arms, search, count), el("div", { class: "scroll" }, el("table", {}, el("thead", {}, el("tr", {}, ...heads)), body)), el("p", { class: "tools" }, more), el("details", {}, el("summary", {}, "What the columns mean"), meanings));

  function sortBy(i) {
    state.down = state.column === i ? !state.down : columns[i].right === true;
    state.column = i;
    heads.forEach((head, j) => (j === i ? head.setAttribute("aria-sort", state.down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    refresh();
  }

  function compare(a, b) {
    const value = columns[state.column].value;
    const [x, y] = [value(a), value(b)];
    const lost = (v) => v === null || v === "";
    if (lost(x) || lost(y)) return lost(x) - lost(y); // What is unknown comes last either way.
    const order = known(x) && known(y) ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
    return state.down ? -order : order;
  }

  function refresh() {
    let left = rows.filter((row) => (state.arm < 0 || row.a === state.arm) && (!state.text || options.text(row).toLowerCase().includes(state.text)));
    if (state.column >= 0) left = left.map((row, i) => [row, i]).sort((a, b) => compare(a[0], b[0]) || a[1] - b[1]).map(([row]) => row);
    const shown = left.slice(0, state.shown);
    body.replaceChildren(...shown.map(line));
    count.textContent = `${shown.length} of ${left.length} rows`;
    more.hidden = shown.length === left.length;
  }

  function line(row) {
    const arm = D.arms[row.a];
    const node = el("tr", { class: row.violations ? "violated" : arm.baseline ? "baseline" : null });
    for (const column of columns) {
      const shown = column.show(row);
      node.append(el("td", { class: column.right ? "r" : column.wide ? "id" : "one" }, shown));
    }
    return node;
  }

  refresh();
  return {
    only(arm) {
      state.arm = arm;
      arms.value = arm;
      refresh();
    },
  };
}

function armCell(row) {
  const arm = D.arms[row.a];
  const node = el("span", {}, el("span", { class: "swatch " + arm.colour, "aria-hidden": "true" }), arm.name);
  return node;
}

// A number that opens the trajectory it comes from, or names the record if that is not on the page.
function toRecord(text, row) {
  const href = row.v >= 0 ? "#t" + row.v : "../parts/" + encodeURIComponent(row.part);
  return el("a", { class: "n", href, "data-path": "record " + row.rec }, text);
}

function toList(text, path, arm) {
  return el("a", { class: "n", href: "#a" + arm, "data-path": path }, text);
}

function number(name, key, show, meaning, linked, path) {
  return { name, right: true, meaning, value: (row) => row[key], show: (row) => (row[key] === null ? "–" : linked ? toRecord(show(row[key]), row) : toList(show(row[key]), `${row.path}.${path || key}`, row.a)) };
}

const share = (x) => (known(x) ? x.toFixed(4) : "–");
const whole = (x) => (known(x) ? String(x) : "–");
const budgetColumn = { name: "budget", value: (row) => row.a, show: armCell };

function promptTable() {
  const columns = [
    { name: "prompt", wide: true, value: (row) => D.prompts[row.p].id, show: (row) => el("bdi", {}, D.prompts[row.p].id) },
    { name: "class", value: (row) => D.prompts[row.p].label, show: (row) => el("bdi", {}, D.prompts[row.p].label) },
    budgetColumn,
    number("n", "count", whole, "trajectories"),
    number("over", "violations", whole, "trajectories that went over their budget", true),
    number("debt", "debt", nats, "prefix debt in nats: taken off the budget before the first token"),
    number("spend", "spend", nats, "mean spend in nats"),
    number("U_EBB", "proxy", nats, "the paper's U_EBB of the mean spend with the range seen: a proxy, not a bound"),
    number("width", "width", nats, "U_EBB less the mean: how much of it is due to few trajectories"),
    number("use", "utilisation", percent, "mean spend as a share of its own budget"),
    number("worst", "worst_utilisation", percent, "largest share of its own budget that was spent", true),
    number("L max", "ratio", nats, "largest log-likelihood ratio of an output, in nats"),
    number("recall", "recall", percent, "largest near-verbatim recall of the reference"),
    number("active", "active", percent, "share of steps that served a mixture"),
  ];
  const text = (row) => `${D.prompts[row.p].id} ${D.prompts[row.p].label}`;
  return table(byId("t-prompts"), columns, D.rows, { page: 25, hint: "filter by prompt or class", text });
}

function classTable() {
  const columns = [{ name: "class", wide: true, value: (row) => row.label, show: (row) => el("bdi", {}, row.label) }, budgetColumn];
  for (const [name, key, kind, meaning] of D.classColumns) {
    const show = kind === "percent" ? percent : kind === "count" ? whole : kind === "share" ? share : nats;
    columns.push(number(name, key, show, meaning, false, key));
  }
  return table(byId("t-classes"), columns, D.classes, { page: 60, hint: "filter by class", text: (row) => row.label });
}
