// A table is the only source of its chart, of the CSV and of what a screen reader says: exact values stand in <data>.

export const valueOf = cell => {
  const data = cell.querySelector("data");
  return data ? Number(data.value) : cell.classList.contains("none") ? null : cell.textContent.trim();
};

// Rows as objects by the data-role of their columns; `muted` rows stand back in charts.
export function rowsOf(table) {
  const roles = [...table.tHead.rows[0].cells].map(cell => cell.dataset.role);
  return [...table.tBodies[0].rows].filter(row => !row.hidden).map(row => {
    const found = { muted: row.classList.contains("muted") };
    roles.forEach((role, k) => { if (role && row.cells[k]) found[role] = valueOf(row.cells[k]); });
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
  const body = [...table.tBodies[0].rows].map(row => [...row.cells].map(cell => safe(valueOf(cell))));
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
  const rows = [...table.tBodies[0].rows].sort((a, b) => {
    const order = compare(valueOf(a.cells[column]), valueOf(b.cells[column]));
    return down ? -order : order;
  });
  table.tBodies[0].append(...rows);
}
