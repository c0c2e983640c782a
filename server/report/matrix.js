// Who trains with whom: matrices in the order of the coalitions, and a graph of few clients.
const CELLS = 60; // clients up to which cells are drawn one by one; beyond that a matrix is an image
const DRAWN_AS_GRAPH = 20;

function mixed(one, other, amount) {
  const part = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
  const [a, b] = [part(one), part(other)];
  return a.map((value, i) => Math.round(value + (b[i] - value) * amount));
}
// Diverging about 0 where values have a sign; else from nothing to the darkest. Of distances the near is dark.
function painter(values, matrix, truth) {
  const colour = colours(), [low, high] = ends(values);
  const every = Math.ceil(values.length / 5000), sample = Array.from(values).filter((value, i) => i % every === 0 && value);
  const sizes = [1, -1].map((sign) => quantile(sample.filter((value) => value * sign > 0).map(Math.abs), 0.9) || 0); // few that help must not pale beside many that hurt, nor the other way
  const most = Math.max(...sizes) || 1, none = mixed(colour("cell"), colour("cell"), 0), back = colour("card");
  const strength = (value) => (high > low ? (value - low) / (high - low) : 1);
  return (value) => {
    if (!known(value)) return none;
    if (matrix.signed && !truth) return mixed(back, colour(value < 0 ? "bad" : "good"), Math.min(1, Math.abs(value) / most) ** 0.7);
    return mixed(back, colour("good"), 0.06 + 0.94 * (matrix.distance && !truth ? 1 - strength(value) : strength(value)));
  };
}
const rgb = ([r, g, b]) => `rgb(${r},${g},${b})`;

// The matrix of coalitions: the mean of all pairs between two of them.
function coarse(values, sizes) {
  const n = sizes.reduce((total, size) => total + size, 0), starts = sizes.map((_, i) => sum(sizes.slice(0, i))), found = new Float32Array(sizes.length ** 2);
  sizes.forEach((height, a) => sizes.forEach((width, b) => {
    let total = 0, count = 0;
    for (let i = starts[a]; i < starts[a] + height; i++) for (let j = starts[b]; j < starts[b] + width; j++) {
      const value = values[i * n + j];
      if (!Number.isNaN(value)) { total += value; count++; }
    }
    found[a * sizes.length + b] = count ? total / count : NaN;
  }));
  return found;
}

function matrixPicture(width, matrix, { truth = false, coalitions = false } = {}) {
  const packed = truth ? matrix.truth : matrix.values, all = unpack(packed).values, clients = run().clients;
  const values = coalitions ? coarse(all, matrix.sizes) : all, n = coalitions ? matrix.sizes.length : matrix.order.length;
  const names = coalitions ? matrix.sizes.map((size, i) => `${i + 1} (${size})`) : matrix.order.map((i) => clients[i]);
  const most = coalitions ? 9 : 10, longest = Math.max(2, ...names.map((name) => shortened(name, most).length)), named = n <= CELLS;
  const left = named ? Math.min(84, 10 + 7 * longest) : 8, side = Math.max(60, Math.min(width - left - 4, named ? Math.max(26 * n, 200) : 620)), cell = side / n;
  const upright = named && 8 * longest > cell - 2, top = named ? (upright ? 14 + 6.5 * longest : 22) : 8, paint = painter(values, matrix, truth);
  const picture = canvas(width, Math.ceil(top + side + 6)), skip = Math.ceil(13 / cell), nodes = [];
  if (named) names.forEach((name, i) => {
    if (i % skip) return;
    const at = (i + 0.5) * cell, client = coalitions ? {} : { "data-client": matrix.order[i] };
    nodes.push(svg("g", client, text(left - 6, top + at + 4, shortened(name, most), "small", "end")));
    nodes.push(svg("g", client, svg("text", { class: "small", "text-anchor": upright ? "start" : "middle", transform: `translate(${left + at + (upright ? 4 : 0)} ${top - 6})${upright ? " rotate(-90)" : ""}` }, shortened(name, most))));
  });
  if (n <= CELLS) {
    for (let i = 0; i < n; i++) for (let j = 0; j < n; j++) {
      const value = values[i * n + j], gap = cell > 12 ? 1 : 0.3;
      nodes.push(svg("rect", { x: left + j * cell + gap, y: top + i * cell + gap, width: cell - 2 * gap, height: cell - 2 * gap, rx: Math.min(4, cell / 5), fill: rgb(paint(value)) }));
      if (value < 0 && matrix.signed && !truth && cell > 13) nodes.push(svg("line", { class: "minus", x1: left + (j + 0.35) * cell, x2: left + (j + 0.65) * cell, y1: top + (i + 0.5) * cell, y2: top + (i + 0.5) * cell, stroke: "currentColor", opacity: 0.7 }));
    }
  } else nodes.push(svg("image", { href: asImage(values, n, paint), x: left, y: top, width: side, height: side, style: "image-rendering:pixelated", preserveAspectRatio: "none" }));
  if (!coalitions) {
    let start = 0;
    for (const size of matrix.sizes) {
      if (size > 1) nodes.push(svg("rect", { class: "bracket", x: left + start * cell, y: top + start * cell, width: size * cell, height: size * cell, rx: 4 }));
      start += size;
    }
  }
  const crosses = svg("g");
  picture.append(...nodes, crosses);
  picture.dataset.tips = "";
  const cellAt = (event) => {
    const box = picture.getBoundingClientRect(), ratio = width / box.width;
    const j = Math.floor(((event.clientX - box.left) * ratio - left) / cell), i = Math.floor(((event.clientY - box.top) * ratio - top) / cell);
    return i >= 0 && j >= 0 && i < n && j < n ? [i, j] : null;
  };
  picture.addEventListener("pointermove", (event) => {
    const at = cellAt(event);
    if (!at) return showTip("", 0, 0);
    const [i, j] = at, value = values[i * n + j], what = truth ? "label overlap" : matrix.name;
    const who = coalitions ? `coalition ${i + 1} and ${j + 1}` : `${names[i]} ← ${names[j]}`;
    showTip(`${who}\n${what} ${known(value) ? significant(value) : "not known"}`, event.clientX, event.clientY);
    event.stopPropagation();
  });
  picture.addEventListener("click", (event) => {
    const at = cellAt(event);
    if (at && !coalitions && !event.target.closest("[data-client]")) choose(names[at[0]]);
  });
  picture.cross = (client) => {
    const at = coalitions ? -1 : matrix.order.indexOf(client);
    crosses.replaceChildren(...(at < 0 ? [] : [svg("rect", { class: "cross", x: left, y: top + at * cell, width: side, height: Math.max(2, cell) }), svg("rect", { class: "cross", x: left + at * cell, y: top, width: Math.max(2, cell), height: side })]));
  };
  return picture;
}
function asImage(values, n, paint) {
  const drawn = el("canvas", { width: n, height: n }), context = drawn.getContext("2d"), image = context.createImageData(n, n);
  for (let i = 0; i < n * n; i++) {
    const [r, g, b] = paint(values[i]);
    image.data.set([r, g, b, 255], 4 * i);
  }
  context.putImageData(image, 0, 0);
  return drawn.toDataURL();
}

// An arrow goes from who helps to who is helped: the links that the method found, else each client's best three.
function arrows() {
  const told = run(), matrix = told.matrices.find((one) => !one.distance);
  if (told.links.length) return told.links.map(([helped, helper]) => [helper, helped]);
  if (!matrix) return [];
  const { values } = unpack(matrix.values), n = matrix.order.length, found = [];
  for (let i = 0; i < n; i++) {
    const row = [...Array(n).keys()].filter((j) => j !== i && known(values[i * n + j]) && (!matrix.signed || values[i * n + j] > 0));
    row.sort((a, b) => values[i * n + b] - values[i * n + a]);
    for (const j of row.slice(0, 3)) found.push([matrix.order[j], matrix.order[i]]);
  }
  return found;
}
function graphPicture(width) {
  const told = run(), homes = new Map(), groups = (told.groups.length ? told.groups : [told.clients.map((_, i) => i)]).map((members) => members.filter((i) => !homes.has(i) && homes.set(i, true)));
  const loose = told.clients.map((_, i) => i).filter((i) => !homes.has(i));
  const all = [...groups.filter((members) => members.length), ...loose.map((i) => [i])], spots = new Map();
  const size = Math.min(width, 380), middle = [width / 2, size / 2], count = told.clients.length, radius = 13;
  const inner = all.map((members) => (members.length === 1 ? 0 : Math.max(22, (radius * 1.8) / Math.sin(Math.PI / members.length)))), widths = inner.map((value) => value + radius + 6), around = sum(widths);
  const outer = all.length === 1 ? 0 : Math.max((around * 1.12) / Math.PI, Math.max(...widths) * 1.15), fit = Math.min(1.5, (size / 2 - 4) / (outer + Math.max(...widths)));
  let turn = 0;
  const nodes = [];
  all.forEach((members, at) => {
    const angle = (2 * Math.PI * (turn + widths[at] / 2)) / around - Math.PI / 2;
    turn += widths[at];
    const x = middle[0] + fit * outer * Math.cos(angle), y = middle[1] + fit * outer * Math.sin(angle);
    if (members.length > 1) nodes.push(svg("circle", { class: "blob", cx: x, cy: y, r: fit * widths[at] }));
    members.forEach((i, k) => { const own = (2 * Math.PI * k) / members.length - Math.PI / 2; spots.set(i, [x + fit * inner[at] * Math.cos(own), y + fit * inner[at] * Math.sin(own)]); });
  });
  const edges = arrows().filter(([from, to]) => spots.has(from) && spots.has(to)).map(([from, to]) => {
    const [x1, y1] = spots.get(from), [x2, y2] = spots.get(to), length = Math.hypot(x2 - x1, y2 - y1) || 1, r = fit * radius + 2;
    const [dx, dy] = [(x2 - x1) / length, (y2 - y1) / length], bend = 0.14 * length, [cx, cy] = [(x1 + x2) / 2 - dy * bend, (y1 + y2) / 2 + dx * bend];
    return svg("path", { class: "edge", "data-from": from, "data-to": to, "marker-end": "url(#arrow)", d: `M${x1 + dx * r} ${y1 + dy * r}Q${cx} ${cy} ${x2 - dx * r} ${y2 - dy * r}` });
  });
  const dots = [...spots].map(([i, [x, y]]) => svg("g", { "data-client": i }, svg("circle", { class: "dot open good", cx: x, cy: y, r: fit * radius }), text(x, y + 4, shortened(told.clients[i], count > 12 ? 4 : 5), "tiny", "middle")));
  const arrow = svg("defs", {}, svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerUnits: "userSpaceOnUse", markerWidth: 7, markerHeight: 7, orient: "auto" }, svg("path", { d: "M0 0L8 4L0 8z", class: "plain" })));
  const ys = [...spots].map(([, [, y]]) => y), low = Math.min(...ys) - fit * (radius + 8) - 2, high = Math.max(...ys) + fit * (radius + 8) + 2;
  const picture = canvas(width, Math.ceil(high - low), arrow, svg("g", { transform: `translate(0 ${-low})` }, nodes, edges, dots));
  picture.cross = (client) => { for (const edge of edges) edge.classList.toggle("lit", client >= 0 && (Number(edge.dataset.to) === client || Number(edge.dataset.from) === client)); };
  return picture;
}
// Where the models stand among each other, with a circle around each coalition.
function placesPicture(width) {
  const told = run(), entries = Object.entries(told.places), size = Math.min(width, 430), colour = entries.length <= LABELLED;
  const x = linear(...extent(entries.map(([, p]) => p[0]), 0.12), 10, width - 10), y = linear(...extent(entries.map(([, p]) => p[1]), 0.12), size - 10, 10);
  const rings = told.groups.filter((members) => members.length > 1).map((members) => {
    const spots = members.filter((i) => told.places[i]).map((i) => [x(told.places[i][0]), y(told.places[i][1])]);
    if (spots.length < 2) return null;
    const cx = mean(spots.map((p) => p[0])), cy = mean(spots.map((p) => p[1]));
    return svg("circle", { class: "blob", cx, cy, r: 8 + Math.max(...spots.map((p) => Math.hypot(p[0] - cx, p[1] - cy))) });
  });
  const dots = entries.map(([i, p]) => svg("g", { "data-client": i }, svg("circle", { class: "dot good", cx: x(p[0]), cy: y(p[1]), r: 4 }), colour ? text(x(p[0]) + 6, y(p[1]) - 5, shortened(told.clients[i]), "tiny") : null));
  return canvas(width, size, rings.filter(Boolean), dots);
}
