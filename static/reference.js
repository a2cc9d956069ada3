// Starts Swagger UI on /docs. The page permits it no request, so the document is part of the page.
"use strict";

if (matchMedia("(prefers-color-scheme: dark)").matches) document.documentElement.classList.add("dark-mode");

SwaggerUIBundle({
  spec: JSON.parse(document.getElementById("openapi").textContent),
  domNode: document.getElementById("reference"),
  deepLinking: true,
  defaultModelsExpandDepth: 0,
  supportedSubmitMethods: [],
  validatorUrl: null,
});
