// Remembers the language of the samples, adds buttons that copy, and scrolls the navigation. The pages work without it.
"use strict";

const KEY = "purser-language";
const inputs = document.querySelectorAll("input[name=language]");
const stored = localStorage.getItem(KEY);
for (const input of inputs) {
  input.checked = stored ? input.value === stored : input.checked;
  input.addEventListener("change", () => localStorage.setItem(KEY, input.value));
}

for (const frame of document.querySelectorAll(".code")) {
  const button = document.createElement("button");
  button.type = "button";
  button.className = "secondary small";
  button.textContent = "Copy";
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(frame.querySelector("code").textContent);
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  frame.append(button);
}

// The page itself stays where it is.
const menu = document.getElementById("menu");
const current = menu.querySelector("[aria-current]");
if (current) menu.scrollTop = current.offsetTop - menu.clientHeight / 2;

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.closest("input, textarea")) return;
  event.preventDefault();
  document.getElementById("q").focus();
});
