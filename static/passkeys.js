// Passkeys for forms that otherwise need the owner key. Without this script the owner key works.
"use strict";

const asBase64Url = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes)))
  .replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");

const digestOf = async (text) =>
  asBase64Url(await crypto.subtle.digest("SHA-256", new TextEncoder().encode(text)));

// What is signed is the request, the decision and the amount as typed: the service computes the same.
function challengeOfApproval(form, decision, requestHash) {
  const week = decision === "weekly" ? form.elements.week_usd.value : "";
  return digestOf(`purser approval\n${requestHash}\n${decision}\n${week}`);
}

// Of other forms: where they are posted to, and their values as they are sent, without what authenticates them.
const UNSIGNED = ["csrf_token", "owner_key", "master_key", "passkey", "passkey_token"];
function challengeOfForm(form, button, nonce) {
  const data = new FormData(form, button);
  const names = [...new Set(data.keys())].filter((name) => !UNSIGNED.includes(name)).sort();
  const values = names.map((name) => [name, data.getAll(name).map((each) => each.replace(/\r\n?|\n/g, "\r\n"))]);
  return digestOf(`purser form\n${nonce}\nPOST ${form.getAttribute("action")}\n${JSON.stringify(values)}`);
}

async function askDevice(field, button) {
  const options = JSON.parse(field.dataset.options);
  if (field.dataset.passkey === "create") {
    const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(options);
    return navigator.credentials.create({ publicKey });
  }
  if (field.dataset.approval) {
    options.challenge = await challengeOfApproval(field.form, button.value, field.dataset.approval);
  } else if (field.dataset.passkey === "confirm") {
    options.challenge = await challengeOfForm(field.form, button, options.challenge);
  }
  return navigator.credentials.get({ publicKey: PublicKeyCredential.parseRequestOptionsFromJSON(options) });
}

for (const field of document.querySelectorAll("[data-passkey]")) {
  const form = field.form;
  const usable = window.PublicKeyCredential?.parseRequestOptionsFromJSON && location.origin === field.dataset.origin;
  if (!usable) continue;
  const problem = form.querySelector("[data-passkey-problem]");
  if ("passkeyForm" in form.dataset) form.hidden = false;
  for (const each of form.querySelectorAll("[data-passkey-hint]")) each.hidden = false;
  for (const each of form.parentElement.querySelectorAll("[data-without-passkeys]")) each.hidden = true;
  let asking = false;
  form.addEventListener("submit", async (event) => {
    if (field.value || form.elements.owner_key?.value) return;
    // Before the listener of owner.js: nothing is submitted yet.
    event.preventDefault();
    event.stopImmediatePropagation();
    if (asking) return;
    asking = true;
    problem.hidden = true;
    try {
      field.value = JSON.stringify(await askDevice(field, event.submitter));
      form.requestSubmit(event.submitter);
    } catch {
      field.value = "";
      problem.textContent = `No passkey was used. Try again${form.elements.owner_key ? ", or use your owner key" : ""}.`;
      problem.hidden = false;
    } finally {
      asking = false;
    }
  });
}
addEventListener("pageshow", () => { for (const field of document.querySelectorAll("[data-passkey]")) field.value = ""; });
