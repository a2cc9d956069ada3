// Returns the page as one document without scripts and resources; what was computed of its looks is in `style`. Reads only.
() => {
  const MOST = 6000;
  const DROPPED = /^(STYLE|LINK|BASE|NOSCRIPT|OBJECT|EMBED|CANVAS|VIDEO|AUDIO|SOURCE)$/;
  const made = document.implementation.createHTMLDocument("");
  let count = 0;
  const looks = (element, copy) => {
    const style = getComputedStyle(element), box = element.getBoundingClientRect();
    const kept = [`display:${style.display.replace(/[^a-z-]/g, "")}`];
    if (style.visibility !== "visible") kept.push("visibility:hidden");
    if (Number(style.opacity) < 0.05) kept.push("opacity:0");
    if (style.textDecorationLine.includes("line-through")) kept.push("text-decoration:line-through");
    if (style.display !== "none" && style.display !== "contents" && style.display !== "inline") {
      if (box.right <= 0) kept.push("position:absolute", "left:-9999px");
      else if ((box.width < 2 || box.height < 2) && style.overflow !== "visible")
        kept.push("position:absolute", "overflow:hidden", "width:1px", "height:1px");
    }
    copy.setAttribute("style", kept.join(";"));
  };
  const state = (element, copy) => {
    for (const name of ["checked", "selected", "disabled"]) if (name in element) copy.toggleAttribute(name, element[name] === true);
    if (/^(INPUT|TEXTAREA)$/.test(element.tagName) && !["radio", "checkbox", "submit", "button", "reset", "image"].includes(element.type)) {
      copy.removeAttribute("value");
      if (element.value) element.tagName === "INPUT" ? copy.setAttribute("value", "…") : copy.append("…");
    }
  };
  const copyOf = (element) => {
    const isData = element.tagName === "SCRIPT" && element.type === "application/ld+json";
    if (++count > MOST || DROPPED.test(element.tagName) || (element.tagName === "SCRIPT" && !isData)) return null;
    if (element.tagName === "INPUT" && element.type === "hidden") return null;
    let copy;
    try { copy = made.createElement(element.tagName.toLowerCase()); } catch { return null; }
    for (const { name, value } of element.attributes) try { copy.setAttribute(name, value); } catch { continue; }
    if (isData) { copy.append(element.textContent); return copy; }
    if (document.body && document.body.contains(element) || element.getRootNode() !== document) looks(element, copy);
    if (element.tagName === "IFRAME") { copy.setAttribute("title", element.src.split("/")[2] || ""); return copy; }
    if (element.tagName !== "TEXTAREA") children(element, copy);
    state(element, copy);
    if (element.shadowRoot) {
      const shadow = made.createElement("template");
      shadow.setAttribute("shadowrootmode", "open");
      children(element.shadowRoot, shadow.content);
      copy.prepend(shadow);
    }
    return copy;
  };
  const children = (from, to) => {
    for (const node of from.childNodes) {
      const copy = node.nodeType === Node.TEXT_NODE ? node.data.slice(0, 1000) : node.nodeType === Node.ELEMENT_NODE ? copyOf(node) : null;
      if (copy !== null) to.append(copy);
    }
  };
  const root = copyOf(document.documentElement);
  root.setAttribute("data-path", location.pathname);
  return root.outerHTML;
}
