// What makes a page more than its text: charts, sorting, search, copying. Without any of it every page still reads.
import { draw, tools } from "./charts.js";
import { form } from "./form.js";
import { share } from "./share.js";
import { sortable } from "./table.js";
import { trace } from "./trace.js";

const figures = [...document.querySelectorAll("figure[data-chart]")];
const redraw = () => figures.forEach(draw);
Chart.defaults.font.family = getComputedStyle(document.body).fontFamily;
redraw();
document.querySelectorAll("figure.chart").forEach(tools);
document.querySelectorAll("form.ask").forEach(form);
document.querySelectorAll("table[data-sortable]").forEach(sortable);
document.querySelectorAll("[data-share]").forEach(share);
document.querySelectorAll("#recorded-requests").forEach(trace);
document.querySelectorAll("[data-unfold]").forEach(box => box.addEventListener("change", redraw));
document.querySelectorAll("details:has(figure)").forEach(fold => fold.addEventListener("toggle", redraw));
document.querySelector("#errors")?.focus();

for (const button of document.querySelectorAll("[data-copy]"))
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy);
    getSelection().selectAllChildren(text);  // all there is without TLS
    await navigator.clipboard?.writeText(text.textContent);
    button.textContent = navigator.clipboard ? "Copied" : "Selected";
  });

for (const search of document.querySelectorAll("input[data-rows]"))
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const row of document.getElementById(search.dataset.rows).tBodies[0].rows)
      row.hidden = !words.every(word => row.textContent.toLowerCase().includes(word));
  });

// Light, dark, or as the system has it; printed pages are always light.
const theme = document.getElementById("theme"), root = document.documentElement;
const WORDS = { "": "Auto", light: "Light", dark: "Dark" };
function tell() {
  const now = root.dataset.theme ?? "";
  theme.querySelector(".now").textContent = WORDS[now];
  theme.setAttribute("aria-label", `Colours: ${WORDS[now]}`);
}
theme.hidden = false;
tell();
theme.addEventListener("click", () => {
  const order = Object.keys(WORDS), next = order[(order.indexOf(root.dataset.theme ?? "") + 1) % order.length];
  if (next) { root.dataset.theme = next; localStorage.setItem("theme", next); }
  else { delete root.dataset.theme; localStorage.removeItem("theme"); }
  tell();
  redraw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("beforeprint", redraw);
addEventListener("afterprint", redraw);
