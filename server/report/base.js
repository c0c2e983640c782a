"use strict";
// What all pictures share: the data, small makers of elements, the chosen client, tips, downloads.
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = "http://www.w3.org/2000/svg";
const state = { run: DATA.first || 0, client: null, pictures: [], listeners: [] };
const run = () => DATA.runs[state.run];

// Texts of strangers are only ever set as text, never as markup.
function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}
function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}
function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else node.setAttribute(key, value === true ? "" : value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) node.append(child);
  return node;
}

// Numbers that were packed into 8 or 16 bits; the highest code is "not known".
const unpacked = new WeakMap();
function unpack(told) {
  if (!told) return null;
  if (unpacked.has(told)) return unpacked.get(told);
  const text = atob(told.data), bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  const codes = told.bits === 16 ? new Uint16Array(bytes.buffer) : bytes, none = 2 ** told.bits - 1;
  const values = new Float32Array(codes.length);
  for (let i = 0; i < codes.length; i++) values[i] = codes[i] === none ? NaN : told.low + told.step * codes[i];
  const found = { values, shape: told.shape };
  unpacked.set(told, found);
  return found;
}

const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
const scale = () => (run() && run().percent ? 100 : 1);
function number(value, digits = 1) {
  return known(value) ? value.toFixed(digits).replace("-", "−") : "–";
}
const share = (value) => (known(value) ? (run().percent ? number(100 * value) : significant(value)) : "–");
function significant(value) {
  if (!known(value)) return "–";
  if (value === 0) return "0";
  const text = Math.abs(value) >= 1e6 || Math.abs(value) < 0.001 ? value.toExponential(1) : Math.abs(value) >= 1000 ? value.toFixed(0) : Number(value.toPrecision(3)).toString();
  return text.replace("-", "−");
}
function signed(value, digits = 1) {
  return known(value) ? (value >= 0 ? "+" : "") + number(value, digits) : "–";
}
const points = (value) => (known(value) ? (run().percent ? signed(100 * value) : (value >= 0 ? "+" : "") + significant(value)) : "–");
function bytes(value) {
  if (!known(value)) return "–";
  for (const [unit, size] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]]) if (value >= size) return `${(value / size).toFixed(1)} ${unit}`;
  return `${value} B`;
}
const shortened = (name, most = 12) => (name.length > most ? name.slice(0, most - 1) + "…" : name);
// A1, A2, A3, B7: A1 to A3, B7.
function inRanges(names) {
  const runs = [];
  for (const name of names) {
    const [, stem, digits] = /^(.*?)([0-9]{0,9})$/s.exec(name), last = runs[runs.length - 1];
    if (last && digits && last.stem === stem && last.to + 1 === Number(digits)) Object.assign(last, { to: Number(digits), names: [...last.names, name] });
    else runs.push({ stem, to: digits ? Number(digits) : NaN, names: [name] });
  }
  return runs.flatMap((one) => (one.names.length > 2 ? `${one.names[0]} to ${one.names[one.names.length - 1]}` : one.names)).join(", ");
}
const sum = (values) => values.reduce((total, value) => total + (value || 0), 0);
const mean = (values) => { const there = values.filter(known); return there.length ? sum(there) / there.length : null; };
// Least and most; a spread of a million arguments would be too many.
function ends(values) {
  let low = Infinity, high = -Infinity;
  for (const value of values) if (known(value)) { low = Math.min(low, value); high = Math.max(high, value); }
  return [low, high];
}
function quantile(values, q) {
  const there = values.filter(known).sort((a, b) => a - b);
  if (!there.length) return null;
  const at = (there.length - 1) * q, low = Math.floor(at);
  return there[low] + (there[Math.min(low + 1, there.length - 1)] - there[low]) * (at - low);
}
const colours = () => { const style = getComputedStyle(document.documentElement); return (name) => style.getPropertyValue(`--${name}`).trim(); };

// Choosing a client anywhere shows it everywhere.
const place = (name) => (run() ? run().clients.indexOf(name) : -1);
const chosen = () => (state.client === null ? -1 : place(state.client));
function choose(name, { quiet = false } = {}) {
  state.client = name === state.client && !quiet ? null : name;
  const hash = state.client === null ? "" : `#client=${encodeURIComponent(state.client)}`;
  if (!quiet) try { history.replaceState(null, "", hash || location.pathname + location.search); } catch { location.hash = hash; }
  showChosen();
  document.getElementById("said").textContent = state.client === null ? "no client chosen" : describe(chosen());
}
function showChosen() {
  for (const node of document.querySelectorAll(".chosen")) node.classList.remove("chosen");
  const at = chosen();
  if (at >= 0) for (const node of document.querySelectorAll(`[data-client="${at}"]`)) node.classList.add("chosen");
  for (const told of state.listeners) told(at);
}
function fromAddress() {
  const match = /(?:^#|&)client=([^&]*)/.exec(location.hash);
  if (!match) return;
  try { const name = decodeURIComponent(match[1]); if (place(name) >= 0) choose(name, { quiet: true }); } catch { /* not ours */ }
}
function describe(i) {
  if (i < 0) return "";
  const told = run(), lines = [told.clients[i]];
  if (told.gain && known(told.gain[i])) lines.push(`alone ${share(told.local[i])}, with others ${share(told.personal[i])}: ${points(told.gain[i])}${interval(told, i)}, ${told.verdict[i]}`);
  else if (known(told.personal[i])) lines.push(`test ${told.metric} ${share(told.personal[i])}`);
  const mates = matesOf(i).map((j) => told.clients[j]);
  if (mates.length) lines.push(`trains with ${mates.slice(0, 8).join(", ")}${mates.length > 8 ? ` and ${mates.length - 8} more` : ""}`);
  return lines.join("\n");
}
const interval = (told, i) => (known(told["gain-low"][i]) ? ` (${points(told["gain-low"][i])} to ${points(told["gain-high"][i])})` : "");
const matesOf = (i) => [...new Set((run().groups || []).filter((members) => members.includes(i)).flat())].filter((j) => j !== i);
document.addEventListener("click", (event) => {
  const target = event.target.closest("[data-client]");
  if (target) choose(run().clients[Number(target.dataset.client)]);
});
window.addEventListener("hashchange", fromAddress);

// Tips: [data-tip] has a text, [data-client] is described.
const tip = document.getElementById("tip");
function showTip(text, x, y) {
  tip.textContent = text;
  tip.hidden = !text;
  if (!text) return;
  tip.style.left = `${Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight > innerHeight ? y - tip.offsetHeight - 10 : y + 18}px`;
}
document.addEventListener("pointermove", (event) => {
  const target = event.target instanceof Element ? event.target.closest("[data-tip], svg [data-client]") : null;
  if (!target) return event.target.closest && event.target.closest("[data-tips]") ? undefined : showTip("", 0, 0);
  showTip(target.dataset.tip || describe(Number(target.dataset.client)), event.clientX, event.clientY);
});
document.addEventListener("pointerleave", () => showTip("", 0, 0));

// Arrow keys walk through the clients of a picture in its own order.
function walkable(node, order, label) {
  fill(node, { tabindex: 0, role: "group", "aria-label": `${label}. Arrow keys choose a client, Escape none.` }, []);
  node.addEventListener("keydown", (event) => {
    const step = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 }[event.key];
    const clients = order();
    if (event.key === "Escape" && state.client !== null) choose(state.client);
    if (!step || !clients.length) return;
    event.preventDefault();
    const at = clients.indexOf(chosen());
    const next = at < 0 ? (step > 0 ? 0 : clients.length - 1) : Math.max(0, Math.min(clients.length - 1, at + step));
    if (next !== at) choose(run().clients[clients[next]]);
  });
  return node;
}

function download(name, type, text) {
  const link = el("a", { href: URL.createObjectURL(new Blob([text], { type })), download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
// A cell that begins like a formula is made text: spreadsheets run formulas.
function csv(table) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    const safe = typeof value !== "number" && /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
    return /[",\n\r]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
  };
  return [table.head, ...table.rows].map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}
// A picture that stands alone: what the page's style says is written into it.
const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-weight", "font-family", "text-anchor"];
function standalone(picture) {
  const copy = picture.cloneNode(true), from = [picture, ...picture.querySelectorAll("*")], to = [copy, ...copy.querySelectorAll("*")];
  from.forEach((node, i) => {
    const style = getComputedStyle(node);
    to[i].setAttribute("style", STYLES.map((key) => `${key}:${style.getPropertyValue(key)}`).join(";"));
  });
  copy.setAttribute("xmlns", SVG);
  copy.style.background = getComputedStyle(document.documentElement).getPropertyValue("--card");
  return new XMLSerializer().serializeToString(copy);
}
