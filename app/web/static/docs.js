// The HTTP interface as a page, from the OpenAPI document: every operation with its schemas, and a way to try it.
const add = (parent, tag, text = "") => {
  const node = parent.appendChild(document.createElement(tag));
  node.textContent = text;
  return node;
};
const show = value => JSON.stringify(value, null, 2);
const named = (schema, all) => schema && schema.$ref ? all[schema.$ref.split("/").pop()] : schema;

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
  const area = type ? add(box, "textarea") : null;
  if (area) area.setAttribute("aria-label", "Request body");
  if (area) area.value = typeof content[type].example === "string" ? content[type].example : show(content[type].example || {});
  const answer = { button: add(box, "button", "Send"), out: add(box, "pre") };
  answer.out.hidden = true;
  answer.button.onclick = () => send(path, method, inputs, type, area, answer.out);
  schemas(box, content[type], spec.responses, all);
}

function schemas(box, body, responses, all) {
  if (body && body.schema) {
    const more = add(box, "details");
    add(more, "summary", "Request schema");
    add(more, "pre", show(named(body.schema, all)));
  }
  for (const [status, response] of Object.entries(responses)) {
    const more = add(box, "details"), media = Object.values(response.content || {})[0];
    add(more, "summary", status + " " + response.description);
    if (media) add(more, "pre", show(named(media.schema, all)));
  }
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
