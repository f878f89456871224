// The workload form: clean addresses, search among GPUs, a graph's file to POST /graphs.

export function form(ask) {
  const busy = ask.querySelector(".busy");
  ask.addEventListener("submit", () => {
    // Empty controls stay out of the address; what is typed comes back with the page.
    for (const control of ask.elements)
      if (control.name && !control.value && !control.disabled) {
        control.disabled = true;
        setTimeout(() => { control.disabled = false; }, 500);
      }
    busy.textContent = "Predicting…";
  });
  addEventListener("pageshow", () => { busy.textContent = ""; });
  ask.querySelector("[data-reload]")?.addEventListener("change", event => another(ask, event.target.value));
  const search = ask.querySelector("#gpu-search");
  if (search) picks(ask, search);
  const file = ask.querySelector("#f-file");
  if (file) file.addEventListener("change", () => upload(ask, file));
}

// Another operator has other fields: its page starts from its example, with the same GPUs.
function another(ask, op) {
  const query = new URLSearchParams([["kind", "operators"], ["op", op]]);
  for (const control of ask.querySelectorAll("[name=gpu]:checked, [type=hidden][name=gpu], [name=on], [name=predictor], [name=coverage]"))
    if (control.value) query.append(control.name, control.value);
  location.search = query;
}

function picks(ask, search) {
  const labels = [...ask.querySelectorAll("#gpu-list label")], count = ask.querySelector("#gpu-count");
  const update = () => {
    const all = ask.querySelector('[name=gpu][value="all"]').checked;
    const chosen = labels.filter(label => label.firstElementChild.checked).length;
    count.textContent = all ? "All are compared." : `${chosen} chosen.`;
  };
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const label of labels) {
      const text = (label.textContent + " " + label.firstElementChild.value).toLowerCase();
      label.hidden = !words.every(word => text.includes(word));
      label.style.display = label.hidden ? "none" : "";
    }
    const seen = labels.filter(label => !label.hidden).length;
    count.textContent = `${seen} found.`;
  });
  search.addEventListener("keydown", event => { if (event.key === "Enter") event.preventDefault(); });
  ask.querySelector("#gpu-list").addEventListener("change", update);
  update();
}

async function upload(ask, file) {
  const [chosen] = file.files, help = ask.querySelector("#f-file-help"), wrong = file.closest(".field");
  if (!chosen) return;
  help.textContent = `Sending ${chosen.name}…`;
  const body = new FormData(), json = chosen.name.endsWith(".json");
  body.append("file", chosen);
  try {
    const answer = await fetch("/graphs", json
      ? { method: "POST", headers: { "Content-Type": "application/json" }, body: chosen } : { method: "POST", body });
    const graph = await answer.json();
    wrong.classList.toggle("wrong", !answer.ok);
    if (!answer.ok) throw new Error(graph.detail);
    ask.querySelector("#f-graph_id").value = graph.graph_id;
    help.textContent = `${graph.name}: ${graph.nodes.toLocaleString("en")} nodes, ${graph.parameters.toLocaleString("en")} parameters. Predict shows its time.`;
  } catch (error) {
    wrong.classList.add("wrong");
    help.textContent = `${chosen.name}: ${error.message}`;
    file.value = "";  // the same file, mended, is a change again
  }
}
