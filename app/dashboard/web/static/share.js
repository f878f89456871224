// Saves the answer behind a page: its report comes as PDF, with links that answer the same later.

export function share(button) {
  const said = button.parentElement.querySelector("[role=status]");
  button.addEventListener("click", async () => {
    said.textContent = "Saving…";
    try {
      const { id } = await answerOf(button.dataset.share, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ ...JSON.parse(button.dataset.body), save: true }) });
      const { link = `/predictions/${id}` } = await answerOf(`/predictions/${id}`);  // with a token where keys are required
      const report = linked("Report", link.replace(/^[^?]+/, "$&.pdf"));
      said.replaceChildren("Saved: ", report, " and ", linked("its figures", link), ". Both links answer the same later.");
      const file = report.cloneNode();
      file.download = `gpucast-${id}.pdf`;
      file.click();
    } catch (error) {
      said.textContent = error.message;
    }
  });
}

async function answerOf(path, request) {
  const answer = await fetch(path, request), found = await answer.json();
  if (!answer.ok) throw new Error(found.detail);
  return found;
}

function linked(text, href) {
  const link = document.createElement("a");
  Object.assign(link, { textContent: text, href });
  return link;
}
