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
  const [gpu, network] = ["#gpu-search", "#network-search"].map(id => ask.querySelector(id));
  if (gpu) gpus(ask, gpu);
  if (network) networks(ask, network);
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

// A searchable list: hides what lacks a word, and groups of which nothing is left.
function searchable(search, list, after) {
  search.addEventListener("input", () => {
    const words = search.value.toLowerCase().split(/\s+/);
    for (const label of list.querySelectorAll("label")) {
      const text = `${label.textContent} ${label.firstElementChild.value} ${label.parentElement.getAttribute("aria-label") ?? ""}`.toLowerCase();
      label.hidden = !words.every(word => text.includes(word));
    }
    for (const group of list.querySelectorAll("[role=group]")) group.hidden = !group.querySelector("label:not([hidden])");
    after?.();
  });
  search.addEventListener("keydown", event => { if (event.key === "Enter") event.preventDefault(); });
}

function gpus(ask, search) {
  const list = ask.querySelector("#gpu-list"), count = ask.querySelector("#gpu-count");
  const found = list.appendChild(document.createElement("div"));
  let waiting;
  // GPUs outside the catalogue come from the server, those chosen among them stay.
  const more = async () => {
    const answer = search.value.trim().length > 1 ? await fetch(`${search.dataset.more}&q=${encodeURIComponent(search.value)}`) : null;
    const kept = [...found.querySelectorAll("label")].filter(label => label.firstElementChild.checked);
    found.innerHTML = answer?.ok ? await answer.text() : "";
    found.prepend(...kept);
    count.textContent = `${list.querySelectorAll("label:not([hidden])").length} found.`;
  };
  searchable(search, list, () => { clearTimeout(waiting); waiting = setTimeout(more, 200); });
  const update = () => {
    const all = ask.querySelector('[name=gpu][value="all"]:checked');
    count.textContent = all ? "All are compared." : `${ask.querySelectorAll("[name=gpu]:checked, [name=on]:checked").length} chosen.`;
  };
  list.closest("fieldset").addEventListener("change", update);
  update();
}

// What the chosen network lacks is greyed: modes, and the size of inputs that it does not have.
function networks(ask, search) {
  const list = ask.querySelector("#network-list");
  const [mode, sequence, image, config] = ["mode", "sequence", "image_size", "config"].map(name => ask.querySelector(`#f-${name}`));
  const update = () => {
    const radio = list.querySelector(":checked"), kind = radio?.closest("[data-modes]")?.dataset;
    ask.querySelector("#f-name .chosen").textContent = radio?.parentElement.textContent.trim();
    const modes = kind && !config.value ? kind.modes.split(" ") : null, images = kind && "images" in kind;
    if (!mode) return;
    for (const option of mode.options) option.disabled = Boolean(modes && option.value && !modes.includes(option.value));
    if (mode.selectedOptions[0]?.disabled) mode.value = "inference";
    sequence.disabled = Boolean(modes && images);
    image.disabled = Boolean(modes && !images);
    if (modes && !images && !sequence.value) sequence.value = "512";  // of every network of text
  };
  searchable(search, list);
  list.addEventListener("change", update);
  config.addEventListener("input", () => {
    if (config.value.trim()) list.querySelector("[value='']").checked = true;  // it stands in place of a network's name
    update();
  });
  update();
}

async function upload(ask, file) {
  const [chosen] = file.files, help = ask.querySelector("#f-file-help"), wrong = file.closest(".field");
  if (!chosen) return;
  help.textContent = `Sending ${chosen.name}…`;
  const body = new FormData(), json = chosen.name.endsWith(".json");
  body.append("file", chosen);
  const dims = ask.querySelector("#f-dims"), sizes = new URLSearchParams();
  for (const line of dims.value.split("\n").map(text => text.trim().split(/[\s=]+/)))
    if (line.length === 2) sizes.append("dims", line.join("="));
  try {
    const answer = await fetch(`/graphs?${sizes}`, json
      ? { method: "POST", headers: { "Content-Type": "application/json" }, body: chosen } : { method: "POST", body });
    const graph = await answer.json();
    wrong.classList.toggle("wrong", !answer.ok);
    const missing = answer.ok ? [] : [...graph.detail.matchAll(/dims=(.+?)=SIZE/g)].map(found => found[1]);
    if (missing.length) {  // their names stand in the form, each waiting for its size
      dims.closest("details").open = true;
      dims.value = [dims.value.trim(), ...missing.map(name => `${name} `)].filter(Boolean).join("\n");
      throw new Error(`give the size of ${missing.join(", ")} under Named dimensions, then choose the file again.`);
    }
    if (!answer.ok) throw new Error(graph.detail);
    ask.querySelector("#f-graph_id").value = graph.graph_id;
    help.textContent = `${graph.name}: ${graph.nodes.toLocaleString("en")} nodes, ${graph.parameters.toLocaleString("en")} parameters. Predict shows its time.`;
  } catch (error) {
    wrong.classList.add("wrong");
    help.textContent = `${chosen.name}: ${error.message}`;
    file.value = "";  // the same file, mended, is a change again
  }
}
