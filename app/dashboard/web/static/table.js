// A table is the only source of its chart, of the CSV and of what a screen reader says: exact values stand in <data>.

export const valueOf = cell => {
  const data = cell.querySelector("data");
  return data ? Number(data.value) : cell.classList.contains("none") ? null : cell.dataset.text ?? cell.textContent.trim();
};

// Rows that a table shows, without the heads of groups and the switches that unfold them.
const rowsIn = table => [...table.tBodies].flatMap(body => [...body.rows])
  .filter(row => row.cells.length === table.tHead.rows[0].cells.length);

// Rows as objects by the data-role of their columns; `muted` rows stand back in charts.
export function rowsOf(table) {
  const roles = [...table.tHead.rows[0].cells].map(cell => cell.dataset.role);
  return rowsIn(table).filter(row => getComputedStyle(row).display !== "none").map(row => {
    const found = { muted: row.classList.contains("muted") };
    roles.forEach((role, k) => {
      if (!role) return;
      found[role] = valueOf(row.cells[k]);
      const ends = row.cells[k].querySelector("data[data-low]")?.dataset;
      if (ends) Object.assign(found, { low: Number(ends.low), high: Number(ends.high) });
    });
    return found;
  });
}

export const headOf = (table, role) =>
  table.tHead.querySelector(`[data-role="${role}"]`)?.textContent.trim() ?? "";

export function csvOf(table) {
  const quoted = value => /[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value;
  // Spreadsheets run what starts as a formula; names of ours never need to.
  const safe = value => typeof value === "string" ? quoted(value.replace(/\s+/g, " ").replace(/^[=+@]/, "'$&")) : String(value ?? "");
  const head = [...table.tHead.rows[0].cells].map(cell => safe(cell.textContent.trim()));
  const body = rowsIn(table).map(row => [...row.cells].map(cell => safe(valueOf(cell))));
  return [head, ...body].map(line => line.join(",")).join("\n") + "\n";
}

export function sortable(table) {
  for (const [column, head] of [...table.tHead.rows[0].cells].entries()) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => sort(table, column, head));
  }
}

function sort(table, column, head) {
  const down = head.getAttribute("aria-sort") === "ascending";
  for (const other of table.tHead.rows[0].cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", down ? "descending" : "ascending");
  const compare = (a, b) => a === null ? 1 : b === null ? -1 :
    typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
  const rows = rowsIn(table).sort((a, b) => {
    const order = compare(valueOf(a.cells[column]), valueOf(b.cells[column]));
    return down ? -order : order;
  });
  if (table.tBodies.length > 1) regroup(table, rows, column === 0 && !down);
  else table.tBodies[0].append(...rows);
}

// A grouped table sorted by another column than its first one is one list, with nothing folded.
function regroup(table, rows, grouped) {
  table.classList.toggle("flat", !grouped);
  for (const row of rows) row.home ??= row.parentElement;
  const all = table.querySelector("tbody.tier");
  for (const row of rows) {
    const body = grouped ? row.home : all;
    body.insertBefore(row, body.querySelector(".fold"));
  }
}
