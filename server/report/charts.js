// Pictures of numbers: every function takes a width and returns an <svg>.
const LABELLED = 40; // clients up to which each has a row of its own
const BY_COALITION = 300; // clients beyond which coalitions come first

function ticks(low, high, most = 6) {
  if (!(high > low)) return [low];
  const rough = (high - low) / most, power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((size) => size >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-6; i++) found.push(Number((i * step).toPrecision(12)));
  return found;
}
function linear(low, high, from, to) {
  const width = high - low || 1;
  return Object.assign((value) => from + ((value - low) / width) * (to - from), { low, high });
}
function extent(values, margin = 0.06) {
  const [low, high] = ends(values);
  if (low > high) return [0, 1];
  const room = (high - low || Math.abs(high) || 1) * margin;
  return [low - room, high + room];
}
const canvas = (width, height, ...children) => svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, ...children);
const text = (x, y, value, kind = "", anchor = "start") => svg("text", { x, y, class: kind, "text-anchor": anchor }, value);
const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });
function path(points, kind) {
  return svg("path", { class: kind, d: points.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("") });
}
// Sign and verdict by shape, too: a disc gains, a triangle loses, a ring cannot tell.
function mark(verdict, x, y, size = 5) {
  if (verdict === "loses") return svg("path", { class: "dot bad", d: `M${x - size} ${y - size * 0.8}h${2 * size}l${-size} ${size * 1.9}z` });
  return svg("circle", { class: verdict === "gains" ? "dot good" : "dot plain open", cx: x, cy: y, r: size });
}
const kindOf = (verdict) => ({ gains: "good", loses: "bad" })[verdict] || "plain";
function xAxis(x, top, bottom, label, format) {
  const right = x(x.high);
  return [
    ...ticks(x.low, x.high, Math.max(3, (right - x(x.low)) / 55)).map((value) => [line(x(value), top, x(value), bottom, "gridline"), text(x(value), bottom + 15, format(value), "small soft", "middle")]),
    text((x(x.low) + right) / 2, bottom + 32, label, "small soft", "middle"),
  ].flat();
}
const axisNumber = (value) => (run().percent ? String(Number((100 * value).toFixed(1))) : significant(value)).replace("-", "−");
const axisPoints = (value) => (value ? points(value).replace(/\.0$/, "") : "0");
const labelRoom = (clients) => Math.min(120, 14 + 7 * Math.max(3, ...clients.map((i) => shortened(run().clients[i], 14).length)));

// What did each gain?
function byGain() {
  const told = run(), values = told.gain && told.gain.some(known) ? told.gain : told.personal;
  const better = told.gain || !told.lower ? -1 : 1;
  return told.clients.map((_, i) => i).filter((i) => known(values[i])).sort((a, b) => better * (values[a] - values[b]) || a - b);
}
function gainPicture(width, only = null) {
  const order = byGain().filter((i) => !only || only.includes(i));
  return { rows: gainRows, ranks: gainRanks, coalitions: coalitionRows }[gainForm(order.length)](width, order);
}
const gainForm = (number) => (number <= LABELLED ? "rows" : number > BY_COALITION && run().groups.length > 1 ? "coalitions" : "ranks");
// How the picture is to be read.
function gainNote() {
  const told = run(), form = gainForm(byGain().length), signs = "Disc: gains. Triangle: loses. Ring in grey: cannot tell.";
  if (!told.gain || !told.gain.some(known)) return `Test ${told.metric} of each client's own model${told.global.some(known) && form === "rows" ? "; the ring is the one model for all" : ""}.${form === "coalitions" ? " A row is a coalition: the median, and the middle 80 % of its clients." : ""} What it gains needs a run of strategy local beside it.`;
  if (form === "coalitions") return "A row is a coalition: the median of what its clients gain over training alone, and the middle 80 % of them. Choose one to see its clients.";
  if (form === "ranks") return `What each client gains over training alone, with its 95 % interval. ${signs}`;
  const few = byGain().some(small) ? ` Pale: fewer than ${SUPPORT} test samples.` : "";
  return `Test ${told.metric} alone (ring) and with others, sorted by the gain; beside it the gain with its 95 % interval. ${signs}${few}`;
}
function gainRows(width, order) {
  const told = run(), height = 24, beside = width > 420, left = labelRoom(order) + (beside ? 44 : 0), right = told.gain ? 62 : 50, top = 6;
  const bottom = top + height * order.length, gains = told.gain && told["gain-low"].some(known), panel = gains ? Math.round((width - left - right) * 0.4) : 0;
  const values = order.flatMap((i) => [told.personal[i], told.gain ? told.local[i] : told.global[i]]);
  const x = linear(...extent(values, 0.08), left + 6, width - right - panel - 14);
  const ends = order.flatMap((i) => (gains ? [told["gain-low"][i], told["gain-high"][i], 0] : []));
  const g = linear(...extent(ends), width - right - panel + 10, width - right - 4);
  const rows = order.map((i, row) => {
    const y = top + height * (row + 0.5), verdict = told.verdict ? told.verdict[i] : "", end = x(told.personal[i]);
    const group = svg("g", { "data-client": i, opacity: small(i) ? 0.6 : 1 }, svg("rect", { class: "hit", x: 0, y: y - height / 2, width, height }));
    group.append(text(left - 8 - (beside ? 44 : 0), y + 4, shortened(told.clients[i], 14), "", "end"));
    if (beside && known(told["test-samples"][i])) group.append(text(left - 6, y + 4, `n ${told["test-samples"][i]}`, "tiny soft", "end"));
    if (told.gain && known(told.local[i])) {
      const start = x(told.local[i]), kind = kindOf(verdict);
      group.append(svg("line", { class: `${kind} stroke`, x1: start, y1: y, x2: end, y2: y }), svg("circle", { class: "plain open", cx: start, cy: y, r: 4 }), svg("circle", { class: `dot ${kind}`, cx: end, cy: y, r: 4.5 }));
      if (gains && known(told["gain-low"][i])) group.append(svg("line", { class: `${kind} stroke`, x1: g(told["gain-low"][i]), x2: g(told["gain-high"][i]), y1: y, y2: y, opacity: 0.5 }), mark(verdict, g(told.gain[i]), y));
      group.append(text(width - 2, y + 4, points(told.gain[i]), `${kind} strong small`, "end"));
    } else {
      if (known(told.global[i])) group.append(svg("circle", { class: "plain open", cx: x(told.global[i]), cy: y, r: 4 }));
      group.append(svg("circle", { class: "dot good", cx: end, cy: y, r: 5 }), text(width - 2, y + 4, share(told.personal[i]), "strong small", "end"));
    }
    return group;
  });
  const other = gains ? [...xAxis(g, top, bottom, "gain, points", axisPoints), line(g(0), top, g(0), bottom, "axis")] : [];
  return canvas(width, bottom + 38, xAxis(x, top, bottom, `test ${told.metric}${told.percent ? ", %" : ""}`, axisNumber), other, rows);
}
const SUPPORT = 30; // test samples below which a client's figures say little
const small = (i) => known(run()["test-samples"][i]) && run()["test-samples"][i] < SUPPORT;
function gainRanks(width, order) {
  const told = run(), left = 44, top = 8, bottom = 250, gains = Boolean(told.gain);
  const value = (i) => (gains ? told.gain[i] : told.personal[i]);
  const ends = order.flatMap((i) => [value(i), gains ? told["gain-low"][i] : told.global[i], gains ? told["gain-high"][i] : null]);
  const y = linear(...extent([...ends, gains ? 0 : null]), bottom, top), x = linear(-0.5, order.length - 0.5, left, width - 6);
  const step = (width - left) / order.length;
  const grid = ticks(y.low, y.high, 5).map((v) => [line(left, y(v), width, y(v), "gridline"), text(left - 6, y(v) + 4, gains ? axisPoints(v) : axisNumber(v), "small soft", "end")]);
  const marks = order.map((i, rank) => {
    const verdict = gains ? told.verdict[i] : "gains", group = svg("g", { "data-client": i }, svg("rect", { class: "hit", x: x(rank) - step / 2, y: top, width: step, height: bottom - top }));
    if (gains && known(told["gain-low"][i])) group.append(svg("line", { class: `${kindOf(verdict)} stroke`, x1: x(rank), x2: x(rank), y1: y(told["gain-low"][i]), y2: y(told["gain-high"][i]), opacity: 0.4 }));
    group.append(mark(verdict, x(rank), y(value(i)), Math.max(1.6, Math.min(4, step / 2.6))));
    return group;
  });
  const label = gains ? "clients by what they gain over training alone, in points" : `clients by test ${told.metric}`;
  return canvas(width, bottom + 26, grid.flat(), gains ? line(left, y(0), width, y(0), "axis") : null, marks, text((left + width) / 2, bottom + 20, label, "small soft", "middle"));
}
// A thousand clients: coalitions first, as a bar of quantiles each; clicking one shows its clients.
function coalitionRows(width, order) {
  const told = run(), value = told.gain || told.personal, within = new Set(order);
  const groups = told.groups.map((members, at) => ({ at, values: members.filter((i) => within.has(i)).map((i) => value[i]) })).filter((group) => group.values.length);
  groups.sort((a, b) => quantile(b.values, 0.5) - quantile(a.values, 0.5));
  const shown = groups.slice(0, 60), height = 22, left = 120, top = 6, bottom = top + height * shown.length;
  const x = linear(...extent(shown.flatMap((group) => [quantile(group.values, 0.1), quantile(group.values, 0.9), told.gain ? 0 : null])), left, width - 60);
  const rows = shown.map((group, row) => {
    const y = top + height * (row + 0.5), [low, middle, high] = [0.1, 0.5, 0.9].map((q) => quantile(group.values, q)), kind = told.gain && middle < 0 ? "bad" : "good";
    return svg("g", { class: "coalition", role: "button", tabindex: 0, "aria-label": `coalition ${group.at + 1}, ${group.values.length} clients`, "data-coalition": group.at, "data-tip": `coalition ${group.at + 1}: ${group.values.length} clients, median ${told.gain ? points(middle) : share(middle)}, middle 80 % from ${share(low)} to ${share(high)}\nclick to see its clients` },
      svg("rect", { class: "hit", x: 0, y: y - height / 2, width, height }), text(left - 10, y + 4, `coalition ${group.at + 1} (${group.values.length})`, "small", "end"),
      svg("rect", { class: `${kind}-band band`, x: x(low), y: y - 6, width: Math.max(1, x(high) - x(low)), height: 12, rx: 3 }), kind === "bad" ? mark("loses", x(middle), y) : svg("circle", { class: "good", cx: x(middle), cy: y, r: 5 }), text(width - 2, y + 4, told.gain ? points(middle) : share(middle), `${kind} strong small`, "end"));
  });
  const label = told.gain ? "gain, points" : `test ${told.metric}${told.percent ? ", %" : ""}`;
  return canvas(width, bottom + 38, xAxis(x, top, bottom, label, told.gain ? axisPoints : axisNumber), told.gain ? line(x(0), top, x(0), bottom, "axis") : null, rows);
}

// What is each worth?
const byWorth = () => run().clients.map((_, i) => i).filter((i) => known(run().worth.values[i])).sort((a, b) => run().worth.values[b] - run().worth.values[a]);
function worthPicture(width) {
  const { values, errors } = run().worth, order = byWorth(), many = order.length > LABELLED, height = 24, top = 6, left = many ? 10 : labelRoom(order);
  const right = many ? 10 : 60, bars = order.flatMap((i) => [values[i] - (many ? 0 : errors[i] || 0), values[i] + (many ? 0 : errors[i] || 0)]);
  const x = linear(...extent([...bars, 0]), left, width - right);
  if (many) return beeswarm(width, x, [{ name: "", points: order.map((i) => [i, values[i]]) }], "what it adds to others", significant, 200);
  const bottom = top + height * order.length;
  const rows = order.map((i, row) => {
    const y = top + height * (row + 0.5), kind = values[i] < 0 ? "bad" : "good", error = errors[i] || 0;
    return svg("g", { "data-client": i }, svg("rect", { class: "hit", x: 0, y: y - height / 2, width, height }), text(left - 8, y + 4, shortened(run().clients[i], 14), "", "end"),
      svg("line", { class: `${kind} stroke`, x1: x(values[i] - error), x2: x(values[i] + error), y1: y, y2: y, opacity: 0.55 }), mark(values[i] < 0 ? "loses" : "gains", x(values[i]), y), text(width - 2, y + 4, (values[i] >= 0 ? "+" : "") + significant(values[i]), `${kind} strong small`, "end"));
  });
  return canvas(width, bottom + 38, xAxis(x, top, bottom, "what it adds to others", significant), line(x(0), top, x(0), bottom, "axis"), rows);
}
// Dots beside each other where they would cover one another; one row for each name.
function beeswarm(width, x, rows, label, format, rowHeight = 64) {
  const top = 8, bottom = top + rowHeight * rows.length, dots = [];
  rows.forEach((row, at) => {
    const middle = top + rowHeight * (at + 0.5), size = row.points.length > 250 ? 2.2 : 4, taken = new Map();
    if (row.name) dots.push(text(0, middle - rowHeight / 2 + 14, row.name, "strong small"), text(width - 2, middle - rowHeight / 2 + 14, row.note || "", "small soft", "end"));
    for (const [i, value] of row.points.slice().sort((a, b) => a[1] - b[1])) {
      const bin = Math.round(x(value) / (2 * size)), count = taken.get(bin) || 0, offset = Math.ceil(count / 2) * (count % 2 ? 1 : -1) * 2 * size;
      taken.set(bin, count + 1);
      const y = middle + Math.max(-rowHeight / 2 + 6, Math.min(rowHeight / 2 - 6, offset));
      dots.push(svg("circle", { class: `dot ${row.kind || (value < 0 ? "bad" : "good")}`, cx: bin * 2 * size, cy: y, r: size * 0.9, "data-client": i, opacity: 0.75 }));
    }
    if (known(row.middle)) dots.push(svg("line", { class: "bracket", x1: x(row.middle), x2: x(row.middle), y1: middle - 13, y2: middle + 13 }));
  });
  return canvas(width, bottom + 38, xAxis(x, top, bottom, label, format), x.low < 0 && x.high > 0 ? line(x(0), top, x(0), bottom, "axis") : null, dots);
}

// Lines with labels at their right ends, pushed apart where they would meet.
function linePicture(width, lines, { x: xLabel, y: yLabel, format = significant, logX = false, logY = false, height = 250 }) {
  const left = 46, top = 10, bottom = top + height, named = lines.filter((one) => one.name && one.points.length);
  const room = Math.min(150, 16 + 7 * Math.max(0, ...named.map((one) => Math.min(18, one.name.length)))), right = width - room;
  const log = (on) => (value) => (on ? Math.log10(Math.max(value, 1e-12)) : value), fx = log(logX), fy = log(logY);
  const all = lines.flatMap((one) => [...one.points, ...(one.band || []).flatMap(([at, low, high]) => [[at, low], [at, high]])]).filter(([, value]) => known(value));
  const xs = all.map(([at]) => fx(at)), y = linear(...extent(all.map(([, value]) => fy(value)), 0.05), bottom, top), x = linear(Math.min(...xs), Math.max(...xs), left + 4, right);
  const back = (on) => (value) => (on ? 10 ** value : value);
  const whole = !logX && xs.every(Number.isInteger), nodes = [];
  for (const value of ticks(y.low, y.high, 5)) nodes.push(line(left, y(value), right, y(value), "gridline"), text(left - 6, y(value) + 4, format(back(logY)(value)), "small soft", "end"));
  for (const value of ticks(x.low, x.high, Math.max(2, (right - left) / 70))) if (!whole || Number.isInteger(value)) nodes.push(text(x(value), bottom + 16, whole ? String(value) : significant(back(logX)(value)), "small soft", "middle"));
  nodes.push(text((left + right) / 2, bottom + 32, xLabel, "small soft", "middle"), text(2, top - 1, yLabel || "", "tiny soft"));
  for (const one of lines) {
    const there = one.points.filter(([, value]) => known(value)).map(([at, value]) => [x(fx(at)), y(fy(value))]);
    if (one.band) {
      const band = one.band.filter(([, low]) => known(low));
      nodes.push(path([...band.map(([at, low]) => [x(fx(at)), y(fy(low))]), ...band.slice().reverse().map(([at, , high]) => [x(fx(at)), y(fy(high))])], `band ${one.kind}-band`));
    }
    if (there.length) nodes.push(there.length > 1 ? path(there, `stroke ${one.kind}`) : svg("circle", { class: one.kind, cx: there[0][0], cy: there[0][1], r: 4 }));
    if (one.dash && there.length > 1) nodes[nodes.length - 1].setAttribute("stroke-dasharray", one.dash);
  }
  const last = named.map((one) => ({ one, at: one.points.filter(([, value]) => known(value)).pop() })).filter(({ at }) => at).map(({ one, at }) => ({ one, x: x(fx(at[0])), y: y(fy(at[1])) + 4 })).sort((a, b) => a.y - b.y);
  for (const end of last.filter((one) => one.x < right - 1)) nodes.push(text(end.x + 8, end.y, shortened(end.one.name, 18), `${end.one.kind} small strong`)); // it ended early, and is named there
  const ends = last.filter((one) => one.x >= right - 1);
  ends.forEach((end, i) => { if (i && end.y < ends[i - 1].y + 14) end.y = ends[i - 1].y + 14; });
  const over = ends.length ? ends[ends.length - 1].y - bottom - 4 : 0;
  if (over > 0) ends.forEach((end, i) => { end.y = Math.max(top + 4 + 14 * i, end.y - over); });
  for (const end of ends) nodes.push(text(right + 8, end.y, shortened(end.one.name, 18), `${end.one.kind} small strong`));
  return canvas(width, bottom + 38, nodes);
}
const middleLine = (curve, rounds, name, kind) => ({ name, kind, points: rounds.map((at, i) => [at, curve.quantiles[i][1]]), band: rounds.map((at, i) => [at, curve.quantiles[i][0], curve.quantiles[i][2]]) });
function clientLine(packedRows, rounds, at, name) {
  const rows = unpack(packedRows);
  return rows && at >= 0 ? [{ name, kind: "mine", points: rounds.map((round, i) => [round, rows.values[i * rows.shape[1] + at]]) }] : [];
}
function roundsPicture(width) {
  const told = run(), { personal, global } = told.curves, at = chosen(), lines = [];
  const alone = DATA.runs.find((other) => other.strategy === "local" && other.seed === told.seed && other.cell === told.cell && other !== told);
  const same = global && personal && JSON.stringify(global.quantiles) === JSON.stringify(personal.quantiles); // everybody uses the one for all
  if (global && !same) lines.push({ ...middleLine(global, told.rounds, "one for all", "bad"), dash: "7 3" });
  if (alone && alone.curves.personal) lines.push({ ...middleLine(alone.curves.personal, alone.rounds, "alone", "plain"), dash: "2 3" });
  if (personal) lines.push(middleLine(personal, told.rounds, told.strategy === "local" ? "alone" : same ? "one for all" : "personal", "good"));
  const mine = personal ? clientLine(personal.clients, told.rounds, at, state.client) : [];
  return linePicture(width, [...lines, ...mine], { x: "round", format: axisNumber });
}
function secondsPicture(width) {
  const cost = run().cost;
  return linePicture(width, [
    { name: "training", kind: "good", points: cost.rounds.map((at, i) => [at, cost["train-seconds"][i]]) },
    { name: "testing", kind: "plain", dash: "2 3", points: cost.rounds.map((at, i) => [at, cost["test-seconds"][i]]) },
  ], { x: "round", y: "seconds", height: 150 });
}
// All clients over the rounds: median, from the least to the most, the suspects, and the chosen one.
function spanPicture(width, packedRows, rounds, label) {
  const rows = unpack(packedRows), n = rows.shape[1], of = (i) => Array.from(rows.values.subarray(i * n, (i + 1) * n));
  const line = { name: "median", kind: "good", points: rounds.map((at, i) => [at, quantile(of(i), 0.5)]), band: rounds.map((at, i) => [at, quantile(of(i), 0), quantile(of(i), 1)]) };
  const suspects = (run().suspects || []).slice(0, 8).map(place).filter((i) => i >= 0 && i !== chosen());
  const theirs = suspects.flatMap((i) => clientLine(packedRows, rounds, i, run().clients[i]).map((one) => ({ ...one, kind: "bad", dash: "7 3" })));
  return linePicture(width, [line, ...theirs, ...clientLine(packedRows, rounds, chosen(), state.client)], { x: "round", y: label, height: 170 });
}
