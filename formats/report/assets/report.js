/* SPDX-License-Identifier: Apache-2.0
   The table of connections, and the linked graphs of the selected one. */
"use strict";
(() => {
const data = JSON.parse(document.getElementById("data").textContent);
if (!data.graphs) return;
const $ = (id) => document.getElementById(id);
const make = (tag, text) => {
  const found = document.createElement(tag);
  if (text !== undefined) found.textContent = text;
  return found;
};
const count = (number) => number.toLocaleString("en");

// Okabe and Ito's colours; lines also differ in dashes, limits in hatching, marks in letters.
const LINES = [["#0072b2", []], ["#e69f00", [6, 4]], ["#009e73", [2, 3]],
  ["#0072b2", []], ["#d55e00", [6, 4]], ["#cc79a7", [2, 3]], ["#0072b2", []], ["#e69f00", [6, 4]]];
const FILLS = ["#56b4e9", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#0072b2", "#b0a030"];
const PANELS = [["Windows [segments]", [0, 1, 2], 230], ["Buffers and the peer's window [bytes]",
  [3, 4, 5], 180], ["Round-trip time [ms]", [6, 7], 160]];
const ROW = 20;
const LETTERS = { 2: "R", 3: "Y", 7: "X", 8: "X", 12: "Q", 13: "E", 14: "T", 15: "P", 16: "Z",
  17: "U", 20: "O" };
const DASHES = ["solid", "dashed", "dotted"];
const STRIP = 12, PAPER = 680;

// --- table ---
const { columns, rows } = data.connections ?? { columns: [], rows: [] };
const ID = columns.findIndex((column) => column.name === "conn_id");
const isNumber = columns.map((_, n) => rows.some((row) => typeof row[n] === "number"));
const SCREEN = /^(start|role|end_reason|comm|rto_count|proven)$/;  // no room on paper
const PLAIN = /^(conn_id|lport|rport)$/;
let sorted = -1, descending = true, selected = null;

const cell = (value) => {
  if (value === null) return "–";
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value)) return count(value);
  return Math.abs(value) >= 1000 ? count(Math.round(value)) : String(+value.toPrecision(4));
};

function fillTable() {
  const words = $("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  let found = rows.filter((row) => {
    const text = row.map((one) => String(one ?? "")).join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  if (sorted >= 0) {
    const sign = descending ? -1 : 1;
    found = found.slice().sort((a, b) => {
      const [x, y] = [a[sorted], b[sorted]];
      if (x === null || y === null) return (x === null) - (y === null);
      return sign * (x < y ? -1 : x > y ? 1 : 0);
    });
  }
  const body = make("tbody");
  for (const row of found.slice(0, 500)) {
    const line = body.appendChild(make("tr"));
    row.forEach((value, n) => {
      const one = line.appendChild(make("td", PLAIN.test(columns[n].name) ? String(value ?? "–") : cell(value)));
      if (isNumber[n]) one.className = "number";
      if (SCREEN.test(columns[n].name)) one.classList.add("screen");
    });
    const id = String(row[ID]);
    if (!data.graphs[id]) continue;
    line.className = "drawn";
    line.tabIndex = 0;
    line.dataset.conn = id;
    line.setAttribute("aria-selected", id === selected);
    line.onclick = () => select(id);
    line.onkeydown = (event) => {
      if (event.key === "Enter" || event.key === " ") { event.preventDefault(); select(id); }
      const next = { ArrowDown: line.nextSibling, ArrowUp: line.previousSibling }[event.key];
      if (next) { event.preventDefault(); next.focus(); }
    };
  }
  $("connections").tBodies[0].replaceWith(body);
  const shown = Math.min(found.length, 500);
  $("found").textContent = `${count(shown)} of ${count(data.count)} connections`
    + (rows.length < data.count ? `; the page has the ${count(rows.length)} with most bytes` : "")
    + `; ${Object.keys(data.graphs).length} have graphs (blue number)`;
  [...$("connections").tHead.querySelectorAll("th")].forEach((head, n) =>
    head.setAttribute("aria-sort",
      n !== sorted ? "none" : descending ? "descending" : "ascending"));
}

const headLine = $("connections")?.tHead.appendChild(make("tr"));
columns.forEach((column, n) => {
  const head = headLine.appendChild(make("th"));
  head.scope = "col";
  if (isNumber[n]) head.className = "number";
  if (SCREEN.test(column.name)) head.classList.add("screen");
  const button = head.appendChild(
    make("button", column.name + (column.unit ? ` [${column.unit}]` : "")));
  button.title = column.text;
  button.onclick = () => {
    descending = sorted === n ? !descending : isNumber[n];
    sorted = n;
    fillTable();
  };
});
if (rows.length) $("search").oninput = fillTable;
for (const name of document.querySelectorAll(".conn")) {
  if (!data.graphs[name.dataset.conn]) continue;
  const button = make("button", name.textContent);
  button.onclick = () => { select(name.dataset.conn); $("graphs").scrollIntoView(); };
  name.replaceChildren(button);
}

// --- graphs ---
const unpack = (text, Kind) =>
  new Kind(Uint8Array.from(atob(text), (one) => one.charCodeAt(0)).buffer);
const unpackAll = (text, Kind) => Array.from(unpack(text, Kind));
const tracks = (data.tracks?.rows ?? []).map((row) => ({
  name: row.name, begin: unpackAll(row.begin, Float64Array), length: unpackAll(row.length,
    Float32Array), share: unpackAll(row.share, Uint8Array), item: unpackAll(row.item, Uint16Array),
  count: unpackAll(row.count, Uint32Array), gaps: data.tracks.gaps[row.name],
}));
const allGaps = Object.entries(data.tracks?.gaps ?? {});
let plots = [], graph = null, times = [], series = [], whole = [0, 1], shown = [0, 1], at = null;
const isPaper = () => document.documentElement.classList.contains("paper");
const isDark = () => matchMedia("(prefers-color-scheme: dark)").matches
  && !isPaper();
const colour = (n) => LINES[n][0] === "#0072b2" && isDark() ? "#56b4e9" : LINES[n][0];
const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function patternOf(context, number) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 8;
  const pen = tile.getContext("2d");
  pen.fillStyle = number < 0 ? style("--line") : FILLS[number % FILLS.length];
  pen.fillRect(0, 0, 8, 8);
  pen.strokeStyle = number < 0 ? style("--unknown") : style("--back");
  pen.lineWidth = 1.5;
  const kind = number < 0 ? 1 : Math.floor(number / FILLS.length);
  pen.beginPath();
  if (kind === 1) for (const x of [-8, 0, 8]) { pen.moveTo(x, 8); pen.lineTo(x + 8, 0); }
  if (kind === 2) { pen.moveTo(4, 0); pen.lineTo(4, 8); }
  if (kind) pen.stroke();
  return context.createPattern(tile, "repeat");
}

function drawUnder(plot) {
  const { ctx, bbox } = plot, ratio = devicePixelRatio;
  const x = (time) => Math.min(Math.max(plot.valToPos(time, "x", true), bbox.left),
    bbox.left + bbox.width);
  ctx.save();
  ctx.fillStyle = patternOf(ctx, -1);
  ctx.globalAlpha = 0.7;
  const [begins, ends] = data.lost;
  begins.forEach((begin, n) => {
    const [left, right] = [x(begin / 1e6), x(ends[n] / 1e6)];
    if (right > bbox.left && left < bbox.left + bbox.width)
      ctx.fillRect(left - ratio / 2, bbox.top, Math.max(right - left, 2 * ratio), bbox.height);
  });
  ctx.globalAlpha = 1;
  const [starts, stops, kinds, certain] = graph.limits, patterns = {};
  starts.forEach((start, n) => {
    const left = x(start / 1e6), right = x(stops[n] / 1e6);
    if (right <= left) return;
    ctx.fillStyle = patterns[kinds[n]] ??= patternOf(ctx, kinds[n]);
    ctx.globalAlpha = certain[n] ? 1 : 0.5;
    ctx.fillRect(left, bbox.top, right - left, STRIP * ratio);
    ctx.globalAlpha *= 0.1;
    ctx.fillRect(left, bbox.top, right - left, bbox.height);
  });
  ctx.restore();
}

function drawMarks(plot) {
  const { ctx, bbox } = plot, ratio = devicePixelRatio;
  ctx.save();
  ctx.font = `bold ${10 * ratio}px sans-serif`;
  ctx.textAlign = "center";
  ctx.fillStyle = ctx.strokeStyle = style("--bad");
  ctx.setLineDash([2 * ratio, 3 * ratio]);
  let free = -Infinity;
  const [kinds, moments] = graph.marks;
  const isDense = moments.filter((one) =>
    one / 1e6 >= shown[0] && one / 1e6 <= shown[1]).length > 80;
  kinds.forEach((kind, n) => {
    const x = plot.valToPos(moments[n] / 1e6, "x", true);
    if (x < bbox.left || x > bbox.left + bbox.width || x < free) return;
    free = x + 9 * ratio;
    ctx.globalAlpha = 0.5;
    ctx.beginPath();
    ctx.moveTo(x, bbox.top + STRIP * ratio);
    ctx.lineTo(x, bbox.top + bbox.height);
    if (!isDense) ctx.stroke();
    ctx.globalAlpha = 1;
    ctx.fillText(LETTERS[kind] ?? "?", x, bbox.top + bbox.height - 3 * ratio);
  });
  ctx.restore();
}

const inSpan = (begins, ends, us) => {
  const found = [];
  begins.forEach((begin, n) => { if (begin <= us && us <= ends[n]) found.push(n); });
  return found;
};

// The last of rising numbers that is not above a value, -1: none is.
function lastOf(numbers, value) {
  let [low, high] = [0, numbers.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= value) low = middle + 1; else high = middle;
  }
  return low - 1;
}
const nearest = (time) => {
  const n = Math.max(lastOf(times, time), 0);
  return n + 1 < times.length && times[n + 1] - time < time - times[n] ? n + 1 : n;
};
const brief = (number) => count(+number.toPrecision(4));
const timeOf = (us) => us < 1000 ? `${brief(us)} us` : us < 1e6 ? `${brief(us / 1000)} ms`
  : `${brief(us / 1e6)} s`;

// Which bands of a row hold a moment, or lie in the pixel around it.
function bandsAt(row, us, near) {
  const found = [];
  for (let n = lastOf(row.begin, us + near); n >= 0 && found.length < 3; n--) {
    if (row.begin[n] + row.length[n] >= us - near) found.push(n);
    else if (row.reach[n] < us - near) break;
  }
  return found;
}

function tellTracks(us) {
  const parts = [], near = (shown[1] - shown[0]) * 1e6 / 2000;
  for (const row of tracks) {
    const gap = (row.gaps ? [["", row.gaps]] : allGaps).find(([, one]) =>
      inSpan(one[0], one[1], us).length);
    const told = bandsAt(row, us, near).map((n) => {
      const item = data.tracks.items[row.item[n]], long = timeOf(row.length[n]);
      return row.count[n] === 1 ? `${item} (${long})` : `mostly ${item} (${count(row.count[n])} in `
        + `${long}, ${Math.round(row.share[n] / 2.55)} % of it)`;
    });
    if (gap && row.gaps) parts.push(`${row.name}: NOT KNOWN`);
    else if (told.length) parts.push(`${row.name}: ${told.join(", ")}`);
  }
  return parts;
}

// index: of a point. where: the time [us] that was pointed at, which may lie between points.
function tellValues(index, where = times[index] * 1e6) {
  at = index;
  const us = graph ? times[index] * 1e6 : where;
  const parts = [`${(us / 1e6).toFixed(6)} s`];
  if (data.start_ms !== null)
    parts.push(new Date(data.start_ms + us / 1000).toISOString());
  if (graph) tellConnection(index, us, parts);
  const host = tellTracks(where);
  if (host.length && where !== us) parts.push(`the host at ${(where / 1e6).toFixed(6)} s`);
  $("values").textContent = [...parts, ...host].join(" · ");
}

// What changed with an event: cwnd, ssthresh and srtt of the points around it.
function changesAt(moment) {
  const after = Math.min(lastOf(times, (moment + 0.05) / 1e6) + 1, times.length - 1);
  const before = Math.max(lastOf(times, (moment - 0.05) / 1e6), 0);
  const found = [0, 1, 6].map((n) => [n, series[n][before], series[n][after]])
    .filter(([, x, y]) => x !== null && y !== null && x !== y)
    .map(([n, x, y]) => `${data.values[n][0]} ${count(x)} to ${count(y)}`);
  return found.length ? ` (${found.join(", ")})` : "";
}

// The next mark, or the one before.
function toMark(by) {
  const moments = graph?.marks[1] ?? [], now = times[at ?? 0] * 1e6;
  const found = by > 0 ? moments.find((one) => one > now + 0.05)
    : moments.findLast((one) => one < now - 0.05);
  if (found !== undefined) step(nearest(found / 1e6) - (at ?? -1));
}

function tellConnection(index, us, parts) {
  data.values.forEach(([name, unit], n) => {
    const value = series[n][index];
    const shown = () => unit === "us" ? `${brief(value)} ms` : `${count(value)} ${unit}`;
    parts.push(`${name} ${value === null ? "–" : shown()}`);
  });
  const window = Math.floor((us - graph.span[0]) / graph.rates_ms / 1000);
  ratesShown().forEach((n) => {
    const value = graph.rates[n][Math.min(Math.max(window, 0), graph.rates[n].length - 1)];
    parts.push(`${data.rates[n]} ${value === null ? "not known" : `${brief(value)} Mbit/s`}`);
  });
  const [starts, stops, kinds, certain] = graph.limits;
  for (const n of inSpan(starts, stops, us).slice(-1))
    parts.push(`limit ${data.limits[kinds[n]]}${certain[n] ? "" : " (uncertain)"}`);
  for (const n of inSpan(data.lost[0], data.lost[1], us).slice(0, 1))
    parts.push(`NOT KNOWN: ${count(data.lost[2][n])} records missing`);
  const near = (shown[1] - shown[0]) * 1e6 / 200;
  graph.marks[1].forEach((moment, n) => {
    if (Math.abs(moment - us) > near || parts.length > 20) return;
    const [name, what] = data.marks[graph.marks[0][n]];
    parts.push(`${LETTERS[graph.marks[0][n]]}: ${name}`
      + (what ? `, ${what} ${graph.marks[2][n]}` : "")
      + ` at ${(moment / 1e6).toFixed(6)} s${changesAt(moment)}`);
  });
}

function zoom(begin, end) {
  const width = Math.min(Math.max(end - begin, 1e-6), whole[1] - whole[0]);
  begin = Math.min(Math.max(begin, whole[0]), whole[1] - width);
  shown = [begin, begin + width];
  for (const plot of plots) plot.setScale("x", { min: shown[0], max: shown[1] });
  requestAnimationFrame(placeCursor);  // the plots have the new scale then
}
const scale = (factor, centre = (shown[0] + shown[1]) / 2) =>
  zoom(centre - (centre - shown[0]) * factor, centre + (shown[1] - centre) * factor);
const pan = (part) => {
  const by = (shown[1] - shown[0]) * part;
  zoom(shown[0] + by, shown[1] + by);
};
function step(by) {
  const index = Math.min(Math.max((at ?? -1) + by, 0), times.length - 1);
  if (times[index] < shown[0] || times[index] > shown[1])
    pan((times[index] - (shown[0] + shown[1]) / 2) / (shown[1] - shown[0]));
  tellValues(index);
  requestAnimationFrame(placeCursor);
}
// The crosshair is where the values are of.
function placeCursor() {
  const isSeen = at !== null && times[at] >= shown[0] && times[at] <= shown[1];
  for (const plot of plots)
    plot.setCursor({ left: isSeen ? plot.valToPos(times[at], "x") : -10, top: 20 }, false);
}

function drawTracks(plot) {
  const { ctx, bbox } = plot, ratio = devicePixelRatio;
  const [low, high] = shown.map((time) => time * 1e6);
  const x = (us) => plot.valToPos(Math.min(Math.max(us, low), high) / 1e6, "x", true);
  ctx.save();
  ctx.textBaseline = "middle";
  ctx.font = `${10 * ratio}px sans-serif`;
  tracks.forEach((row, line) => {
    const top = plot.valToPos(tracks.length - line, "y", true) + 2 * ratio;
    const height = plot.valToPos(tracks.length - line - 1, "y", true) - top - 2 * ratio;
    const patterns = {};
    for (let n = Math.max(lastOf(row.begin, high), -1); n >= 0; n--) {
      const end = row.begin[n] + row.length[n];
      if (row.reach[n] < low) break;
      if (end < low) continue;
      const left = x(row.begin[n]), wide = Math.max(x(end) - left, ratio);
      ctx.fillStyle = patterns[row.item[n]] ??= patternOf(ctx, row.item[n] % (3 * FILLS.length));
      ctx.globalAlpha = 0.2 + row.share[n] / 255 * 0.65;
      ctx.fillRect(left, top, wide, height);
      const name = data.tracks.items[row.item[n]];
      if (wide < 30 * ratio || row.count[n] > 1 || ctx.measureText(name).width > wide - 6 * ratio)
        continue;
      ctx.globalAlpha = 1;
      ctx.lineWidth = 3 * ratio;
      ctx.strokeStyle = style("--back");
      ctx.fillStyle = style("--text");
      ctx.strokeText(name, left + 4 * ratio, top + height / 2);
      ctx.fillText(name, left + 4 * ratio, top + height / 2);
    }
    ctx.globalAlpha = 0.9;
    ctx.fillStyle = patternOf(ctx, -1);
    for (const [, [begins, ends]] of row.gaps ? [["", row.gaps]] : allGaps)
      begins.forEach((begin, n) => {
        if (ends[n] < low || begin > high) return;
        ctx.fillRect(x(begin), top, Math.max(x(ends[n]) - x(begin), 2 * ratio), height);
      });
  });
  ctx.restore();
}

const ratesShown = () => data.rates.map((_, n) => n)
  .filter((n) => graph.rates[n].some((value) => value));
function panels() {
  const found = [];
  if (graph) {
    const used = ratesShown(), width = graph.rates_ms / 1000;
    const since = graph.rates[0].map((_, n) => graph.span[0] / 1e6 + n * width);
    if (used.length) found.push({ height: 170,
      title: `Throughput and goodput [Mbit/s], means of ${timeOf(graph.rates_ms * 1000)}`,
      x: [...since, graph.span[0] / 1e6 + since.length * width],
      lines: used.map((n) => ({ label: data.rates[n], look: n, dash: n,
        values: [...graph.rates[n], graph.rates[n].at(-1)] })) });
    for (const [title, numbers, height] of PANELS) {
      const known = numbers.filter((n) => series[n].some((value) => value !== null));
      if (known.length) found.push({ title, height, x: times, lines: known.map((n) => ({
        label: data.values[n][0], values: series[n], look: n, dash: numbers.indexOf(n) })) });
    }
  }
  if (tracks.length) found.push({ isTracks: true, height: 58 + ROW * tracks.length,
    title: "The host: threads on CPUs, requests of disks, page-ins", x: whole,
    lines: [{ label: "", values: [null, null], look: 0, dash: 0 }] });
  return found;
}

function draw() {
  for (const plot of plots) plot.destroy();
  plots = [];
  const axis = { stroke: style("--soft"), grid: { stroke: style("--line"), width: 1 },
    ticks: { stroke: style("--line"), width: 1 } };
  const dense = uPlot.paths.stepped({ align: 1 });
  const size = tracks.length ? 170 : 84;
  const all = panels();
  all.forEach(({ title, height, x, lines, isTracks }, place) => {
    let left = null;
    const middles = tracks.map((_, n) => tracks.length - n - 0.5);
    const plot = new uPlot({
      title, height, padding: [null, 24, null, null], width: isPaper() ? PAPER : $("plots").clientWidth,
      scales: { x: { time: false, min: shown[0], max: shown[1] },
        y: { range: isTracks ? [0, tracks.length]
          : (_, low, high) => [0, (high || 1) * 1.22] } },
      legend: { show: !isTracks, markers: { dash: (_, n) => DASHES[lines[n - 1].dash],
        stroke: (_, n) => colour(lines[n - 1].look) } },
      axes: [{ ...axis, values: (_, splits, __, ___, step) => splits.map((one) =>
        one.toFixed(step < 1e-6 ? 9 : (String(+step.toPrecision(6)).split(".")[1] ?? "").length)),
        label: place === all.length - 1 ? "seconds" : undefined, labelSize: 18,
        size: 32 },
        isTracks ? { ...axis, size, grid: { show: false }, splits: () => middles,
          values: () => tracks.map((row) => row.name) }
          : { ...axis, size, values: (_, splits) => splits.map((one) => count(one)) }],
      series: [{ label: "time" }, ...lines.map(({ label, values, look }) => ({ label,
        spanGaps: false, stroke: colour(look), dash: LINES[look][1], width: 1.6, paths: dense,
        fill: label === "in flight" ? colour(look) + "40" : undefined,  // it hides no line
        points: { show: x === times && values.length < 400, size: 4 } }))],
      cursor: { sync: { key: "all", scales: ["x", null] }, drag: { x: true, y: false,
        setScale: false } },
      hooks: {
        drawClear: isTracks ? [drawTracks] : [drawUnder], draw: isTracks ? [] : [drawMarks],
        setCursor: [(one) => {
          if (!one.cursor.event || one.cursor.left < 0) return;
          const time = one.posToVal(one.cursor.left, "x");
          tellValues(nearest(time), time * 1e6);
        }],
        setSelect: [(one) => {
          if (one.select.width < 4) return;
          const [low, high] = [0, one.select.width].map((by) =>
            one.posToVal(one.select.left + by, "x"));
          for (const each of plots)
            each.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
          zoom(low, high);
        }],
      },
    }, [x, ...lines.map((line) => line.values)], $("plots"));
    plots.push(plot);
    const over = plot.over;
    over.addEventListener("dblclick", () => zoom(...whole));
    over.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      scale(event.deltaY > 0 ? 1.25 : 0.8,
        plot.posToVal(event.clientX - over.getBoundingClientRect().left, "x"));
    }, { passive: false });
    over.addEventListener("mousedown", (event) => {
      if (!event.shiftKey) return;
      event.stopImmediatePropagation();
      left = event.clientX;
      const move = (one) => { pan((left - one.clientX) / over.clientWidth); left = one.clientX; };
      addEventListener("mousemove", move);
      addEventListener("mouseup", () => removeEventListener("mousemove", move), { once: true });
    }, true);
  });
}

function tellLegend() {
  $("legend").replaceChildren();
  const add = (number, text) => {
    const box = make("canvas");
    [box.width, box.height] = [22, 12];
    const pen = box.getContext("2d");
    pen.fillStyle = patternOf(pen, number);
    pen.fillRect(0, 0, 22, 12);
    $("legend").append(box, text);
  };
  if (tracks.length) {
    $("legend").append("On the host most of the time:");
    data.tracks.items.slice(0, Math.min(8, data.tracks.items.length - 1))
      .forEach((name, n) => add(n, name));
    if (allGaps.length) add(-1, "not known");
  }
  if (!graph) return;
  if (tracks.length) $("legend").append(make("br"));
  $("legend").append("Limits (strip on top):");
  for (const kind of [...new Set(graph.limits[2])].sort((a, b) => a - b))
    add(kind, data.limits[kind].replace("_", " "));
  if (data.lost[0].length) add(-1, "not known: records are missing");
  const kinds = [...new Set(graph.marks[0])];
  if (kinds.length) $("legend").append(make("br"), "Marks: "
    + kinds.map((kind) => `${LETTERS[kind]} ${data.marks[kind][0]}`).join(", "));
}

function tellNotes() {
  const notes = [];
  if (graph) notes.push(...notesOfGraph());
  if (data.unplaced) notes.push(`${count(data.unplaced)} records are missing of which nobody knows`
    + " the moment: no band shows them.");
  if (data.tracks?.thinned) notes.push("Of the host's rows what is of one pixel of the whole is one"
    + " band, paler where less of it was taken.");
  if (data.tracks?.left_out) notes.push(`${count(data.tracks.left_out)} rows of the host that had`
    + " less to do are left out.");
  $("notes").textContent = notes.join(" ");
}

function notesOfGraph() {
  const notes = [];
  if (graph.points < graph.records)
    notes.push(`Thinned: ${count(graph.points)} points of ${count(graph.records)} records; each`
      + " pixel of the whole has its least and greatest value, a close zoom lacks others.");
  if (graph.limits[0].length < graph.limits_count)
    notes.push("Of each moment the longest limit: "
      + `${count(graph.limits[0].length)} of ${count(graph.limits_count)}.`);
  if (graph.marks[0].length < graph.marks_count)
    notes.push(`${count(graph.marks[0].length)} of ${count(graph.marks_count)} marks.`);
  if (data.lost[0].length < data.gaps)
    notes.push(`${count(data.gaps)} gaps, near ones drawn as one.`);
  if (data.open_end) notes.push("The capture's end is missing: what follows is not known.");
  return notes;
}

function select(id) {
  selected = id;
  graph = data.graphs[id];
  times = Array.from(unpack(graph.times, Float64Array), (us) => us / 1e6);
  series = graph.values.map((text, n) => {
    const by = data.values[n][1] === "us" ? 1000 : 1;  // shown in ms
    return Array.from(unpack(text, Int32Array), (value) => value === data.none ? null : value / by);
  });
  const [low, high] = graph.span.map((us) => us / 1e6);
  shown = whole = [low, Math.max(high, low + 1e-6)];
  const row = rows.find((one) => String(one[ID]) === id);
  const value = (name) => row?.[columns.findIndex((column) => column.name === name)] ?? "?";
  $("which").textContent = `${value("laddr")}:${value("lport")} → ${value("raddr")}:`
    + `${value("rport")} (connection ${id})`;
  tellNotes();
  $("values").textContent = "Point at a graph: all values of that moment.";
  at = null;
  draw();
  tellLegend();
  fillTable();
}

const tools = document.querySelector(".tools");
for (const [text, title, act] of [["◀", "earlier", () => pan(-0.3)],
  ["▶", "later", () => pan(0.3)],
  ["+", "zoom in", () => scale(0.5)], ["−", "zoom out", () => scale(2)],
  ["all", "the whole connection", () => zoom(...whole)]]) {
  const button = tools.appendChild(make("button", text));
  button.title = title;
  button.setAttribute("aria-label", title);
  button.onclick = act;
}
tools.append(" drag: zoom · Shift+drag: pan · Ctrl+wheel: zoom · keys in the graphs: ← → point by"
  + " point, n p next and previous mark, Shift+← → pan, + − zoom, 0 all");
$("plots").onkeydown = (event) => {
  const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (way && event.shiftKey) pan(way * 0.2);
  else if (way) step(way);
  else if (event.key === "+" || event.key === "=") scale(0.5);
  else if (event.key === "-") scale(2);
  else if (event.key === "n" || event.key === "p") toMark(event.key === "n" ? 1 : -1);
  else if (event.key === "0") zoom(...whole);
  else return;
  event.preventDefault();
};
const again = () => { draw(); tellLegend(); };
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", again);
const paper = (is) => { document.documentElement.classList.toggle("paper", is); again(); };
addEventListener("beforeprint", () => paper(true));
addEventListener("afterprint", () => paper(false));
let waiting = 0;
addEventListener("resize", () => {
  clearTimeout(waiting);
  waiting = setTimeout(() => {
    for (const plot of plots) plot.setSize({ width: $("plots").clientWidth, height: plot.height });
  }, 100);
});
for (const row of tracks) {  // the latest end so far: before it a search may stop
  let latest = 0;
  row.reach = row.begin.map((begin, n) => latest = Math.max(latest, begin + row.length[n]));
}
if (rows.length) select(rows.map((row) => String(row[ID])).find((id) => data.graphs[id]));
else {
  whole = shown = [0, Math.max(data.tracks.end / 1e6, 1e-6)];
  times = Array.from({ length: 201 }, (_, n) => whole[1] * n / 200);
  $("which").textContent = "Along time";
  $("values").textContent = "Point at a row: what was there at that moment.";
  tellNotes();
  again();
}
})();
