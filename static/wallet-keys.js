// Recovery phrases of wallets, sealed by HPKE (RFC 9180): base mode, DHKEM(P-256, HKDF-SHA256), HKDF-SHA256, AES-256-GCM.
// The service does the same in `app/core/hpke.py`. Loaded before the listeners of passkeys.js act: what a passkey signs
// has been filled in by then.
"use strict";

const P256 = { name: "ECDH", namedCurve: "P-256" };
const utf8 = (text) => new TextEncoder().encode(text);
const joined = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));
const KEM = joined(utf8("KEM"), [0, 0x10]);
const SUITE = joined(utf8("HPKE"), [0, 0x10, 0, 1, 0, 2]);
const POINT_BYTES = 65;

const toBase64Url = (bytes) => btoa(String.fromCharCode(...new Uint8Array(bytes)))
  .replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
const fromBase64Url = (text) =>
  Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (each) => each.charCodeAt(0));

async function hmac(key, data) {
  const used = await crypto.subtle.importKey("raw", key, { name: "HMAC", hash: "SHA-256" }, false, ["sign"]);
  return new Uint8Array(await crypto.subtle.sign("HMAC", used, data));
}

// An empty salt is as many zeros as a hash has (RFC 5869).
const extract = (suite, salt, label, input) =>
  hmac(salt ?? new Uint8Array(32), joined(utf8("HPKE-v1"), suite, utf8(label), input));
const expand = async (suite, key, label, info, length) =>
  (await hmac(key, joined([0, length], utf8("HPKE-v1"), suite, utf8(label), info, [1]))).slice(0, length);

const importPoint = (point) => crypto.subtle.importKey("raw", point, P256, true, []);

// The key and nonce of the one message between an encapsulated key and a recipient.
async function agree(privateKey, otherPoint, encapsulated, recipient, info) {
  const shared = await crypto.subtle.deriveBits({ name: "ECDH", public: await importPoint(otherPoint) }, privateKey, 256);
  const prk = await extract(KEM, null, "eae_prk", new Uint8Array(shared));
  const secret = await expand(KEM, prk, "shared_secret", joined(encapsulated, recipient), 32);
  const context = joined(
    [0], await extract(SUITE, null, "psk_id_hash", []), await extract(SUITE, null, "info_hash", utf8(info)),
  );
  const schedule = await extract(SUITE, secret, "secret", []);
  const raw = await expand(SUITE, schedule, "key", context, 32);
  const iv = await expand(SUITE, schedule, "base_nonce", context, 12);
  return { key: await crypto.subtle.importKey("raw", raw, "AES-GCM", false, ["encrypt", "decrypt"]), iv };
}

const pointOf = async (publicKey) => new Uint8Array(await crypto.subtle.exportKey("raw", publicKey));

async function seal(message, recipient, info) {
  const pair = await crypto.subtle.generateKey(P256, false, ["deriveBits"]);
  const point = await pointOf(pair.publicKey);
  const { key, iv } = await agree(pair.privateKey, recipient, point, recipient, info);
  return joined(point, new Uint8Array(await crypto.subtle.encrypt({ name: "AES-GCM", iv }, key, utf8(message))));
}

async function unseal(sealed, pair, info) {
  const point = sealed.slice(0, POINT_BYTES);
  const { key, iv } = await agree(pair.privateKey, point, point, await pointOf(pair.publicKey), info);
  return new TextDecoder().decode(await crypto.subtle.decrypt({ name: "AES-GCM", iv }, key, sealed.slice(POINT_BYTES)));
}

// The key pair outlives the page that sends its public half. Scripts cannot read the private half, only use it.
const KEPT = "taking";
const inStore = (use) => new Promise((resolve, reject) => {
  const opening = indexedDB.open("purser-wallet-keys", 1);
  opening.onupgradeneeded = () => opening.result.createObjectStore("keys");
  opening.onerror = () => reject(opening.error);
  opening.onsuccess = () => {
    const transaction = opening.result.transaction("keys", "readwrite");
    const asked = use(transaction.objectStore("keys"));
    transaction.oncomplete = () => { opening.result.close(); resolve(asked.result); };
    transaction.onerror = transaction.onabort = () => { opening.result.close(); reject(transaction.error); };
  };
});

// Fills in a field before the form is submitted, and so before a passkey signs it.
function fillIn(form, field, makeValue) {
  const problem = form.querySelector("[data-problem]");
  form.addEventListener("submit", async (event) => {
    if (field.value) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    try {
      field.value = await makeValue();
      // A form cannot be submitted while its event is dispatched, and browsers may seal as quickly as that.
      await new Promise((resolve) => { setTimeout(resolve); });
      form.requestSubmit(event.submitter);
    } catch {
      problem.hidden = false;
    }
  }, { capture: true });
}

for (const field of document.querySelectorAll("[data-make-key]")) {
  fillIn(field.form, field, async () => {
    const pair = await crypto.subtle.generateKey(P256, false, ["deriveBits"]);
    await inStore((keys) => keys.put(pair, KEPT));
    return toBase64Url(await pointOf(pair.publicKey));
  });
}

for (const field of document.querySelectorAll("[data-seal-for]")) {
  // It has no name, so that a browser never sends it.
  const typed = document.getElementById(field.dataset.typed);
  typed.addEventListener("input", () => { field.value = ""; });
  addEventListener("pagehide", () => { typed.value = ""; });
  fillIn(field.form, field, async () => {
    const words = typed.value.normalize("NFKD").toLowerCase().trim().split(/\s+/u).join(" ");
    return toBase64Url(await seal(words, fromBase64Url(field.dataset.sealFor), field.dataset.info));
  });
}

for (const box of document.querySelectorAll("[data-sealed]")) {
  const [show, clear] = box.querySelectorAll("button");
  const words = box.querySelector("code");
  const problem = box.querySelector("[data-problem]");
  let pair = inStore((keys) => keys.get(KEPT)).finally(() => inStore((keys) => keys.delete(KEPT)));
  const forget = () => {
    words.textContent = "";
    pair = null;
    box.dataset.sealed = "";
    show.hidden = clear.hidden = words.hidden = true;
  };
  show.hidden = false;
  show.addEventListener("click", async () => {
    try {
      words.textContent = await unseal(fromBase64Url(box.dataset.sealed), await pair, box.dataset.info);
      words.hidden = clear.hidden = false;
      show.hidden = true;
    } catch {
      forget();
      problem.hidden = false;
    }
  });
  clear.addEventListener("click", forget);
  addEventListener("pagehide", forget);
}
addEventListener("pageshow", () => {
  for (const field of document.querySelectorAll("[data-make-key], [data-seal-for]")) field.value = "";
});
