// The HTTP interface as a page, from the OpenAPI document: every operation with its schemas, and a way to try it.
const add = (parent, tag, text = "") => {
  const node = parent.appendChild(document.createElement(tag));
  node.textContent = text;
  return node;
};
const show = value => JSON.stringify(value, null, 2);
const named = (schema, all) => schema.$ref ? all[schema.$ref.split("/").pop()] : schema;
// A body has one example, or several by name.
const examplesOf = media => media.example === undefined
  ? Object.entries(media.examples || {}).map(([name, { value }]) => [name, value]) : [["", media.example]];
const written = example => typeof example === "string" ? example : show(example);

function operation(parent, path, method, spec, all) {
  const box = add(parent, "details"), head = add(box, "summary");
  add(head, "b", method.toUpperCase());
  add(head, "code", path);
  add(head, "span", " " + (spec.summary || ""));
  add(box, "p", spec.description || "");
  const inputs = (spec.parameters || []).map(item => {
    const label = add(box, "label", item.name + " "), input = add(label, "input");
    input.title = item.description || "";
    return { ...item, input };
  });
  const content = spec.requestBody ? spec.requestBody.content : {}, type = Object.keys(content)[0];
  const area = type ? body(box, content[type]) : null;
  const answer = { button: add(box, "button", "Send"), out: add(box, "pre") };
  answer.out.hidden = true;
  answer.button.onclick = () => send(path, method, inputs, type, area, answer.out);
  schemas(box, content[type], spec.responses, all);
}

function body(box, media) {
  const examples = examplesOf(media), area = document.createElement("textarea");
  if (examples.length > 1) {
    const choice = add(add(box, "label", "Example "), "select");
    examples.forEach(([name]) => add(choice, "option", name));
    choice.onchange = () => { area.value = written(examples[choice.selectedIndex][1]); };
  }
  area.setAttribute("aria-label", "Request body");
  area.value = examples.length ? written(examples[0][1]) : "";
  return box.appendChild(area);
}

function schemas(box, body, responses, all) {
  if (body && body.schema) unfold(box, "Request", body.schema, all);
  for (const [status, response] of Object.entries(responses)) {
    const media = Object.values(response.content || {})[0], title = status + " " + response.description;
    if (media) unfold(box, title, media.schema, all);
    else add(box, "p", title);
  }
}

// Opened only when asked for: forms hold one another, without end.
function unfold(parent, title, schema, all) {
  const box = add(parent, "details");
  add(box, "summary", title);
  box.addEventListener("toggle", () => fields(box, schema, all), { once: true });
}

function fields(box, schema, all) {
  const form = named(schema, all);
  for (const one of [form.items, ...(form.anyOf || [])].filter(Boolean)) inner(box, one, all);
  for (const [name, kind] of Object.entries(form.properties || {})) {
    const line = add(box, "p"), needed = (form.required || []).includes(name);
    add(line, "code", name);
    add(line, "span", ` ${typeOf(kind)}${needed ? ", required" : ""}: ${kind.description || ""}`);
    inner(box, kind, all);
  }
}

// The forms that a value may have, each behind its name.
function inner(box, schema, all) {
  if (schema.$ref || schema.properties)
    unfold(box, `${typeOf(schema)}: ${(named(schema, all).description || "").split("\n")[0]}`, schema, all);
  for (const one of [schema.items, ...(schema.anyOf || [])].filter(Boolean)) inner(box, one, all);
}

const brief = number => number < 1e6 ? number : number.toExponential();

function typeOf(schema) {
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(typeOf).join(" or ");
  if (schema.enum) return schema.enum.join(" | ");
  if (schema.type === "array") return `list of ${typeOf(schema.items || {})}`;
  const { minimum: low, maximum: high } = schema, ranged = low !== undefined && high !== undefined;
  return (schema.const ?? schema.type ?? "any") + (ranged ? ` from ${brief(low)} to ${brief(high)}` : "");
}

async function send(path, method, inputs, type, area, out) {
  const query = new URLSearchParams();
  for (const { name, in: where, input } of inputs) {
    if (where === "path") path = path.replace(`{${name}}`, encodeURIComponent(input.value));
    else if (input.value) query.set(name, input.value);
  }
  const asked = { method: method.toUpperCase() };
  if (area) Object.assign(asked, { body: area.value, headers: { "Content-Type": type } });
  const response = await fetch(path + (query.size ? "?" + query : ""), asked), text = await response.text();
  out.hidden = false;
  try { out.textContent = response.status + "\n" + show(JSON.parse(text)); }
  catch { out.textContent = response.status + "\n" + text; }
}

fetch("/openapi.json").then(response => response.json()).then(document_ => {
  const groups = {}, all = document_.components.schemas;
  for (const [path, item] of Object.entries(document_.paths))
    for (const [method, spec] of Object.entries(item))
      (groups[(spec.tags || ["Other"])[0]] ||= []).push([path, method, spec]);
  for (const [tag, list] of Object.entries(groups)) {
    add(document.getElementById("operations"), "h2", tag);
    for (const [path, method, spec] of list)
      operation(document.getElementById("operations"), path, method, spec, all);
  }
});
