// Recorded requests: a file of arrivals and tokens, sent to the POST request of the page in place of its load.

const MOST = 20000;  // rows of a trace in the API
// Names of columns: those of the API, of Azure's traces and of Mooncake's.
const NAMES = {
  arrival_s: ["arrival_s", "arrival", "timestamp"],
  input_tokens: ["input_tokens", "contexttokens", "input_length", "prompt_tokens"],
  output_tokens: ["output_tokens", "generatedtokens", "output_length", "completion_tokens"],
};
// Heads of the columns and what they show of a choice of POST /plan, and of a row of either answer.
const PLANNED = { "Limits": row => row.meets ? "met" : "missed", "Sure": row => `${Math.round(100 * row.probability)}\u00a0%`, "USD/h": row => figure(row.cost.usd_per_hour) };
const FIGURES = {
  "TTFT mean, ms": row => figure(row.serving.ttft_ms?.mean), "TTFT p90, ms": row => figure(row.serving.ttft_ms?.p90), "TTFT p99, ms": row => figure(row.serving.ttft_ms?.p99),
  "TPOT mean, ms": row => figure(row.serving.tpot_ms?.mean), "TPOT p90, ms": row => figure(row.serving.tpot_ms?.p90),
  "Tokens/s per GPU": row => figure(row.serving.output_tokens_per_s_per_gpu), "USD per 1M tokens": row => figure(row.cost.cost_per_million_tokens), "Joules per token": row => figure(row.cost.energy_per_token_j),
};
const figure = value => value == null ? "-" : Number(value.toPrecision(4)).toLocaleString("en");

export function trace(field) {
  const file = field.querySelector("input"), help = field.querySelector(".help"), place = field.querySelector(".answer");
  file.addEventListener("change", async () => {
    const [chosen] = file.files;
    if (!chosen) return;
    place.replaceChildren();
    help.textContent = `Reading ${chosen.name}…`;
    try {
      const { columns, left } = columnsOf(await chosen.text());
      help.textContent = "Predicting…";
      const body = JSON.parse(field.dataset.body);
      body.workload.load = { trace: columns };
      delete body.workload.input_tokens;
      delete body.workload.output_tokens;
      const answer = await fetch(field.dataset.path, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
      const found = await answer.json();
      if (!answer.ok) throw new Error(found.detail);
      const names = JSON.parse(field.dataset.names), name = row => names[row.gpu] ?? row.gpu;
      place.replaceChildren(...(found.choices ? [sentence(found, name)] : []), tableOf(found.choices ?? found.ranking, name, found.choices ? { ...PLANNED, ...FIGURES } : FIGURES));
      help.textContent = `${chosen.name}: ${columns.arrival_s.length.toLocaleString("en")} requests${left ? `; ${left.toLocaleString("en")} more are left out` : ""}.`;
      field.classList.remove("wrong");
    } catch (error) {
      field.classList.add("wrong");
      help.textContent = `${chosen.name}: ${error.message}`;
    }
    file.value = "";  // the same file, mended, is a change again
  });
}

function columnsOf(text) {
  const rows = rowsOf(text.trim());
  if (!rows.length) throw new Error("it has no rows");
  const given = Object.keys(rows[0]);
  const used = Object.fromEntries(Object.entries(NAMES).map(([name, names]) => {
    const found = names.map(one => given.find(key => key.toLowerCase() === one)).find(Boolean);
    if (!found) throw new Error(`no column ${name}; it has ${given.slice(0, 8).join(", ")}`);
    return [name, found];
  }));
  const kept = rows.slice(0, MOST), milliseconds = used.arrival_s.toLowerCase() === "timestamp";
  const arrival_s = kept.map(row => secondsOf(row[used.arrival_s], milliseconds)), first = Math.min(...arrival_s);
  if (Number.isNaN(first)) throw new Error(`${used.arrival_s} has a value that is neither a number nor a date`);
  return {
    columns: {
      arrival_s: arrival_s.map(one => one - first),
      input_tokens: kept.map(row => Number(row[used.input_tokens])),
      output_tokens: kept.map(row => Math.max(Number(row[used.output_tokens]), 1)),
    },
    left: rows.length - kept.length,
  };
}

// JSON (a list of objects), a line of JSON for each, or CSV with a head.
function rowsOf(text) {
  if (text.startsWith("[")) return JSON.parse(text);
  const lines = text.split(/\r?\n/);
  if (text.startsWith("{")) return lines.map(line => JSON.parse(line));
  const [head, ...rest] = lines.map(line => line.split(/[,;\t]/).map(cell => cell.trim().replace(/^"|"$/g, "")));
  return rest.map(cells => Object.fromEntries(head.map((name, k) => [name, cells[k]])));
}

function secondsOf(value, milliseconds) {
  const date = /^(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d)(\.\d+)?/.exec(value);
  if (date) return Date.parse(`${date[1]}T${date[2]}Z`) / 1e3 + Number(date[3] ?? 0);
  return Number(value) / (milliseconds ? 1e3 : 1);
}

// What to rent, as the page says of its own load.
function sentence({ best, rate_per_s, choices: [first] }, name) {
  const line = document.createElement("p"), cost = first.cost.usd_per_hour, rented = `${first.devices}\u00a0${name(first)}`;
  line.className = "lead";
  line.textContent = best
    ? `Rent ${rented}${cost == null ? "" : `: ${cost.toFixed(2)} USD an hour`}; bears the recorded ${figure(rate_per_s)} requests per second within the limits with ${Math.round(100 * first.probability)}\u00a0%`
    : `None of these keeps the limits; ${rented} comes closest: ${first.missing.join("; ")}`;
  return line;
}

function tableOf(rows, name, figures) {
  const scroll = document.createElement("div"), table = document.createElement("table");
  scroll.className = "scroll";
  scroll.tabIndex = 0;
  scroll.setAttribute("role", "region");
  scroll.setAttribute("aria-label", "Figures of the recorded requests, scrolls sideways");
  table.id = "recorded";
  const line = (parent, kind, cells) => {
    const row = parent.insertRow();
    cells.forEach((text, k) => {
      const cell = document.createElement(k && kind === "td" ? "td" : "th");
      cell.scope = kind === "td" ? "row" : "col";
      if (k) cell.className = "n";
      cell.textContent = text;
      row.append(cell);
    });
  };
  table.createCaption().textContent = "Each GPU type under the recorded requests";
  line(table.createTHead(), "th", ["GPUs", ...Object.keys(figures)]);
  const body = table.createTBody();
  for (const row of rows) line(body, "td", [`${name(row)} × ${row.devices}`, ...Object.values(figures).map(shown => shown(row))]);
  scroll.append(table);
  for (const row of rows.filter(row => row.warnings.length)) {
    const note = scroll.appendChild(document.createElement("p"));
    note.className = "notes";
    note.textContent = `${name(row)}: ${row.warnings.join("; ")}`;
  }
  return scroll;
}
