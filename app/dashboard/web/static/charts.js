// Every chart is drawn by Chart.js from the table beside it.
import { csvOf, headOf, rowsOf } from "./table.js";

const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const colours = () => [1, 2, 3, 4, 5, 6, 7].map(k => style(`--c${k}`));
const three = value => value === 0 ? "0" : value >= 1e-3 && value < 1e5 ? value.toLocaleString("en", { maximumSignificantDigits: value < 1000 ? 3 : 5 }) : prefixed(value);

function prefixed(value) {
  const found = [[1e18, "E"], [1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]].find(([size]) => value >= size);
  return found ? `${Number((value / found[0]).toPrecision(3))} ${found[1]}` : String(Number(value.toPrecision(3)));
}

const shown = (value, unit) => unit === "B" ? binary(value) : `${three(value)}${unit ? " " + unit : ""}`;
function binary(value) {
  const found = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([size]) => value >= size);
  return found ? `${Number((value / found[0]).toPrecision(3))} ${found[1]}` : `${value} B`;
}

// Thin lines from low to high over each middle value, and the figure after the bar.
const whiskers = {
  id: "whiskers",
  afterDatasetsDraw(chart) {
    const { ctx, scales: { x } } = chart, { rows, unit } = chart.options.plugins.whiskers;
    if (!rows) return;
    ctx.save();
    ctx.font = `12px ${Chart.defaults.font.family}`;
    rows.forEach((row, k) => {
      const bar = chart.getDatasetMeta(0).data[k], y = bar.y;
      let end = x.getPixelForValue(row.value);
      if (row.low != null && row.high != null) {
        const [from, to] = [x.getPixelForValue(row.low), x.getPixelForValue(row.high)];
        ctx.strokeStyle = style("--ink");
        ctx.lineWidth = 1.4;
        line(ctx, [[from, y], [to, y]]);
        line(ctx, [[from, y - 4], [from, y + 4]]);
        line(ctx, [[to, y - 4], [to, y + 4]]);
        end = to;
      }
      ctx.fillStyle = style(row.muted ? "--soft" : "--ink");
      ctx.textBaseline = "middle";
      ctx.fillText(shown(row.value > 1e-9 * x.max ? row.value : 0, unit), end + 7, y);  // no rests of sums
    });
    ctx.restore();
  },
};

function line(ctx, points) {
  ctx.beginPath();
  points.forEach(([x, y], k) => k ? ctx.lineTo(x, y) : ctx.moveTo(x, y));
  ctx.stroke();
}

const axis = (text, more = {}) => ({
  title: { display: Boolean(text), text, color: style("--soft") },
  grid: { color: style("--line") },
  border: { display: false },
  ticks: { color: style("--soft"), callback: value => three(Number(value)) },
  ...more,
});
// A line and a label per power of ten, and at 2 and 5 where few powers are in sight.
function round(value, { min, max }) {
  const digit = value / 10 ** Math.floor(Math.log10(value) + 1e-9), wanted = max / min < 160 ? [1, 2, 5] : [1];
  return wanted.some(one => Math.abs(digit - one) < 1e-6);
}
const logarithmic = (text, more = {}) => axis(`${text} (log scale)`, {
  type: "logarithmic",
  grid: { color: ({ tick, chart, scale }) => tick && chart && round(tick.value, scale) ? style("--line") : "transparent" },
  ticks: { color: style("--soft"), maxRotation: 0, autoSkip: false, callback(value) { return round(value, this) ? prefixed(value) : ""; } },
  ...more,
});

// Lines of whole words, for names beside the bars of a narrow chart.
const wrapped = text => text.split(" ").reduce((lines, word) => {
  const longer = `${lines.at(-1) ?? ""} ${word}`.trim();
  return lines.length && longer.length <= 16 ? [...lines.slice(0, -1), longer] : [...lines, word];
}, []);

function bars(figure, table) {
  const rows = rowsOf(table).filter(row => typeof row.value === "number");
  const head = table.tHead.querySelector('[data-role="value"]'), unit = head.dataset.unit ?? "";
  const log = figure.dataset.scale === "log";
  const most = Math.max(...rows.map(row => row.high ?? row.value));
  const narrow = figure.clientWidth < 480;
  figure.querySelector(".plot").style.height = `${rows.length * (narrow ? 40 : 30) + 62}px`;
  const scale = log ? logarithmic(headOf(table, "value")) : axis(headOf(table, "value"), { min: 0, suggestedMax: most * 1.15 });
  Object.assign(scale.ticks, { maxRotation: 0 });
  if (unit === "B" && !log) Object.assign(scale.ticks, { callback: binary, stepSize: 2 ** Math.ceil(Math.log2(most / 6)) });
  return {
    type: "bar",
    data: {
      labels: rows.map(row => narrow ? wrapped(row.label) : row.label),
      datasets: [{
        data: rows.map(row => row.value),
        backgroundColor: rows.map(row => style(row.muted ? "--line" : "--c1") + (row.muted ? "" : "99")),
        borderColor: rows.map(row => style(row.muted ? "--soft" : "--c1")),
        borderWidth: { right: 2 },
        barThickness: 16,
      }],
    },
    plugins: [whiskers],
    options: {
      indexAxis: "y",
      layout: { padding: { right: 74 } },
      scales: { x: scale, y: axis("", { grid: { display: false }, ticks: { color: style("--ink"), autoSkip: false } }) },
      plugins: {
        whiskers: { rows, unit },
        legend: { display: false },
        tooltip: { callbacks: { label: item => {
          const row = rows[item.dataIndex];
          return shown(row.value, unit) + (row.low == null ? "" : `, ${shown(row.low, unit)} to ${shown(row.high, unit)}`);
        } } },
      },
    },
  };
}

function series(rows) {
  const found = new Map();
  for (const row of rows) found.set(row.group, [...(found.get(row.group) ?? []), row]);
  return [...found];
}

// What each curve would be if every device added as much as the first ones.
const ideal = ([, rows]) => {
  const [first] = rows;
  return {
    label: "ideal", showLine: true, pointRadius: 0, borderColor: style("--soft"), borderWidth: 1, borderDash: [4, 4],
    data: rows.map(row => ({ x: row.x, y: first.y * row.x / first.x })),
  };
};

function lines(figure, table) {
  const rows = rowsOf(table), all = series(rows), asked = [...new Set(rows.map(row => row.x))].sort((a, b) => a - b);
  const x = logarithmic(headOf(table, "x"), {
    afterBuildTicks: scale => { scale.ticks = asked.map(value => ({ value })); },
    grid: { color: style("--line") }, ticks: { color: style("--soft"), maxRotation: 0, callback: three },
  });
  return {
    type: "scatter",
    data: {
      datasets: [...all.map(([label, rows], k) => ({
        label, data: rows, showLine: true, borderColor: colours()[k % 7], backgroundColor: colours()[k % 7],
        pointRadius: rows.map(row => row.muted ? 5 : 4), pointStyle: rows.map(row => row.muted ? "crossRot" : "circle"), borderWidth: 2,
        borderDash: k >= 7 ? [6, 4] : [],
      })), ...("ideal" in figure.dataset ? all.map(ideal) : [])],
    },
    plugins: [verticals],
    options: {
      layout: { padding: { right: 16 } },
      scales: { x, y: logarithmic(headOf(table, "y"), ends(rows)) },
      plugins: { legend: legend((item, { datasets }) => datasets.findIndex(one => one.label === item.text) === item.datasetIndex), tooltip: { callbacks: { label: ({ raw, dataset }) =>
        `${dataset.label}: ${three(raw.y)} at ${three(raw.x)}${raw.low == null ? "" : `, ${three(raw.low)} to ${three(raw.high)}`}` } } },
    },
  };
}

const ends = rows => ({ min: Math.min(...rows.map(row => row.low ?? row.y)) / 1.15, max: Math.max(...rows.map(row => row.high ?? row.y)) * 1.15 });

// Intervals of points, upright.
const verticals = {
  id: "verticals",
  beforeDatasetsDraw({ ctx, data, scales: { x, y } }) {
    ctx.save();
    for (const dataset of data.datasets) {
      ctx.strokeStyle = dataset.borderColor;
      ctx.globalAlpha = 0.55;
      for (const row of dataset.data) {
        if (row.low == null) continue;
        line(ctx, [[x.getPixelForValue(row.x), y.getPixelForValue(row.low)], [x.getPixelForValue(row.x), y.getPixelForValue(row.high)]]);
      }
    }
    ctx.restore();
  },
};

function roofline(figure, table) {
  const rows = rowsOf(table).filter(row => row.x > 0 && row.y > 0), most = Math.max(...rows.map(row => row.size));
  const roofs = rowsOf(document.getElementById(figure.dataset.roofs));
  const names = [...document.getElementById(figure.dataset.roofs).tBodies[0].rows].map(row => row.cells[0].textContent);
  const [least, last] = [Math.min(...rows.map(row => row.x)) / 3, Math.max(...rows.map(row => row.x), ...roofs.map(roof => roof.flops / roof.bytes)) * 5];
  const [lowest, highest] = [Math.min(...rows.map(row => row.y)), Math.max(...rows.map(row => row.y), ...roofs.map(one => one.flops))];
  const roof = ({ flops, bytes }, k) => ({
    label: `sustained, ${names[k]}`, showLine: true, pointRadius: 0, borderColor: style("--soft"), backgroundColor: "transparent",
    borderDash: k ? [6, 4] : [], borderWidth: 2,
    data: [{ x: least, y: least * bytes }, { x: flops / bytes, y: flops }, { x: last, y: flops }],
  });
  const dots = series(rows).map(([label, found], k) => ({
    label, data: found, backgroundColor: colours()[k % 7] + "b0", borderColor: colours()[k % 7],
    pointRadius: found.map(row => 4 + 14 * Math.sqrt(row.size / most)),
  }));
  return {
    type: "scatter",
    data: { datasets: [...dots, ...roofs.map(roof)] },
    options: {
      scales: { x: logarithmic("FLOP per byte", { min: least, max: last }), y: logarithmic("FLOP per second", { min: lowest / 3, max: highest * 3 }) },
      plugins: { legend: legend(), tooltip: { callbacks: { label: ({ raw, dataset }) => raw.size
        ? `${raw.label} (${dataset.label}): ${three(raw.size)} ms, ${prefixed(raw.y)}FLOP/s at ${three(raw.x)} FLOP/B` : dataset.label } } },
    },
  };
}

const legend = (filter = () => true) => ({ position: "bottom", labels: { color: style("--ink"), usePointStyle: true, boxHeight: 7, filter } });
const KINDS = { bars, intervals: bars, lines, roofline };

export function draw(figure) {
  const canvas = figure.querySelector("canvas"), table = document.getElementById(figure.dataset.table);
  Chart.getChart(canvas)?.destroy();
  const made = KINDS[figure.dataset.chart](figure, table);
  Object.assign(made.options, { animation: false, responsive: true, maintainAspectRatio: false });
  new Chart(canvas, made);
}

export function tools(figure) {
  const table = document.getElementById(figure.dataset.csv ?? figure.dataset.table), name = figure.dataset.file;
  figure.querySelector("[data-csv]").addEventListener("click", () =>
    save(new Blob([csvOf(table)], { type: "text/csv" }), `${name}.csv`));
  figure.querySelector("[data-png]")?.addEventListener("click", () =>
    onPaper(figure.querySelector("canvas")).toBlob(blob => save(blob, `${name}.png`)));
  figure.querySelector("[data-log]")?.addEventListener("click", event => {
    const log = figure.dataset.scale !== "log";
    figure.dataset.scale = log ? "log" : "linear";
    event.target.setAttribute("aria-pressed", String(log));
    draw(figure);
  });
}

// The picture with the page's background: a dark chart would not be read on nothing.
function onPaper(canvas) {
  const copy = document.createElement("canvas");
  [copy.width, copy.height] = [canvas.width, canvas.height];
  const ctx = copy.getContext("2d");
  ctx.fillStyle = style("--panel");
  ctx.fillRect(0, 0, copy.width, copy.height);
  ctx.drawImage(canvas, 0, 0);
  return copy;
}

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}
