// The HTTP interface as a page: Swagger UI on the OpenAPI document, light or dark as the other pages.
const { dataset, classList } = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)");
const follow = () => classList.toggle("dark-mode", (dataset.theme || (dark.matches ? "dark" : "light")) === "dark");
dark.addEventListener("change", follow);
new MutationObserver(follow).observe(document.documentElement, { attributeFilter: ["data-theme"] });
follow();

SwaggerUIBundle({
  url: "/openapi.json",
  dom_id: "#operations",
  deepLinking: true,
  tryItOutEnabled: true,
  validatorUrl: null,
  defaultModelsExpandDepth: -1,
});
