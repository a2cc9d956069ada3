// Progressive enhancement of the owner's pages. Sets no markup: Trusted Types permit none.
"use strict";

const announcement = document.getElementById("announcement");

// "khtm4821", " KHTM–4821 " and "KHTM 4821" become KHTM-4821 while they are typed or pasted.
const code = document.getElementById("code");
if (code) {
  const format = (text) => {
    const letters = text.normalize("NFKC").toUpperCase().replace(/[^A-Z0-9]/g, "").slice(0, 8);
    return letters.length > 4 ? `${letters.slice(0, 4)}-${letters.slice(4)}` : letters;
  };
  const reformat = () => {
    const before = code.selectionStart ?? code.value.length;
    const caret = format(code.value.slice(0, before)).length;
    const formatted = format(code.value);
    if (formatted === code.value) return;
    code.value = formatted;
    code.setSelectionRange(caret, caret);
  };
  code.addEventListener("input", (event) => {
    // Do not insert a hyphen again right after it was deleted.
    if (!(event.inputType || "").startsWith("delete")) reformat();
  });
  code.addEventListener("blur", reformat);
  reformat();
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
      // Outside a secure context there is no clipboard API; execCommand copies the selection.
      getSelection().selectAllChildren(source);
      done = document.execCommand("copy");
    }
    label.textContent = done ? "Copied" : "Press Ctrl+C";
    if (announcement) announcement.textContent = done ? `${button.dataset.name} copied` : "Selected. Press Ctrl+C to copy.";
    setTimeout(() => { label.textContent = "Copy"; }, 2500);
  });
}

// Prevents a second submission by a double click.
for (const form of document.forms) {
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent) event.preventDefault();
    form.dataset.sent = "yes";
  });
}
addEventListener("pageshow", () => { for (const form of document.forms) delete form.dataset.sent; });

// Shows times in the reader's time zone, with the time in UTC as their title.
for (const shown of document.querySelectorAll("time[datetime]")) {
  const at = new Date(shown.dateTime);
  const text = shown.textContent;
  const clock = { hour: "2-digit", minute: "2-digit" };
  const day = { day: "numeric", month: "short", ...(/\b\d{4}\b/.test(text) ? { year: "numeric" } : {}) };
  shown.title = text;
  shown.textContent = at.toLocaleString("en-GB", /[a-z]/.test(text.replace("UTC", "")) ? { ...day, ...clock } : clock);
}

// Moves the entries of a timeline to the days of that time zone.
const timeline = document.querySelector("[data-timeline]");
if (timeline) {
  const form = { day: "numeric", month: "long", year: "numeric" };
  let current = null;
  for (const group of [...timeline.querySelectorAll("section")]) {
    for (const entry of [...group.querySelectorAll("li")]) {
      const label = new Date(entry.dataset.at).toLocaleDateString("en-GB", form);
      if (!current || current.querySelector("h2").textContent !== label) {
        const next = group.cloneNode(true);
        next.querySelector("ol").replaceChildren();
        next.querySelector("h2").textContent = label;
        timeline.insertBefore(next, group);
        current = next;
      }
      current.querySelector("ol").append(entry);
    }
    group.remove();
  }
  timeline.querySelectorAll("section").forEach((group, number) => {
    group.querySelector("h2").id = `day-${number}`;
    group.setAttribute("aria-labelledby", `day-${number}`);
  });
}
