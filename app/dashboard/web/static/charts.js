// Charts by Chart.js, each from the table beside it; measured points come from a table of their own.
import { csvOf, headOf, rowsOf } from "./table.js";

const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colour = k => style(`--c${k % 7 + 1}`);
const rounded = value => value === 0 ? "0" : value >= 1e-3 && value < 1e5 ? value.toLocaleString("en", { maximumSignificantDigits: value < 1000 ? 3 : 5 }) : prefixed(value);
const UNITS = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
const BYTES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [0, "B"]];

function prefixed(value, units = UNITS) {
  const found = units.find(([size]) => value >= size);
  return found ? `${Number((value / (found[0] || 1)).toPrecision(3))} ${found[1]}` : String(Number(value.toPrecision(3)));
}

const shown = (value, unit) => unit === "B" ? prefixed(value, BYTES) : `${rounded(value)}${unit ? " " + unit : ""}`;
const ends = (low, high, unit) => low == null ? "" : ` (${shown(low, unit)} to ${shown(high, unit)})`;

// A line and a label per power of ten, and at 2 and 5 where few powers are in sight.
function round(value, { min, max }) {
  const digit = value / 10 ** Math.floor(Math.log10(value) + 1e-9), wanted = max / min < 160 ? [1, 2, 5] : [1];
  return wanted.some(one => Math.abs(digit - one) < 1e-6);
}

const axis = (text, log, more = {}) => ({
  type: log ? "logarithmic" : "linear",
  title: { display: Boolean(text), text: log ? `${text} (log scale)` : text, color: style("--soft") },
  grid: { color: log ? ({ tick, scale }) => tick && round(tick.value, scale) ? style("--line") : "transparent" : style("--line") },
  border: { display: false },
  ticks: { color: style("--soft"), maxRotation: 0, includeBounds: false, autoSkip: !log, callback(value) { return !log ? (this.max < 1e5 ? rounded : prefixed)(value) : round(value, this) ? prefixed(value) : ""; } },
  ...more,
});

// The scale of a chart: as its button says, else as the template, else logarithmic where values are far apart.
const isLog = (figure, values) => figure.dataset.scale ? figure.dataset.scale === "log" : Math.max(...values) > 12 * Math.min(...values);

// Figures after the bars of a chart.
const figures = {
  id: "figures",
  afterDatasetsDraw({ ctx, data, scales: { x, y }, options }) {
    ctx.save();
    ctx.textBaseline = "middle";
    ctx.font = `12px ${Chart.defaults.font.family}`;
    data.rows?.forEach((row, k) => {
      ctx.fillStyle = style(row.muted ? "--soft" : "--ink");
      ctx.fillText(shown(row.value > 1e-9 * x.max ? row.value : 0, options.unit), x.getPixelForValue(row.high ?? row.value) + 7, y.getPixelForValue(k));  // no rests of sums
    });
    ctx.restore();
  },
};

// Lines of whole words, for names beside the bars of a narrow chart.
const wrapped = text => text.split(" ").reduce((lines, word) => {
  const longer = `${lines.at(-1) ?? ""} ${word}`.trim();
  return lines.length && longer.length <= 16 ? [...lines.slice(0, -1), longer] : [...lines, word];
}, []);

function bars(figure, table) {
  const rows = rowsOf(table).filter(row => typeof row.value === "number"), most = Math.max(...rows.map(row => row.high ?? row.value));
  const head = table.tHead.querySelector('[data-role="value"]'), unit = head.dataset.unit ?? "", log = figure.dataset.scale === "log";
  const narrow = figure.clientWidth < 480;
  figure.querySelector(".plot").style.height = `${rows.length * (narrow ? 40 : 30) + 62}px`;
  const scale = axis(headOf(table, "value"), log, log ? {} : { min: 0, suggestedMax: most * 1.15 });
  if (unit === "B" && !log) Object.assign(scale.ticks, { callback: value => shown(value, unit), stepSize: 2 ** Math.ceil(Math.log2(most / 6)) });
  return {
    type: "bar",
    data: {
      rows,
      labels: rows.map(row => narrow ? wrapped(row.label) : row.label),
      datasets: [
        { data: rows.map(row => row.low == null ? null : [row.low, row.high]), backgroundColor: style("--ink"), barThickness: 2, grouped: false },
        { data: rows.map(row => row.value), backgroundColor: rows.map(row => row.muted ? style("--line") : style("--c1") + "99"), barThickness: 16, grouped: false },
      ],
    },
    plugins: [figures],
    options: {
      unit, indexAxis: "y", layout: { padding: { right: 74 } },
      scales: { x: scale, y: { grid: { display: false }, border: { display: false }, ticks: { color: style("--ink"), autoSkip: false } } },
      plugins: { tooltip: { callbacks: { label: ({ dataIndex: k }) => shown(rows[k].value, unit) + ends(rows[k].low, rows[k].high, unit) } } },
    },
  };
}

const line = (series, data, more) => ({ series, label: series, data, showLine: true, pointRadius: 0, pointHitRadius: 0, borderWidth: 2, ...more });
const dashed = (series, data, more) => line(series, data, { borderColor: style("--soft"), borderWidth: 1.5, borderDash: [6, 4], ...more });

// The area of a line's intervals, there and back.
const area = (rows, more) => ({
  ...line("", [...rows.map(row => ({ x: row.xlow ?? row.x, y: row.low })), ...rows.toReversed().map(row => ({ x: row.xhigh ?? row.x, y: row.high }))]),
  borderWidth: 0, fill: "shape", ...more,
});

// Lines, bands and points of each group; `marks` are rings, `limits` lines across, of [axis, value, text].
function lines(figure, table) {
  const rows = rowsOf(table).filter(row => row.x > 0 && row.y > 0), measured = figure.dataset.measured ? rowsOf(document.getElementById(figure.dataset.measured)) : [];
  const [marks, limits] = ["marks", "limits"].map(name => JSON.parse(figure.dataset[name] ?? "[]"));
  const groups = Object.entries(Object.groupBy(rows, row => row.group)), names = groups.map(([name]) => name);
  const log = Object.fromEntries(["x", "y"].map(way => [way, isLog(figure, rows.map(row => row[way]))]));
  const scales = Object.fromEntries([["x", "xlow", "xhigh"], ["y", "low", "high"]].map(([way, low, high]) =>
    [way, axis(headOf(table, way), log[way], bounds(log[way], [...rows, ...measured, ...marks].map(row => row[way]), rows.flatMap(row => [row[low] ?? row[way], row[high] ?? row[way]]), limits.filter(one => one[0] === way).map(one => one[1])))]));
  const datasets = [
    ...measured.length ? groups.map(([name], k) => ({
      series: name, label: `${name}, measured`, data: measured.filter(row => row.group === name), pointStyle: "rectRot", pointRadius: 7, borderWidth: 2.5, borderColor: colour(k), backgroundColor: style("--panel"),
    })).filter(one => one.data.length) : [],
    ...marks.map(mark => line(mark.group, [mark], { label: mark.text, pointRadius: 8, pointHitRadius: 8, borderColor: colour(names.indexOf(mark.group)), backgroundColor: "transparent" })),
    ...groups.map(([name, data], k) => line(name, data, {
      borderColor: colour(k), backgroundColor: colour(k), borderDash: k >= 7 ? [6, 4] : [], pointHitRadius: 6,
      pointRadius: data.map(row => row.muted ? 5 : 3), pointStyle: data.map(row => row.muted ? "crossRot" : "circle"),
    })),
    ...limits.map(([way, value, text]) => line(text, ["min", "max"].map(end => way === "x" ? { x: value, y: scales.y[end] } : { x: scales.x[end], y: value }), { borderColor: style("--bad"), borderDash: [6, 4], limit: true })),
    ..."ideal" in figure.dataset ? groups.map(([, data]) => dashed("ideal", data.map(row => ({ x: row.x, y: data[0].y * row.x / data[0].x })))) : [],
    ..."pareto" in figure.dataset ? [line("Pareto-optimal", rows.filter(row => (row.best ?? "yes") === "yes").sort((a, b) => a.x - b.x), { borderColor: style("--ink") + "40", borderWidth: 9 })] : [],
    ...groups.map(([name, data], k) => area(data.filter(row => row.low != null), { series: name, backgroundColor: colour(k) + "28" })),
  ];
  const label = ({ raw, dataset }) => `${dataset.label}${raw.at ? `, ${raw.at} ${headOf(table, "at").toLowerCase()}` : ""}: ${rounded(raw.y)}${ends(raw.low, raw.high)} at ${rounded(raw.x)}${ends(raw.xlow, raw.xhigh)}`;
  return { type: "scatter", data: { datasets }, options: { scales, plugins: { tooltip: { callbacks: { label } } } } };
}

// An axis holds what is drawn; of wide intervals and far limits only what is near that.
function bounds(log, values, intervals, limits) {
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const held = [...values, ...intervals.map(value => Math.min(Math.max(value, least / 1.3), most * 1.3)), ...limits.filter(value => value < 3 * most && value > least / 3)];
  return log ? { min: Math.min(...held) / 1.1, max: Math.max(...held) * 1.1 } : { min: 0, max: Math.max(...held) * 1.04 };
}

function roofline(figure, table) {
  const rows = rowsOf(table).filter(row => row.x > 0 && row.y > 0), most = Math.max(...rows.map(row => row.size));
  const roofs = rowsOf(document.getElementById(figure.dataset.roofs));
  const [least, last] = [Math.min(...rows.map(row => row.x)) / 3, Math.max(...rows.map(row => row.x), ...roofs.map(roof => roof.flops / roof.bytes)) * 5];
  const [lowest, highest] = [Math.min(...rows.map(row => row.y)), Math.max(...rows.map(row => row.y), ...roofs.map(one => one.flops))];
  const datasets = [
    ...Object.entries(Object.groupBy(rows, row => row.group)).map(([label, data], k) => ({
      series: label, label, data, backgroundColor: colour(k) + "b0", borderColor: colour(k), pointRadius: data.map(row => 4 + 14 * Math.sqrt(row.size / most)),
    })),
    ...roofs.map(({ label, flops, bytes }) => dashed(`sustained, ${label}`, [{ x: least, y: least * bytes }, { x: flops / bytes, y: flops }, { x: last, y: flops }])),
  ];
  const label = ({ raw, dataset }) => raw.size ? `${raw.label} (${dataset.label}): ${rounded(raw.size)} ms, ${prefixed(raw.y)}FLOP/s at ${rounded(raw.x)} FLOP/B` : dataset.label;
  const scales = { x: axis("FLOP per byte", true, { min: least, max: last }), y: axis("FLOP per second", true, { min: lowest / 3, max: highest * 3 }) };
  return { type: "scatter", data: { datasets }, options: { scales, plugins: { tooltip: { callbacks: { label } } } } };
}

const KINDS = { bars, intervals: bars, lines, roofline };
const canvasOf = figure => figure.querySelector("canvas");

function configured(figure) {
  const made = KINDS[figure.dataset.chart](figure, document.getElementById(figure.dataset.table)), original = { min: "original", max: "original" };
  const ways = figure.dataset.chart in { bars, intervals: bars } ? "x" : "xy";
  Object.assign(made.options, { animation: false, responsive: true, maintainAspectRatio: false });
  Object.assign(made.options.plugins, {
    legend: { display: false },
    zoom: { limits: { x: original, y: original }, zoom: { mode: ways, drag: { enabled: true, backgroundColor: style("--wash") }, wheel: { enabled: true, modifierKey: "ctrl" } } },
  });
  return made;
}

export function draw(figure) {
  if (!figure.checkVisibility()) return;  // drawn when it is unfolded
  Chart.getChart(canvasOf(figure))?.destroy();
  const chart = new Chart(canvasOf(figure), configured(figure)), { datasets } = chart.data;
  const names = [...new Set(datasets.map(one => one.series).filter(Boolean))];
  // The legend is of buttons: each hides all of its series.
  figure.querySelector(".legend").replaceChildren(...names.length > 1 ? names.map(name => {
    const button = document.createElement("button"), swatch = document.createElement("span");
    Object.assign(button, { type: "button", className: "quiet", textContent: name });
    swatch.style.background = datasets.findLast(one => one.series === name && one.borderColor)?.borderColor;
    button.prepend(swatch);
    button.setAttribute("aria-pressed", "true");
    button.addEventListener("click", () => {
      const on = button.getAttribute("aria-pressed") !== "true";
      button.setAttribute("aria-pressed", String(on));
      datasets.forEach((one, k) => { if (one.series === name) chart.setDatasetVisibility(k, on); });
      chart.update();
    });
    return button;
  }) : []);
}

// The chart as it is seen, with a legend and the page's background, on another canvas: one of SVG, or of twice the pixels.
function copied(figure, canvas, pixels) {
  const chart = Chart.getChart(canvasOf(figure)), made = configured(figure), { width, height } = chart;
  Object.assign(canvas, { width, height });
  made.data.datasets.forEach((one, k) => Object.assign(one, { hidden: !chart.isDatasetVisible(k), segment: {} }));  // lines by segments: SVG takes no Path2D
  for (const [way, { min, max }] of Object.entries(chart.scales)) if (way === "x" || made.type === "scatter") Object.assign(made.options.scales[way], { min, max });
  Object.assign(made.options, { responsive: false, devicePixelRatio: pixels, events: [] });
  made.options.plugins.zoom = false;
  made.options.plugins.legend = { display: made.type === "scatter", position: "bottom", labels: { color: style("--ink"), usePointStyle: true, filter: (item, { datasets }) => datasets.findLastIndex(one => one.series === item.text && !one.fill) === item.datasetIndex } };
  made.plugins = [...made.plugins ?? [], { id: "paper", beforeDraw: ({ ctx }) => { ctx.fillStyle = style("--panel"); ctx.fillRect(0, 0, width, height); } }];
  made.platform = Chart.platforms.BasicPlatform;
  return new Chart(canvas, made);
}

const DOWNLOADS = {
  csv: figure => new Blob([csvOf(document.getElementById(figure.dataset.csv ?? figure.dataset.table))], { type: "text/csv" }),
  png: figure => new Promise(done => { const canvas = document.createElement("canvas"); copied(figure, canvas, 2); canvas.toBlob(done); }),
  svg: async figure => {
    const { Element } = await import("./svgcanvas.js"), canvas = new Element({});
    canvas.ctx.canvas = canvas;
    copied(figure, canvas, 1);
    return new Blob([canvas.ctx.getSerializedSvg()], { type: "image/svg+xml" });
  },
};

export function tools(figure) {
  const on = (name, act) => figure.querySelector(`[data-do=${name}]`)?.addEventListener("click", act);
  for (const [kind, make] of Object.entries(DOWNLOADS)) on(kind, async () => save(await make(figure), `${figure.dataset.file}.${kind}`));
  on("in", () => Chart.getChart(canvasOf(figure)).zoom(1.4));
  on("out", () => Chart.getChart(canvasOf(figure)).zoom(0.7));
  on("log", ({ target }) => {
    const log = !Object.values(Chart.getChart(canvasOf(figure)).scales).some(scale => scale.type === "logarithmic");
    figure.dataset.scale = log ? "log" : "linear";
    target.setAttribute("aria-pressed", String(log));
    draw(figure);
  });
  canvasOf(figure).addEventListener("keydown", event => {
    const step = { ArrowLeft: { x: 60 }, ArrowRight: { x: -60 }, ArrowUp: { y: 60 }, ArrowDown: { y: -60 } }[event.key], chart = Chart.getChart(event.target);
    if (!step || !chart.isZoomedOrPanned()) return;
    event.preventDefault();
    chart.pan(step);
  });
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
