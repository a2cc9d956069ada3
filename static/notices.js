// Subscribes this browser to push messages. Without this script, e-mail works.
"use strict";

const asText = (buffer) => btoa(String.fromCharCode(...new Uint8Array(buffer)))
  .replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

// The only script that is loaded by its address.
const workers = window.trustedTypes?.createPolicy("push-worker", {
  createScriptURL: (path) => {
    if (path !== "/static/push-worker.js") throw new TypeError(path);
    return path;
  },
});

async function subscribe(key) {
  if (await Notification.requestPermission() !== "granted") throw new Error("denied");
  const path = "/static/push-worker.js";
  const made = await navigator.serviceWorker.register(workers ? workers.createScriptURL(path) : path);
  const worker = made.installing ?? made.waiting ?? made.active;
  while (worker.state !== "activated") {
    await new Promise((resolve) => { worker.addEventListener("statechange", resolve, { once: true }); });
  }
  return made.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key });
}

for (const form of document.querySelectorAll("[data-push-form]")) {
  if (!("serviceWorker" in navigator && "PushManager" in window)) continue;
  form.hidden = false;
  for (const each of document.querySelectorAll("[data-without-push]")) each.hidden = true;
  const problem = form.querySelector("[data-push-problem]");
  form.addEventListener("submit", async (event) => {
    if (form.elements.endpoint.value) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    problem.hidden = true;
    try {
      const made = await subscribe(form.dataset.pushKey);
      form.elements.p256dh.value = asText(made.getKey("p256dh"));
      form.elements.auth.value = asText(made.getKey("auth"));
      form.elements.endpoint.value = made.endpoint;
      form.requestSubmit(event.submitter);
    } catch {
      problem.textContent = "The browser did not permit notices, or its push service cannot be reached.";
      problem.hidden = false;
    }
  });
}
