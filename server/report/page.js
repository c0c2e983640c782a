// The page itself: cards, tables, the chosen client, the tools at the top.
const main = document.getElementById("main");
const PAGE_ROWS = 50;

function button(label, click, attributes = {}) {
  return el("button", { type: "button", onclick: click, ...attributes }, label);
}
// A card: a question, a picture or several, the table behind it, and both as files. `draw(width)` returns nodes.
function card({ id, title, note, draw, table, wide = false, order = null, follow = false, extra = [] }) {
  const figure = el("figure"), behind = el("div", { hidden: true }), actions = el("div", { class: "actions" }, extra);
  const section = el("section", { id, class: wide ? "wide" : null, "aria-labelledby": `${id}-title` }, el("div", { class: "head" }, el("h2", { id: `${id}-title` }, title), actions), note ? el("p", { class: "note" }, note) : null, draw ? figure : null, behind);
  let drawn = 0;
  const room = () => Math.floor(section.clientWidth - parseFloat(getComputedStyle(section).paddingLeft) * 2);
  const paint = () => {
    drawn = Math.max(200, room());
    figure.replaceChildren(...[draw(drawn)].flat());
    showChosen();
  };
  if (draw) {
    if (order) walkable(figure, order, title);
    state.pictures.push({ of: section, resized: () => { if (room() !== drawn) paint(); }, paint });
    state.listeners.push((at) => {
      if (follow && figure.childNodes.length) figure.replaceChildren(...[draw(drawn)].flat());
      for (const picture of figure.querySelectorAll("svg")) if (picture.cross) picture.cross(at);
    });
    actions.append(button("SVG", () => figure.querySelectorAll("svg").forEach((one, i) => download(`${id}${i ? `-${i + 1}` : ""}.svg`, "image/svg+xml", standalone(one))), { "aria-label": `${title}: save as SVG` }));
  }
  if (table) {
    if (draw) {
      const show = button("Table", () => {
        behind.hidden = !behind.hidden;
        show.setAttribute("aria-pressed", String(!behind.hidden));
        if (!behind.hidden) behind.replaceChildren(sortable(table(), title));
      }, { "aria-pressed": "false", "aria-label": `${title}: table` });
      actions.prepend(show);
    } else {
      behind.hidden = false;
      state.pictures.push({ of: section, resized() {}, paint: () => behind.replaceChildren(sortable(table(), title)) });
    }
    actions.append(button("CSV", () => download(`${id}.csv`, "text/csv", csv(table())), { "aria-label": `${title}: save as CSV` }));
  }
  section.repaint = paint;
  put(section, wide);
  state.pictures.filter((picture) => picture.of === section).forEach((picture) => picture.paint());
  return section;
}
// Wide cards stand alone; the others in two columns, each in the shorter one. On a phone all follow each other.
function put(section, wide) {
  section.style.setProperty("--order", main.querySelectorAll("section").length);
  if (wide) return main.append(section);
  if (!main.lastElementChild || !main.lastElementChild.matches(".columns")) main.append(el("div", { class: "columns" }, el("div"), el("div")));
  const [left, right] = main.lastElementChild.children;
  (left.offsetHeight <= right.offsetHeight ? left : right).append(section);
}

// A table that is sorted by its heads, searched, and turned page by page. `clients[i]` is the client of row i.
function sortable(table, label, { searched = false } = {}) {
  const shown = { sort: -1, down: false, page: 0, query: "" }, body = el("tbody"), pages = el("div", { class: "pages" });
  const isNumber = table.head.map((_, i) => table.rows.some((row) => typeof row[i] === "number"));
  const heads = table.head.map((name, i) => el("th", { scope: "col", class: isNumber[i] ? null : "text" }, button(name, () => {
    shown.down = shown.sort === i ? !shown.down : isNumber[i];
    shown.sort = i;
    shown.page = 0;
    heads.forEach((head, j) => (j === i ? head.setAttribute("aria-sort", shown.down ? "descending" : "ascending") : head.removeAttribute("aria-sort")));
    write();
  })));
  const written = (value, i) => (typeof value === "number" ? ((table.formats || {})[table.head[i]] || significant)(value) : known(value) ? shortened(String(value), 240) : "–");
  const rows = table.rows.map((row, i) => ({ row, client: table.clients ? table.clients[i] : -1, text: row.join("\u0000").toLowerCase() }));
  function write() {
    let found = rows.filter((one) => one.text.includes(shown.query));
    if (shown.sort >= 0) {
      const at = shown.sort, sign = shown.down ? -1 : 1;
      found = found.slice().sort((a, b) => {
        const [one, other] = [a.row[at], b.row[at]];
        if (!known(one) || !known(other)) return Number(!known(one)) - Number(!known(other));
        return sign * (isNumber[at] ? one - other : String(one).localeCompare(String(other), undefined, { numeric: true }));
      });
    }
    const last = Math.max(0, Math.ceil(found.length / PAGE_ROWS) - 1);
    shown.page = Math.min(shown.page, last);
    const here = found.slice(shown.page * PAGE_ROWS, (shown.page + 1) * PAGE_ROWS);
    body.replaceChildren(...here.map(({ row, client }) => el("tr", client >= 0 ? { "data-client": client } : {}, row.map((value, i) => el("td", { class: (isNumber[i] ? "" : String(value).length > 30 ? "text long " : "text ") + (i === 0 ? "name" : "") }, written(value, i))))));
    const turn = (by, name) => button(name, () => { shown.page += by; write(); }, { disabled: by < 0 ? shown.page === 0 : shown.page === last });
    pages.replaceChildren(...(last ? [turn(-1, "previous"), el("span", {}, `page ${shown.page + 1} of ${last + 1}, ${found.length} rows`), turn(1, "next")] : searched ? [el("span", {}, `${found.length} of ${rows.length}`)] : []));
    showMine(body);
  }
  write();
  const node = el("div", {}, el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": `${label}, table` }, el("table", {}, el("thead", {}, el("tr", {}, heads)), body)), pages);
  node.search = (query) => { shown.query = query.toLowerCase(); shown.page = 0; write(); return rows.find((one) => one.text.includes(shown.query)); };
  return node;
}
function showMine(body) {
  for (const row of body.rows) row.classList.toggle("chosen", row.dataset.client === String(chosen()));
}

// The table of clients, and the facts of one.
function clientTable() {
  const told = run(), groupOf = told.clients.map((_, i) => told.groups.map((members, at) => (members.includes(i) ? at + 1 : 0)).filter(Boolean));
  const bad = {};
  for (const row of told.trouble) bad[row.client] = (bad[row.client] || 0) + (row.rounds || 0);
  const percent = (value) => share(value), columns = [
    ["client", (i) => told.clients[i]],
    ["coalition", (i) => (groupOf[i].length > 1 ? groupOf[i].join(" ") : groupOf[i][0]), told.groups.length],
    ["training samples", (i) => told["train-samples"][i]], ["test samples", (i) => told["test-samples"][i]],
    ["alone", (i) => told.local[i], told.local, percent], ["personal", (i) => told.personal[i], true, percent], ["one for all", (i) => told.global[i], told.global.some(known), percent],
    ["gain", (i) => told.gain[i], told.gain, points], ["verdict", (i) => told.verdict[i], told.verdict],
    ["worth", (i) => told.worth.values[i], told.worth], ["ε", (i) => told.privacy.epsilon[i], told.privacy && told.privacy.epsilon],
    ["rounds trained", (i) => told.cost.trained[i]], ["rounds in trouble", (i) => bad[told.clients[i]] || 0],
    ["down", (i) => told.cost["bytes-down"][i], true, bytes], ["up", (i) => told.cost["bytes-up"][i], true, bytes], ["CPU s", (i) => told.cost["cpu-seconds"][i]],
  ].filter((column) => column.length < 3 || column[2]);
  return {
    head: columns.map(([name]) => name), clients: told.clients.map((_, i) => i), rows: told.clients.map((_, i) => columns.map(([, value]) => value(i) ?? null)),
    formats: Object.fromEntries(columns.filter((column) => column[3]).map(([name, , , format]) => [name, format])),
  };
}
function oneClient() {
  const facts = el("dl", { class: "facts" }), title = el("h2", { id: "one-title" }), why = el("div");
  const section = el("section", { id: "one", class: "wide", hidden: true, "aria-labelledby": "one-title" }, el("div", { class: "head" }, title, el("div", { class: "actions" }, button("close", () => choose(state.client)))), facts, why);
  main.append(section);
  state.listeners.push((at) => {
    section.hidden = at < 0;
    if (at < 0) return;
    title.textContent = run().clients[at];
    const table = clientTable(), row = table.rows[at], mates = matesOf(at).map((i) => run().clients[i]);
    const shown = table.head.map((name, i) => [name, typeof row[i] === "number" ? (table.formats[name] || significant)(row[i]) : row[i]]).slice(1);
    if (mates.length) shown.unshift(["trains with", mates.slice(0, 12).join(", ") + (mates.length > 12 ? ` and ${mates.length - 12} more` : "")]);
    facts.replaceChildren(...shown.filter(([, value]) => known(value) && value !== "").map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
    const mine = run().trouble.filter((one) => one.client === run().clients[at]);
    why.replaceChildren(...mine.slice(0, 5).map((one) => el("p", { class: "note" }, `${one.what}: ${one.why}${when(one)}`)));
  });
}
const when = (row) => (row.rounds ? ` (${row.rounds === 1 ? `round ${row.first}` : `${row.rounds} rounds, ${row.first} to ${row.last}`})` : "");

// The cards of a run, in the order of the questions.
function gainCard() {
  const told = run(), gains = told.gain && told.gain.some(known);
  let only = null;
  const back = button("all coalitions", () => { only = null; back.hidden = true; section.repaint(); }, { hidden: true });
  const rows = () => { const table = clientTable(); const order = byGain(); return { ...table, rows: order.map((i) => table.rows[i]), clients: order }; };
  const section = card({
    id: "gain", title: gains ? "What did each gain?" : "How well does each do?", order: () => byGain().filter((i) => !only || only.includes(i)), table: rows, extra: [back],
    note: gainNote(),
    draw: (width) => gainPicture(width, only),
  });
  const expand = (event) => {
    const target = event.target.closest("[data-coalition]");
    if (!target || (event.type === "keydown" && event.key !== "Enter")) return;
    only = run().groups[Number(target.dataset.coalition)];
    back.hidden = false;
    section.repaint();
  };
  section.addEventListener("click", expand);
  section.addEventListener("keydown", expand);
}
function matrixCard(matrix) {
  const told = run(), many = matrix.order.length > BY_COALITION && matrix.sizes.length > 1, meaning = { relevance: "What the column's model is worth to the row's client", similarity: "How alike the models of two clients are", preferences: "How much the row's client takes from the column's", kinds: "How far apart the data of two clients are; dark is near" };
  let coalitions = many;
  const toggle = many ? [button("all clients", () => { coalitions = !coalitions; toggle[0].textContent = coalitions ? "all clients" : "coalitions"; section.repaint(); })] : [];
  const correlation = known(matrix["truth-correlation"]) ? ` Beside it the truth, which labels two clients share: rank correlation ${significant(matrix["truth-correlation"])}.` : "";
  const section = card({
    id: `who-${matrix.name.replace(/\W/g, "-")}`, title: told.matrices.indexOf(matrix) ? matrix.name : "Who trains with whom?", order: () => matrix.order, extra: toggle,
    note: `${meaning[matrix.name] || matrix.name}, in the order of clusters; frames are coalitions.${matrix.signed ? " Green helps, orange with a bar hurts." : ""}${correlation}`,
    draw: (width) => {
      const beside = matrix.truth && width > 520, wide = beside ? Math.floor((width - 16) * 0.62) : width;
      const first = matrixPicture(wide, matrix, { coalitions }), second = matrix.truth ? matrixPicture(beside ? width - 16 - wide : Math.min(width, 300), matrix, { truth: true, coalitions }) : null;
      if (!second) return [first];
      const box = el("div", { style: beside ? "display:flex;gap:16px;align-items:flex-start" : "" }, first, el("div", {}, el("p", { class: "legend", style: "margin:0" }, "truth: labels in common"), second));
      return [box];
    },
    table: () => pairTable(matrix),
  });
}
function pairTable(matrix) {
  const { values } = unpack(matrix.values), truth = matrix.truth ? unpack(matrix.truth).values : null, n = matrix.order.length, rows = [];
  for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) if (i !== j && known(values[i * n + j])) rows.push([run().clients[matrix.order[i]], run().clients[matrix.order[j]], values[i * n + j], ...(truth ? [truth[i * n + j]] : [])]);
  return { head: ["client", "other", matrix.name, ...(truth ? ["label overlap"] : [])], rows };
}
function runCards() {
  const told = run();
  if (told.clients.length) gainCard();
  for (const matrix of told.matrices) matrixCard(matrix);
  const groups = () => ({ head: ["coalition", "clients", "who"], rows: told.groups.map((members, i) => [i + 1, members.length, inRanges(members.map((j) => told.clients[j]))]) });
  if (told.clients.length <= DRAWN_AS_GRAPH && (told.links.length || told.matrices.some((one) => !one.distance) || told.groups.length > 1))
    card({ id: "graph", title: arrows().length ? "Who helps whom?" : told.matrices.length ? "Coalitions" : "Who trains with whom?", note: `${arrows().length ? `An arrow goes from who helps to who is helped${told.links.length ? "" : ": the best three of each"}; a` : "A"} shade is a coalition. ${told["groups-in-words"]}`, draw: graphPicture, order: () => told.clients.map((_, i) => i), table: told.links.length ? () => ({ head: ["client", "is helped by"], rows: told.links.map(([a, b]) => [told.clients[a], told.clients[b]]) }) : groups });
  else if (told.groups.length) card({ id: "groups", title: "Coalitions", note: told["groups-in-words"], table: groups });
  if (told.apart.length) card({ id: "apart", title: "How far apart are the groups?", note: "T of each client with its own group and with the nearest other one; about 1 is of one kind. No figure: alone, or no label in common.", table: () => ({ head: ["client", "own group", "nearest other", "that of"], rows: told.apart, clients: told.apart.map(([name]) => told.clients.indexOf(name)) }) });
  if (told.axioms) card({ id: "axioms", title: "Axioms", note: `Tried with coalitions of up to ${told.axioms["up-to"]}: ${told.axioms.rows.length} violations.`, table: () => ({ head: ["axiom", "coalition"], rows: told.axioms.rows }) });
  if (Object.keys(told.places).length > 2) card({ id: "places", title: "Where do the models stand?", note: "The plane in which the clients' models differ most; a shade is a coalition.", draw: placesPicture, table: () => ({ head: ["client", "first", "second"], rows: Object.entries(told.places).map(([i, p]) => [told.clients[i], ...p]) }) });
  if (told.worth) card({ id: "worth", title: "What is each worth?", note: byWorth().length > LABELLED ? `${told.worth.text.replace(", with standard error", "")} Standard errors are in the table.` : told.worth.text, draw: worthPicture, order: byWorth, table: () => ({ head: ["client", "worth", "standard error", "times judged"], rows: byWorth().map((i) => [told.clients[i], told.worth.values[i], told.worth.errors[i], told.worth.seen[i]]), clients: byWorth() }) });
  const curves = Object.entries(told.curves).filter(([, curve]) => curve);
  if (curves.length) card({ id: "rounds", title: "Over the rounds", note: `Test ${told.metric}${told.percent ? " in %" : ""}: the median of the clients, and the middle 80 % of them; dashed, the chosen client.`, draw: roundsPicture, follow: true, order: () => told.clients.map((_, i) => i), table: () => ({ head: ["round", ...curves.flatMap(([kind]) => [`${kind} 10 %`, `${kind} median`, `${kind} 90 %`])], rows: told.rounds.map((round, i) => [round, ...curves.flatMap(([, curve]) => curve.quantiles[i])]), formats: Object.fromEntries(curves.flatMap(([kind]) => ["10 %", "median", "90 %"].map((part) => [`${kind} ${part}`, share]))) }) });
  told["over-rounds"].forEach((one, k) => card({ id: `span-${k}`, title: one.title, note: "Median of the clients, from the least to the most; dashed in orange the suspects, in blue the chosen client.", draw: (width) => spanPicture(width, one.clients, one.rounds, ""), follow: true, order: () => told.clients.map((_, i) => i), table: () => spanTable(one) }));
  const wrong = told.trouble;
  card({ id: "trouble", title: "Trouble", note: wrong.length ? `${wrong.length} kinds of it, of ${new Set(wrong.map((row) => row.client)).size} clients.` : "None: everybody answered in time, nobody was left out.", table: wrong.length ? () => ({ head: ["client", "what", "why", "rounds", "first", "last"], rows: wrong.map((row) => [row.client, row.what, row.why, row.rounds, row.first, row.last]), clients: wrong.map((row) => told.clients.indexOf(row.client)) }) : null });
  const cost = told.cost, seconds = (key) => sum(cost[key]);
  card({ id: "cost", title: "Cost", note: `${bytes(sum(cost["bytes-down"]))} down and ${bytes(sum(cost["bytes-up"]))} up in all; ${significant(sum(cost["cpu-seconds"]))} CPU s of the clients; ${significant(seconds("train-seconds"))} s of rounds and ${significant(seconds("test-seconds"))} s of tests.`, draw: secondsPicture, table: () => ({ head: ["round", "training, s", "testing, s"], rows: cost.rounds.map((round, i) => [round, cost["train-seconds"][i], cost["test-seconds"][i]]) }) });
  if (told.privacy) card({ id: "privacy", title: "Privacy", note: told.privacy.text, draw: told.privacy.rounds ? (width) => spanPicture(width, told.privacy.rounds, told.cost.rounds, "ε") : null, follow: true, order: told.privacy.rounds ? () => told.clients.map((_, i) => i) : null, table: told.privacy.rounds ? () => ({ head: ["client", "ε"], rows: told.clients.map((name, i) => [name, told.privacy.epsilon[i]]), clients: told.clients.map((_, i) => i) }) : null });
  clientsCard();
}
function spanTable(one) {
  const rows = unpack(one.clients), n = rows.shape[1];
  return { head: ["round", ...run().clients], rows: one.rounds.map((round, i) => [round, ...rows.values.subarray(i * n, (i + 1) * n)]) };
}
function clientsCard() {
  const table = clientTable(), shown = sortable(table, "Clients", { searched: true });
  const search = el("input", { type: "search", placeholder: "search", "aria-label": "search the table of clients", oninput: () => shown.search(search.value) });
  const section = card({ id: "clients", title: "Clients", wide: true, table: null, extra: [search, button("CSV", () => download("clients.csv", "text/csv", csv(table)), { "aria-label": "Clients: save as CSV" })] });
  section.append(shown);
}

// Several runs: methods beside each other, and the clients of each.
const methodNumber = (value) => share(value);
function methodsCards() {
  for (const { cell, rows } of DATA.methods || []) {
    if (rows.length < 2) continue;
    const gains = rows.some((row) => known(row.gain)), id = `methods-${(DATA.methods || []).findIndex((one) => one.cell === cell)}`;
    const clients = run().clients, over = (rows.find((row) => row.over) || {}).over;
    card({
      id, wide: true, title: `Which method?${cell ? ` ${cell}` : ""}`, order: () => clients.map((_, i) => i),
      note: `A dot is a client, mean over seeds; the bar is the mean of all.${gains ? ` The gain over training alone is paired by seed and client, its 95 % interval is over ${over}.` : ""}`,
      draw: (width) => {
        const x = linear(...extent(rows.flatMap((row) => Object.values(row.clients))), 8, width - 8);
        return beeswarm(width, x, rows.map((row) => ({ name: row.name, note: `${methodNumber(row.mean)}${known(row.std) ? ` ± ${methodNumber(row.std)}` : ""}${known(row.gain) ? `, gain ${points(row.gain)}${known(row["gain-low"]) ? ` (${points(row["gain-low"])} to ${points(row["gain-high"])})` : ""}` : ""}`, kind: row.name === "local" ? "plain" : "good", middle: row.mean, points: Object.entries(row.clients).map(([name, value]) => [clients.indexOf(name), value]).filter(([i]) => i >= 0) })), `test ${run().metric}${run().percent ? ", %" : ""}`, axisNumber);
      },
      table: () => ({
        head: ["method", "mean", "std over seeds", "worst client", ...(gains ? ["gain", "from", "to", "clients that lose"] : []), "MB", "CPU s"],
        rows: rows.map((row) => [row.name, row.mean, row.std, row.worst, ...(gains ? [row.gain ?? null, row["gain-low"] ?? null, row["gain-high"] ?? null, known(row.gain) ? row.below : null] : []), row.megabytes, row["cpu-seconds"]]),
        formats: { mean: methodNumber, "std over seeds": methodNumber, "worst client": methodNumber, gain: points, from: points, to: points },
      }),
    });
  }
}
function moreCards() {
  (DATA.tables || []).forEach((table, i) => card({ id: `table-${i}`, wide: true, title: table.title, note: table.caption, table: () => ({ head: table.head, rows: table.rows }) }));
  (DATA.charts || []).forEach((chart, i) => {
    const kinds = ["good", "bad", "plain", "mine"], dashes = [null, "7 3", "2 3", "9 3 2 3"];
    const lines = chart.lines.map((one, k) => ({ name: one.name, kind: kinds[k % 4], dash: dashes[Math.floor(k / 4 + k) % 4], points: one.x.map((at, j) => [at, one.y[j]]) }));
    card({ id: `chart-${i}`, title: chart.title, draw: (width) => linePicture(width, lines, { x: chart.x, y: chart.y, logX: chart["log-x"], logY: chart["log-y"] }), table: () => ({ head: [chart.x, "line", chart.y], rows: lines.flatMap((one) => one.points.map(([at, value]) => [at, one.name, value])) }) });
  });
  const told = run(), settings = DATA.settings && DATA.settings.length ? DATA.settings : told ? told.settings : [], command = DATA.command || (told && told.command);
  const section = card({ id: "again", title: "Settings, and how to run it again", wide: true });
  if (command) section.append(el("pre", { tabindex: 0, role: "region", "aria-label": "the command" }, command), button("copy", () => navigator.clipboard && navigator.clipboard.writeText(command)));
  const versions = Object.entries((told && told.versions) || {});
  if (versions.length) section.append(el("p", { class: "note" }, `Made with ${versions.map(([name, version]) => `${name} ${version}`).join(", ")}.`));
  if (settings.length) section.append(el("details", {}, el("summary", {}, "All settings"), sortable({ head: ["setting", "value"], rows: settings.map(([key, value]) => [key, typeof value === "string" ? value : JSON.stringify(value)]) }, "Settings")));
}

function chips() {
  const told = run(), box = document.getElementById("chips");
  if (!told) return;
  const facts = [], add = (name, value) => facts.push(el("span", {}, `${name} `, el("b", {}, value))), unit = told.percent ? " %" : "";
  if (told.local) add("alone", share(mean(told.local)) + unit);
  if (told.global.some(known)) add("one for all", share(mean(told.global)) + unit);
  add(told.strategy, share(mean(told.personal)) + unit);
  const worst = told.personal.filter(known);
  if (worst.length) add("worst client", share(told.lower ? Math.max(...worst) : Math.min(...worst)) + unit);
  add("per client", `${bytes(sum(told.cost["bytes-down"]) / told.clients.length)} down, ${bytes(sum(told.cost["bytes-up"]) / told.clients.length)} up`);
  if (told.privacy) add("privacy", told.privacy.epsilon ? `ε up to ${significant(Math.max(...told.privacy.epsilon.filter(known)))}` : told.privacy.mode);
  box.replaceChildren(...facts, ...(told.unfinished ? [el("p", { class: "warn" }, `${told.unfinished}: the figures are those of its last evaluation.`)] : []));
}
function tools() {
  const box = document.getElementById("tools"), names = run() ? run().clients : [];
  const find = el("input", { type: "search", list: "names", placeholder: "choose a client", "aria-label": "choose a client by name", onchange: () => { const query = find.value.toLowerCase(), name = names.find((one) => one.toLowerCase() === query) || names.find((one) => one.toLowerCase().includes(query)); if (query && name) choose(name, { quiet: state.client === name }); } });
  const select = el("select", { "aria-label": "which run is shown", onchange: () => { state.run = Number(select.value); build(); } }, DATA.runs.map((one, i) => el("option", { value: i, selected: i === state.run }, `${one.cell ? `${one.cell}: ` : ""}${one.strategy}, seed ${one.seed}`)));
  const theme = button("theme", () => {
    const dark = document.documentElement.dataset.theme ? document.documentElement.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    document.documentElement.dataset.theme = dark ? "light" : "dark";
    state.pictures.forEach((picture) => picture.paint());
  }, { "aria-label": "light or dark" });
  box.replaceChildren(...(DATA.runs.length > 1 ? [select] : []), ...(names.length ? [find, el("datalist", { id: "names" }, names.slice(0, 1000).map((name) => el("option", { value: name })))] : []), theme);
}
function build() {
  main.replaceChildren();
  state.pictures = [];
  state.listeners = [];
  tools();
  chips();
  if (DATA.live) liveCard();
  if (run()) oneClient();
  methodsCards();
  if (run()) runCards();
  moreCards();
  state.pictures.forEach((picture) => picture.resized()); // a scroll bar may have come
  showChosen();
}
DATA.runs = DATA.runs || [];
build();
fromAddress();
if (DATA.live) follow();
let waiting = 0;
window.addEventListener("resize", () => { cancelAnimationFrame(waiting); waiting = requestAnimationFrame(() => state.pictures.forEach((picture) => picture.resized())); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => state.pictures.forEach((picture) => picture.paint()));
// Paper is white: matrices are painted anew for it.
const forPaper = (on) => { document.documentElement.toggleAttribute("data-printing", on); state.pictures.forEach((picture) => picture.paint()); };
window.addEventListener("beforeprint", () => forPaper(true));
window.addEventListener("afterprint", () => forPaper(false));
