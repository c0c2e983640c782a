// Following a run: what goes on now and who answers, and all of the page anew when a round has ended.
const STANDING = { a: "answers", w: "at work", t: "late", l: "left out", r: "refused", x: "away", "-": "not asked" };
const COUNTED = ["a", "w", "t", "l", "r", "x", "-"];
const MOST_ROWS = 40; // clients with a row of their own; of more, those that did not always answer
const live = { link: "", ended: false, rows: "", showNow() {} };

const atWork = () => new Set(DATA.live.now.waiting ? DATA.live.now.waiting.clients : []);
// How each client stands now: at work or late while it is waited for, else as in the last round, and since when.
function standings() {
  const { clients, states, rounds, why } = DATA.who, { now } = DATA.live, working = now.state === "running" ? atWork() : new Set();
  const known = clients.map((name, i) => {
    const last = states[i].slice(-1) || "-", since = states[i].length - (/(.)\1*$/.exec(states[i]) || [""])[0].length;
    const state = working.has(name) && last !== "l" && last !== "r" ? (now.waiting.late ? "t" : "w") : working.has(name) && now.waiting.late ? "t" : last;
    return { name, state, since: state === last && state !== "a" ? rounds[since] : null, why: state === last ? why[name] || "" : "", letters: states[i] };
  });
  const more = [...working].filter((name) => !clients.includes(name));
  return [...known, ...more.map((name) => ({ name, state: now.waiting.late ? "t" : "w", since: null, why: "", letters: "" }))];
}
const counts = (rows) => COUNTED.map((state) => [state, rows.filter((row) => row.state === state).length]).filter(([, number]) => number);
const inWords = (row) => STANDING[row.state] + (known(row.since) && DATA.who.rounds.length ? ` since round ${row.since}` : "");
const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);

function headline() {
  const { now } = DATA.live, report = (DATA.sentences || []).join(" "), said = now.said ? `${capital(now.said)}.` : "";
  if (now.state === "finished") return report || said;
  if (now.state !== "running") return [said, report].filter(Boolean).join(" ");
  const people = counts(standings()).map(([state, number]) => `${number} ${state === "a" && number > 1 ? "answer" : STANDING[state]}`).join(", ");
  return said + (people ? ` Clients: ${people}.` : "");
}
function linkWords() {
  if (live.ended) return DATA.live.now.state === "finished" ? "The run has ended, and with it this live page. report.html in the run directory is the same page." : "This live page has ended; what is shown is the last that it was told.";
  return { lost: "No connection; what is shown is the last that was told. Trying again.", full: "This page does not follow the run: too many listen. Close some pages and load it again." }[live.link] || "";
}
function facts() {
  const { now } = DATA.live, told = [["state", now.state]], best = DATA.figures;
  if (now.rounds) told.push(["round", now.round ? `${now.round} of ${now.rounds}` : `none of ${now.rounds} yet`]);
  if (now.state === "running" && now.asked) told.push([now.phase || "asked", `${now.answered} of ${now.asked} answered`]);
  if (now.state === "running" && now.left) told.push(["time left", `about ${now.left}`]);
  if (best && run()) told.push([`mean ${run().metric}`, `${share(best.last)}${run().percent ? " %" : ""}`], ["best so far", `${share(best.best)}${run().percent ? " %" : ""} in round ${best.round}`]);
  if (now.state === "running" && now.waiting) {
    const { clients, others, what, seconds, left } = now.waiting, names = clients.slice(0, 5).join(", ");
    const many = clients.length - 5 + others, more = clients.length > 5 ? many : others;
    told.push(["waits for", `${[names, more > 0 ? `${more} more` : ""].filter(Boolean).join(" and ")} (${what}), ${seconds} s so far, ${left} s at most`]);
  }
  return told.map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value)));
}

const shownRows = () => { const rows = standings(); return rows.length > MOST_ROWS ? rows.filter((row) => row.state !== "a" || /[lrx]/.test(row.letters)).slice(0, MOST_ROWS) : rows; };
// A row for each client, a mark for each of the last rounds; the sign is the shape, too.
function whoPicture(width) {
  const rows = shownRows(), height = 22, top = 6, left = Math.min(120, 14 + 7 * Math.max(3, ...rows.map((row) => shortened(row.name, 14).length))), right = 150;
  const step = 14, rounds = DATA.who.rounds, fit = Math.max(0, Math.min(rounds.length, Math.floor((width - left - right) / step))), bottom = top + height * rows.length;
  const drawn = rows.map((row, at) => {
    const y = top + height * (at + 0.5), i = place(row.name);
    const group = svg("g", i >= 0 ? { "data-client": i } : { "data-tip": row.name }, svg("rect", { class: "hit", x: 0, y: y - height / 2, width, height }), text(left - 8, y + 4, shortened(row.name, 14), "", "end"));
    const letters = row.letters.slice(row.letters.length - fit);
    for (let k = 0; k < letters.length; k++) group.append(whoMark(letters[k], left + step * (k + 0.5), y));
    group.append(text(left + step * fit + 10, y + 4, shortened(inWords(row), 24), `small strong ${row.state === "a" || row.state === "w" ? "good" : row.state === "-" ? "plain" : "bad"}`));
    return group;
  });
  const ends = fit ? [text(left + step / 2, bottom + 14, String(rounds[rounds.length - fit]), "small soft", "middle"), ...(fit > 2 ? [text(left + step * (fit - 0.5), bottom + 14, String(rounds[rounds.length - 1]), "small soft", "middle")] : [])] : [];
  return canvas(width, bottom + 20, drawn, ends);
}
function whoMark(letter, x, y) {
  if (letter === "a") return svg("circle", { class: "good", cx: x, cy: y, r: 3.5 });
  if (letter === "l") return mark("loses", x, y, 4.5);
  if (letter === "r") return svg("path", { class: "bad", "stroke-width": 2, d: `M${x - 4} ${y - 4}l8 8M${x - 4} ${y + 4}l8 -8` });
  return letter === "x" ? svg("circle", { class: "plain open", cx: x, cy: y, r: 3.5 }) : svg("line", { class: "plain", x1: x - 3, x2: x + 3, y1: y, y2: y });
}
function whoTable() {
  const rows = standings();
  return { head: ["client", "now", "since round", "why"], rows: rows.map((row) => [row.name, STANDING[row.state], row.since, row.why]), clients: rows.map((row) => place(row.name)) };
}

function liveCard() {
  const bar = el("progress", { "aria-label": "rounds done", max: 1 }), list = el("dl", { class: "facts" }), link = el("p", { class: "warn" }), why = el("div");
  const there = standings().length > 0;
  const section = card({ id: "now", wide: true, title: "Now", draw: there ? whoPicture : null, table: there ? whoTable : null, order: there && run() ? () => shownRows().map((row) => place(row.name)).filter((i) => i >= 0) : null });
  section.querySelector(".head").after(bar, list, link);
  if (there) section.append(el("p", { class: "legend" }, `Disc: answered in this round. Triangle: left out. Cross: refused. Ring: away. Dash: not asked.${standings().length > MOST_ROWS ? " Those who always answered are not drawn; the table has all." : ""}`), why);
  live.showNow = () => {
    const { now } = DATA.live, rows = standings(), key = rows.map((row) => row.state).join("");
    if (Boolean(rows.length) !== there) return build(); // the first clients are known by name
    document.getElementById("sentence").textContent = headline();
    bar.max = Math.max(1, now.rounds || 1);
    bar.value = now.state === "finished" ? bar.max : Math.max(0, (now.round || 1) - 1);
    list.replaceChildren(...facts());
    link.textContent = linkWords();
    link.hidden = !link.textContent;
    if (key === live.rows) return;
    live.rows = key;
    why.replaceChildren(...rows.filter((row) => row.why).slice(0, 5).map((row) => el("p", { class: "note" }, `${row.name}: ${row.why}`)));
    if (there && section.isConnected) section.repaint();
  };
  live.rows = "";
  live.showNow();
}

// All of the page anew, with what the reader has opened, typed and reached.
const focusable = (section) => [...section.querySelectorAll("button, input, select, summary, pre, [tabindex]")];
function anew(content) {
  const open = [...main.querySelectorAll("section")].filter((section) => section.querySelector(".actions [aria-pressed='true']")).map((section) => section.id);
  const unfolded = [...main.querySelectorAll("section")].filter((section) => section.querySelector("details[open]")).map((section) => section.id);
  const typed = [...main.querySelectorAll("section")].map((section) => [section.id, section.querySelector("input[type='search']")]).filter(([, input]) => input && input.value).map(([id, input]) => [id, input.value]);
  const wanted = document.getElementById("tools").querySelector("input"), choice = wanted ? wanted.value : "";
  const active = document.activeElement, home = active && active.closest("main section, #tools"), at = home ? focusable(home).indexOf(active) : -1;
  const top = scrollY;
  main.style.minHeight = `${main.offsetHeight}px`; // or the page would jump while it is empty
  Object.assign(DATA, content);
  state.run = Math.min(state.run, Math.max(0, DATA.runs.length - 1));
  document.title = content.title;
  document.querySelector(".about").replaceChildren(el("strong", {}, content.title), content.about ? ` · ${content.about}` : "");
  document.getElementById("chips").replaceChildren();
  build();
  for (const id of open) { const toggle = main.querySelector(`#${CSS.escape(id)} .actions [aria-pressed='false']`); if (toggle) toggle.click(); }
  for (const id of unfolded) { const details = main.querySelector(`#${CSS.escape(id)} details`); if (details) details.open = true; }
  for (const [id, value] of typed) { const input = main.querySelector(`#${CSS.escape(id)} input[type='search']`); if (input) { input.value = value; input.dispatchEvent(new Event("input")); } }
  const find = document.getElementById("tools").querySelector("input");
  if (find) find.value = choice;
  const again = home && (home.id ? document.getElementById(home.id) : null), target = again && at >= 0 ? focusable(again)[at] : null;
  if (target) target.focus({ preventScroll: true });
  main.style.minHeight = "";
  scrollTo({ top, behavior: "instant" });
  if (state.client === null) fromAddress();
}

function follow() {
  const source = new EventSource(`events?seen=${DATA.live.version}`);
  const linked = (link) => { live.link = link; live.showNow(); };
  source.addEventListener("open", () => linked(""));
  source.addEventListener("error", () => linked(source.readyState === EventSource.CLOSED ? "full" : "lost"));
  source.addEventListener("now", (event) => { DATA.live.now = JSON.parse(event.data); live.showNow(); });
  source.addEventListener("run", (event) => anew(JSON.parse(event.data)));
  source.addEventListener("end", () => { source.close(); live.ended = true; live.showNow(); });
}
