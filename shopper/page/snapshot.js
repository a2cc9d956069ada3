// Returns a page as plain data and numbers what can be acted on (data-purser). Reads only; types and clicks nothing.
() => {
  const MARK = "data-purser";
  const TEXT = 20000;
  const tidy = (text, length = 200) => (text || "").replace(/\s+/g, " ").trim().slice(0, length);

  const all = [];
  const walk = (root) => {
    for (const element of root.querySelectorAll("*")) {
      all.push(element);
      if (element.shadowRoot) walk(element.shadowRoot);
    }
  };
  walk(document);
  // An element keeps its number, and no other element of any page gets it: what was seen is clicked, or nothing.
  const kept = (window[Symbol.for(MARK)] ||= { numbers: new WeakMap(), next: Math.floor(performance.timeOrigin) * 1000 });
  for (const element of all)
    if (element.hasAttribute(MARK) && element.getAttribute(MARK) !== String(kept.numbers.get(element))) element.removeAttribute(MARK);

  const visible = (element) => {
    // What a closed <details> contains keeps its box.
    if (!element || !element.isConnected || !element.checkVisibility()) return false;
    const box = element.getBoundingClientRect();
    if (box.width < 2 || box.height < 2) return false;
    const style = getComputedStyle(element);
    if (style.visibility !== "visible" || style.display === "none" || Number(style.opacity) < 0.05) return false;
    return box.right > 0 && box.left < Math.max(innerWidth, 1) + 4000;
  };
  const inner = (element, length) => tidy(element ? element.innerText || "" : "", length);
  const forms = [...document.forms];
  const up = (element) => element.parentElement || (element.getRootNode() || {}).host || null;
  const shown = (element) => {
    for (let at = element; at && at !== document.body; at = up(at)) if (Number(getComputedStyle(at).opacity) < 0.05) return false;
    return visible(element);
  };
  const trailOf = (element) => {
    const names = [];
    for (let at = element; at && at !== document.body; at = up(at)) names.push(at.tagName.toLowerCase());
    return names.reverse().join(">");
  };
  const closest = (element, selector) => {
    for (let at = element; at; at = up(at)) if (at.matches && at.matches(selector)) return at;
    return null;
  };
  const inDialog = (element) => !!closest(element, "dialog[open],[role=dialog],[role=alertdialog],[aria-modal=true]");
  const region = (element) => {
    const found = closest(element, "header,nav,footer,aside,[role=banner],[role=navigation],[role=contentinfo]");
    return found ? (found.getAttribute("role") || found.tagName).toLowerCase() : "";
  };
  // The entry of a list or a table that an element belongs to.
  const entryOf = (element) => closest(up(element), "li,tr,[role=listitem],[role=row]");
  const byIds = (element, name) =>
    (element.getAttribute(name) || "").split(/\s+/).map((id) => id && element.getRootNode().getElementById
      ? inner(element.getRootNode().getElementById(id)) : "").join(" ");

  const labelOf = (element) => {
    const parts = [...(element.labels || [])].map((label) => inner(label));
    parts.push(byIds(element, "aria-labelledby"), element.getAttribute("aria-label") || "");
    let text = tidy(parts.join(" "));
    if (!text) {
      // A label without a `for`, directly before the field.
      const before = element.previousElementSibling;
      if (before && /^(label|span|div|dt|p|b|strong)$/i.test(before.tagName) && !before.querySelector("input,select,textarea,button"))
        text = inner(before, 80);
    }
    if (!text) {
      // A label without a `for`, before the block that has only this field.
      const block = up(element), before = block && block.previousElementSibling;
      if (before && before.tagName === "LABEL" && !before.control && block.querySelectorAll("input,select,textarea").length === 1) text = inner(before, 80);
    }
    if (!text) {
      const cell = closest(element, "td,dd");
      if (cell && cell.previousElementSibling) text = inner(cell.previousElementSibling, 80);
    }
    return text || tidy(element.getAttribute("title"));
  };
  // The largest ancestor that contains only one of its kind: its text belongs to this one.
  const cardOf = (element, peers) => {
    let card = element;
    for (let at = up(element), steps = 0; at && at !== document.body && steps < 12; at = up(at), steps++) {
      if (peers.some((peer) => peer !== element && at.contains(peer))) break;
      card = at;
      if (/^(form|main|section)$/i.test(at.tagName) && peers.length < 2) break;
    }
    return inner(card, 600);
  };

  const problemOf = (element) => {
    if (element.type !== "password" && element.matches(":invalid") && element.validationMessage) return tidy(element.validationMessage);
    if (element.getAttribute("aria-invalid") !== "true") return "";
    return tidy(byIds(element, "aria-errormessage")) || tidy(byIds(element, "aria-describedby")) || "invalid";
  };
  const mark = (element) => {
    if (!kept.numbers.has(element)) kept.numbers.set(element, ++kept.next);
    const number = kept.numbers.get(element);
    if (!element.hasAttribute(MARK)) element.setAttribute(MARK, String(number));
    return number;
  };
  const seen = (element) => visible(element) || [...(element.labels || [])].some(visible);

  const isRole = (element, ...roles) => roles.includes(element.getAttribute("role"));
  const fields = all.filter((element) => {
    const tag = element.tagName;
    if (tag === "INPUT") return !["hidden", "submit", "button", "image", "reset", "file"].includes(element.type);
    if (tag === "SELECT" || tag === "TEXTAREA") return true;
    if (isRole(element, "option", "menuitemradio")) return !!closest(element, "[role=listbox],[role=menu]") && !element.closest("[aria-hidden=true]");
    if (tag === "BUTTON" && element.getAttribute("aria-haspopup") === "listbox") return true;
    return isRole(element, "combobox", "radio", "checkbox", "textbox", "switch", "spinbutton");
  }).filter((element) => {
    if (element.tagName === "INPUT" && ["radio", "checkbox"].includes(element.type)) {
      if (closest(element, "[role=radio],[role=checkbox]") && !visible(element)) return false;
      return seen(element) || (element.parentElement && visible(element.parentElement) && !element.closest("[aria-hidden=true]"));
    }
    // A combobox with an input inside is one field.
    if (element.tagName !== "INPUT" && element.querySelector("input,select,textarea") && !isRole(element, "radio", "checkbox")) return false;
    return shown(element) && !element.closest("[aria-hidden=true]");
  });
  const radioGroup = (element) => {
    if (element.type !== "radio" && !isRole(element, "radio", "option", "menuitemradio")) return "";
    const set = closest(element, "[role=radiogroup],[role=listbox],[role=menu],fieldset");
    return element.name || (set ? "group " + all.indexOf(set) : "radios");
  };
  const titleOf = (element) => {
    const set = closest(element, "fieldset,[role=radiogroup],[role=listbox],[role=menu]");
    if (!set) return "";
    const legend = set.querySelector("legend");
    return tidy([legend ? inner(legend) : "", byIds(set, "aria-labelledby"), set.getAttribute("aria-label") || ""].join(" "), 120);
  };
  const SAME_ROLES = { option: "radio", menuitemradio: "radio", switch: "checkbox", spinbutton: "number" };
  const isOn = (element) => ["aria-checked", "aria-selected"].some((name) => element.getAttribute(name) === "true");
  const controls = fields.slice(0, 300).map((element) => {
    const given = element.getAttribute("role") || (element.tagName === "BUTTON" ? "combobox" : null), role = SAME_ROLES[given] || given;
    const type = element.tagName === "SELECT" ? "select" : element.tagName === "TEXTAREA" ? "textarea"
      : role && role !== "button" && (element.tagName !== "INPUT" || role === "combobox") ? role : element.type || "text";
    const choice = type === "radio" || type === "checkbox";
    const secret = type === "password";
    const peers = type === "radio" ? fields.filter((other) => radioGroup(other) === radioGroup(element)) : [element];
    const group = radioGroup(element);
    return {
      number: mark(element), type, name: element.getAttribute("name") || "", id: element.id || "",
      autocomplete: element.getAttribute("autocomplete") || "", placeholder: tidy(element.getAttribute("placeholder")),
      label: labelOf(element) || (choice ? inner(element) : ""),
      value: secret ? "" : String(element.value ?? element.innerText ?? "").slice(0, 300), filled: !!(element.value || "").length,
      checked: choice ? element.checked === true || isOn(element) : false,
      required: element.required === true || element.getAttribute("aria-required") === "true" || /\*\s*$/.test(labelOf(element)),
      disabled: element.disabled === true || element.readOnly === true || element.getAttribute("aria-disabled") === "true",
      problem: problemOf(element),
      form: element.form ? forms.indexOf(element.form) : -1, entry: all.indexOf(entryOf(element)),
      group: group ? group + (titleOf(element) ? " " + titleOf(element) : "") : "",
      card: type === "radio" ? cardOf(element, peers) : "", dialog: inDialog(element),
      options: element.tagName === "SELECT" ? [...element.options].slice(0, 400).map((option) => ({
        value: option.value, text: tidy(option.text), disabled: option.disabled, selected: option.selected })) : [],
    };
  });

  const pathOf = (address) => {
    try { return new URL(address, location.href).pathname; } catch { return ""; }
  };
  const originOf = (address) => {
    try { return new URL(address, location.href).origin; } catch { return ""; }
  };
  const words = (element) => tidy(element.innerText || "") || tidy(element.tagName === "INPUT" ? element.value || element.alt : "")
    || tidy(element.getAttribute("aria-label")) || tidy(element.getAttribute("title"))
    || tidy((element.querySelector("img[alt]") || { alt: "" }).alt) || tidy((element.querySelector("svg title") || { textContent: "" }).textContent);
  const clickable = all.filter((element) => {
    const tag = element.tagName;
    if (tag === "A") return element.hasAttribute("href") || element.getAttribute("role") === "button" || element.onclick;
    if (tag === "INPUT") return ["submit", "button", "image"].includes(element.type);
    // What is unfolded already would be folded.
    if (tag === "SUMMARY") return !up(element)?.open;
    return tag === "BUTTON" || isRole(element, "button", "link", "tab");
  }).filter(visible).slice(0, 400);
  const texts = clickable.map(words);
  const buttons = clickable.map((element, index) => {
    const box = element.getBoundingClientRect();
    const peers = clickable.filter((_, other) => texts[other].toLowerCase() === texts[index].toLowerCase());
    const around = closest(up(element) || element, "li,tr,article,section,form,fieldset,dialog,[role=dialog],div");
    const label = tidy(byIds(element, "aria-labelledby")) || tidy(element.getAttribute("aria-label"));
    const form = element.form || element.closest("form");
    return {
      number: mark(element), text: label && (texts[index].match(/\p{L}/gu) || []).length < 2 ? label : texts[index], tag: element.tagName.toLowerCase(),
      href: element.tagName === "A" ? element.href : "",
      label,
      disabled: element.disabled === true || ["aria-disabled", "aria-busy"].some((name) => element.getAttribute(name) === "true"),
      code: tidy(["name", "id", "class", "data-action"].map((name) => element.getAttribute(name) || "").join(" ")),
      form: form ? forms.indexOf(form) : -1, entry: all.indexOf(entryOf(element)), entry_text: inner(entryOf(element), 300),
      action: form ? pathOf(element.getAttribute("formaction") || form.getAttribute("action") || "") : "",
      sends_elsewhere: !!form && originOf(element.getAttribute("formaction") || form.getAttribute("action") || "") !== location.origin,
      toggles: ["aria-expanded", "aria-pressed", "aria-haspopup", "aria-selected"].some((name) => element.hasAttribute(name)),
      in_list: !!closest(up(element), "li,tr,dd,[role=listitem],[role=row],[role=toolbar]"),
      submits: (element.tagName === "BUTTON" && element.type === "submit" && !!element.form) || (element.tagName === "INPUT" && element.type !== "button"),
      dialog: inDialog(element), region: region(element), area: Math.round(box.width * box.height),
      card: cardOf(element, peers), around: inner(around, 300), trail: trailOf(element),
    };
  });

  const money = /(?:[$€£¥₹]|\b[A-Z]{3}\b|kr|zł)\s?\d|\d\s?(?:[€£¥₹$]|[A-Z]{3}\b|kr|zł)/;
  const heading = all.find((element) => /^h[12]$/i.test(element.tagName) && visible(element)) || null;
  const struckThrough = (element) => {
    for (let at = element, steps = 0; at && steps < 3; at = up(at), steps++)
      if (/^(del|s|strike)$/i.test(at.tagName) || getComputedStyle(at).textDecorationLine.includes("line-through")) return true;
    return false;
  };
  const wordless = (text) => !/\p{L}/u.test(text.replace(/\b[A-Z]{3}\b(?=\s?\d)|(?<=\d\s?)\b[A-Z]{3}\b|\bkr\b|zł|[A-Z]{1,3}(?=\$)/g, ""));
  // A list of prices shows the chosen one.
  const priced = (element) => element.tagName === "SELECT" ? tidy(element.selectedOptions[0]?.text, 60) : inner(element, 60);
  // The innermost elements with an amount.
  const leaves = [];
  for (const element of all) {
    if (leaves.length >= 120) break;
    if ((element.children.length > 3 && element.tagName !== "SELECT") || !visible(element)) continue;
    const text = priced(element);
    if (!text || text.length > 50 || !money.test(text)) continue;
    if ([...element.children].some((child) => money.test(inner(child, 60)) && visible(child))) continue;
    leaves.push(element);
  }
  // "Amount due ($)" has the currency of the number next to it.
  const bare = all.filter((element) => !element.children.length && /^\d[\d.,]*$/.test(inner(element, 20)) && visible(element)).slice(0, 40);
  const byLabel = bare.map((leaf) => {
    let row = leaf;
    while (up(row) && up(row) !== document.body && wordless(inner(up(row), 120))) row = up(row);
    const label = /^(\D+)\(([$€£]|[A-Z]{3})\)$/.exec(inner(row.previousElementSibling, 120));
    const amount = label && label[2] + " " + inner(leaf, 20);
    return label ? { leaf, row, amount, text: label[1] + amount } : null;
  }).filter(Boolean);
  const prices = leaves.slice(0, 40).map((element) => ({
    text: priced(element), struck: struckThrough(element), size: Math.round(parseFloat(getComputedStyle(element).fontSize) || 0),
    after_heading: !!heading && !!(heading.compareDocumentPosition(element) & Node.DOCUMENT_POSITION_FOLLOWING),
  }));

  // The row of an amount is its nearest ancestor with words other than a note on taxes after it; the label of a <dd> is the <dt> before it.
  const rowOf = (leaf) => {
    for (let at = leaf, steps = 0; at && at !== document.body && steps < 8; at = up(at), steps++) {
      const before = at.tagName === "DD" ? at.previousElementSibling : null;
      if (before && before.tagName === "DT") return { row: at, text: inner(before) + " " + inner(at) };
      const text = inner(at, 400);
      const note = text.startsWith(inner(leaf, 60)) && /^\W*(incl|inkl|excl|exkl|zzgl|dont\b|davon\b|of which\b)/i.test(text.slice(inner(leaf, 60).length));
      if (!wordless(text) && !note) return { row: at, text: inner(at, 400) };
    }
    return null;
  };
  // A row of a table with a cell for the currency, or with other amounts in its label: its last cells are the amount.
  const cellsOf = (row) => [...row.children].filter((cell) => (/^T[DH]$/.test(cell.tagName) || isRole(cell, "cell", "gridcell", "rowheader")) && inner(cell));
  const tableRows = all.filter((element) => (element.tagName === "TR" || isRole(element, "row")) && shown(element)).map((row) => {
    const [label, ...cells] = cellsOf(row);
    const last = cells.slice(-2).map((cell) => inner(cell, 60));
    const amount = [last.slice(-1).join(), last.join(" ")].find((text) => money.test(text) && wordless(text));
    const isRead = leaves.some((leaf) => leaf === row || cells.some((cell) => cell.contains(leaf)));
    return amount && !isRead ? { leaf: cells.at(-1), row, amount, text: inner(label) + " " + amount } : null;
  }).filter(Boolean);
  const found = leaves.filter(shown).map((leaf) => ({ leaf, amount: priced(leaf), ...rowOf(leaf) }))
    .filter((each) => each.row && !tableRows.some(({ row }) => row.contains(each.leaf))).concat(tableRows, byLabel);
  // Whether an amount is the price of an option, such as a delivery method: "chosen", "unchosen", or "" for none.
  const optionOf = ({ leaf, row }) => {
    const OPTION = "input[type=radio],[role=radio]";
    const named = closest(leaf, "label");
    const inside = row.querySelectorAll(OPTION);
    const option = closest(leaf, OPTION) || (named && named.control && named.control.matches(OPTION) ? named.control : inside.length === 1 ? inside[0] : null);
    if (!option) return "";
    return option.checked === true || option.getAttribute("aria-checked") === "true" ? "chosen" : "unchosen";
  };
  const isRow = (element) => /^(tr|li|dd)$/i.test(element.tagName) || isRole(element, "row", "listitem");
  // Columns of labels and of amounts have no rows; the text rules pair them.
  const amounts = found.filter((each) => isRow(each.row) || found.filter((other) => other.row === each.row).length === 1)
    .map((each) => ({ amount: each.amount, text: each.text, struck: struckThrough(each.leaf), group: all.indexOf(closest(up(each.row), "table,dl,[role=table],[role=grid]") || up(each.row)), option: optionOf(each) }));

  // How many steps follow the current one, in a list of steps; -1 without one.
  const stepsAfter = () => {
    for (const list of all.filter((element) => /^(OL|UL|NAV)$/.test(element.tagName) || isRole(element, "list"))) {
      const steps = [...list.children].filter((step) => inner(step, 80));
      const marks = (step) => step.matches("[aria-current=step]") || !!step.querySelector("[aria-current=step]")
        || (list.tagName === "OL" && /(^|[\s_-])(active|current)([\s_-]|$)/i.test(step.getAttribute("class") || ""));
      const current = steps.filter(marks);
      if (steps.length > 2 && current.length === 1 && visible(list) && !steps.some((step) => money.test(inner(step))))
        return steps.length - 1 - steps.indexOf(current[0]);
    }
    return -1;
  };

  const said = (selector, name) => {
    const found = document.querySelector(selector);
    return found ? tidy(found.getAttribute("content") || (/^(DATA|METER)$/.test(found.tagName) && found.getAttribute("value")) || found.getAttribute("href") || (name ? found.getAttribute(name) : "") || inner(found)) : "";
  };
  // The shop's own data: JSON, or an assignment of nothing but JSON.
  const data = [...document.scripts].map((script) => {
    const text = (script.textContent || "").slice(0, 300000).trim();
    if (/^application\/json$/i.test(script.type)) return text;
    const assigned = /^(text\/javascript|module)?$/i.test(script.type) && /^(?:(?:var|let|const) |window\.|window\[")[\w$"\].]+ ?= ?(\{[\s\S]*\})\s*;?$/.exec(text);
    return assigned ? assigned[1] : "";
  }).filter((text) => /price|amount|total/i.test(text)).slice(0, 5);
  const alerts = all.filter((element) => visible(element) && (
    ["alert", "status", "alertdialog"].includes(element.getAttribute("role") || "") || element.getAttribute("aria-live") === "assertive"
    || /(^|[\s_-])(error|errors|errorlist|alert|invalid-feedback|warning|message|messages|toast|notice|flash)([\s_-]|$)/i.test(element.getAttribute("class") || "")))
    .map((element) => inner(element, 200)).filter(Boolean);
  let text = (document.body ? document.body.innerText : "") || "";
  for (const element of all) if (element.shadowRoot) for (const child of element.shadowRoot.children)
    if (text.length < TEXT && visible(child)) text += "\n" + (child.innerText || "");

  return {
    url: location.href, title: tidy(document.title), heading: inner(heading), language: document.documentElement.lang || "",
    text: text.slice(0, TEXT), alerts: [...new Set(alerts)].slice(0, 20), controls, buttons, prices, amounts,
    steps_after: stepsAfter(),
    frames: all.filter((element) => element.tagName === "IFRAME" && visible(element)).map((element) => {
      const box = element.getBoundingClientRect();
      return { address: element.src || "", title: tidy(element.title || element.name), area: Math.round(box.width * box.height) };
    }),
    json_ld: [...document.querySelectorAll('script[type="application/ld+json"]')].slice(0, 10).map((script) => (script.textContent || "").slice(0, 100000)),
    data,
    machine_values: all.filter((element) => element.matches("data[value],meter[value],[itemprop=price][content]") && visible(element)).slice(0, 40)
      .map((element) => element.getAttribute("content") || element.getAttribute("value") || ""),
    declared: {
      price: said('meta[property="product:price:amount"],meta[property="og:price:amount"],[itemprop=price],[property=price],[property="schema:price"]', "content"),
      currency: said('meta[property="product:price:currency"],meta[property="og:price:currency"],[itemprop=priceCurrency],[property=priceCurrency],[property="schema:priceCurrency"]', "content"),
      availability: said('meta[property="product:availability"],[itemprop=availability],[property$="schema:availability"]', "content"),
      order_number: said("[itemprop=orderNumber],[property$=orderNumber]", "content"),
      total: said("[itemprop=totalPaymentDue] [itemprop=price],[property$=totalPaymentDue] [property$=price]", "content"),
    },
    currencies: [...document.querySelectorAll("[data-currency],[data-currency-code]")].slice(0, 10)
      .map((element) => tidy(element.getAttribute("data-currency") || element.getAttribute("data-currency-code"), 3)).filter(Boolean),
  };
}
