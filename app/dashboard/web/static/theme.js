// Light, dark, or as the system has it. Runs before the page is drawn, so that nothing flashes.
const chosen = localStorage.getItem("theme");
if (chosen) document.documentElement.dataset.theme = chosen;
