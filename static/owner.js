// Makes the pages for people handier; each of them works without it. Touches no markup: Trusted Types allow none.
"use strict";

const said = document.getElementById("said");

// "khtm4821", " KHTM–4821 " and "KHTM 4821" become KHTM-4821 while they are typed or pasted.
const code = document.getElementById("code");
if (code) {
  const tidy = (text) => {
    const letters = text.normalize("NFKC").toUpperCase().replace(/[^A-Z0-9]/g, "").slice(0, 8);
    return letters.length > 4 ? `${letters.slice(0, 4)}-${letters.slice(4)}` : letters;
  };
  const keep = () => {
    const before = code.selectionStart ?? code.value.length;
    const kept = tidy(code.value.slice(0, before)).length;
    const tidied = tidy(code.value);
    if (tidied === code.value) return;
    code.value = tidied;
    code.setSelectionRange(kept, kept);
  };
  code.addEventListener("input", (event) => {
    // A hyphen that was just taken away must not come back under the person's finger.
    if (!(event.inputType || "").startsWith("delete")) keep();
  });
  code.addEventListener("blur", keep);
  keep();
}

for (const button of document.querySelectorAll("[data-copy]")) {
  const source = document.getElementById(button.dataset.copy);
  if (!source) continue;
  button.hidden = false;
  const label = button.firstElementChild;
  button.addEventListener("click", async () => {
    let done = true;
    try {
      await navigator.clipboard.writeText(source.textContent);
    } catch {
      // Outside a secure context there is no clipboard: the old way needs a selection.
      getSelection().selectAllChildren(source);
      done = document.execCommand("copy");
    }
    label.textContent = done ? "Copied" : "Press Ctrl+C";
    if (said) said.textContent = done ? `${button.dataset.name} copied` : "Selected; copy it with Ctrl+C";
    setTimeout(() => { label.textContent = "Copy"; }, 2500);
  });
}

// A form that was sent is not sent twice by an impatient second click.
for (const form of document.forms) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
  });
}
addEventListener("pageshow", () => { for (const form of document.forms) delete form.dataset.sent; });
