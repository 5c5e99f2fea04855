// One choice of layer, head and null for the whole page: sliders, maps, curves and tables follow it, and set it. Those
// of key/value heads show the one that the chosen head reads.
(() => {
  "use strict";
  const NAMES = ["layer", "head"], KV = "kv_head", chosen = { layer: "", head: "" };
  const box = document.getElementById("choose");
  // Of each head the key/value head that it reads, where that is known.
  const read = JSON.parse(box.dataset.reads ?? "{}"), heads = Object.keys(read);
  const names = [...NAMES, ...(heads.length ? [KV] : [])];
  const dials = [...document.querySelectorAll(".dials input")].filter((input) => names.includes(input.ariaLabel));
  const maps = [...document.querySelectorAll("svg[data-rows]")];
  const beside = [...document.querySelectorAll("figure[data-null]")];
  const known = { layer: new Set(), head: new Set(), [KV]: new Set() };
  for (const dial of dials) for (const label of JSON.parse(dial.dataset.labels)) known[dial.ariaLabel].add(label);
  for (const map of maps) {
    for (const label of JSON.parse(map.dataset.rows)) known.layer.add(label);
    for (const label of JSON.parse(map.dataset.columns)) known[map.dataset.heads].add(label);
  }
  for (const head of heads) if (known[KV].has(read[head])) known.head.add(head);
  const label = (name) => (name === KV ? read[chosen.head] ?? "" : chosen[name]);
  // A key/value head is the choice of a head that reads it: of the one that is chosen, if it does, else of the first.
  const wanted = (name, value) => {
    if (name !== KV) return { [name]: value };
    if (!heads.length || value === label(KV)) return {};
    return { head: heads.find((head) => read[head] === value) ?? "" };
  };
  const fields = {};
  let follows = false;

  const ring = (map) => {
    map.querySelector(".ring")?.remove();
    const i = JSON.parse(map.dataset.rows).indexOf(chosen.layer);
    const j = JSON.parse(map.dataset.columns).indexOf(label(map.dataset.heads));
    const across = Number(map.dataset.across), cells = map.querySelectorAll(".cell");
    if (i < 0 && j < 0) return;
    const at = (row, column) => cells[row * across + column];
    const first = at(Math.max(i, 0), Math.max(j, 0));
    const last = at(i < 0 ? cells.length / across - 1 : i, j < 0 ? across - 1 : j);
    const made = document.createElementNS("http://www.w3.org/2000/svg", "rect");
    const number = (cell, name) => Number(cell.getAttribute(name));
    made.setAttribute("class", "ring");
    made.setAttribute("x", number(first, "x"));
    made.setAttribute("y", number(first, "y"));
    made.setAttribute("width", number(last, "x") + number(last, "width") - number(first, "x"));
    made.setAttribute("height", number(last, "y") + number(last, "height") - number(first, "y"));
    map.append(made);
  };

  // Curves and points say in their names which head they are of.
  let named = null;
  const place = (name, text) => new RegExp("\\b" + name + " (\\S+?)(?=[,:;]|\\s|$)").exec(text)?.[1];
  const marks = () => {
    named ??= [...document.querySelectorAll("svg .faint > title, svg .dot > title, svg .near > title")]
      .map(({ parentElement: mark, textContent }) => {
        const name = place("head", textContent) === undefined && heads.length ? KV : "head";
        return { mark, layer: place("layer", textContent), name, head: place(name, textContent) };
      })
      .filter(({ head }) => head !== undefined);
    const any = chosen.layer || chosen.head;
    for (const { mark, layer, name, head } of named) {
      const on = any && (!chosen.layer || layer === undefined || layer === chosen.layer) && (!chosen.head || head === label(name));
      mark.classList.toggle("chosen", Boolean(on));
    }
  };

  const choose = (asked) => {
    const old = { ...chosen };
    for (const name of NAMES) if (name in asked) chosen[name] = known[name].has(asked[name]) ? asked[name] : "";
    if (NAMES.every((name) => old[name] === chosen[name])) return;
    for (const name of NAMES) if (fields[name]) fields[name].value = chosen[name];
    follows = true;
    for (const dial of dials) {
      const at = JSON.parse(dial.dataset.labels).indexOf(label(dial.ariaLabel));
      if (at < 0 || String(at) === dial.value) continue;
      dial.value = at;
      dial.dispatchEvent(new Event("input", { bubbles: true }));
    }
    follows = false;
    maps.forEach(ring);
    marks();
    document.dispatchEvent(new CustomEvent("chosen", { detail: Object.fromEntries(names.map((name) => [name, label(name)])) }));
  };

  const chooseNull = (name) => {
    if (fields.null) fields.null.value = name;
    for (const figure of beside) figure.classList.toggle("other", figure.dataset.null !== name);
  };

  const field = (name, words, options) => {
    const outer = document.createElement("label"), select = document.createElement("select");
    outer.append(words, select);
    for (const [value, text] of options) select.append(new Option(text, value));
    select.dataset.choose = name;
    fields[name] = select;
    box.append(outer);
    return select;
  };
  const told = (name, label) => (name === "head" && known[KV].has(read[label]) && read[label] !== label ? `${label} (key/value head ${read[label]})` : label);
  const inOrder = (labels) => [...labels].sort((a, b) => a.localeCompare(b, "en", { numeric: true }));

  for (const name of NAMES) {
    if (known[name].size < 2) continue;
    const all = ["", name === "layer" ? "all layers" : "all heads"];
    const select = field(name, name, [all, ...inOrder(known[name]).map((each) => [each, told(name, each)])]);
    select.addEventListener("change", () => choose({ [name]: select.value }));
  }
  const nulls = new Map(Object.entries(JSON.parse(box.dataset.nulls)));
  if (nulls.size > 1) field("null", "beside", [...nulls]).addEventListener("change", ({ target }) => chooseNull(target.value));
  if (nulls.size) chooseNull(nulls.keys().next().value);
  if (fields.layer || fields.head) {
    const clear = document.createElement("button");
    clear.type = "button";
    clear.textContent = "clear";
    clear.addEventListener("click", () => choose({ layer: "", head: "" }));
    box.append(clear);
  }
  box.hidden = !box.children.length;

  for (const dial of dials) {
    dial.addEventListener("input", () => {
      if (!follows) choose(wanted(dial.ariaLabel, JSON.parse(dial.dataset.labels)[dial.value]));
    });
  }
  const ofCell = (map, cell) => {
    const at = [...map.querySelectorAll(".cell")].indexOf(cell), across = Number(map.dataset.across);
    if (at < 0) return;
    const head = wanted(map.dataset.heads, JSON.parse(map.dataset.columns)[at % across]);
    choose({ layer: JSON.parse(map.dataset.rows)[Math.floor(at / across)], ...head });
  };
  for (const map of maps) {
    map.addEventListener("click", (event) => ofCell(map, event.target.closest(".cell")));
    map.addEventListener("keydown", (event) => {
      if (event.key === "Enter") ofCell(map, map.querySelector(".cell.held"));
    });
  }
  document.addEventListener("choose", ({ detail }) => choose(detail));

  // A link to a figure beside a null that is not shown shows that null.
  const follow = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target?.dataset.null) return;
    chooseNull(target.dataset.null);
    target.scrollIntoView();
  };
  addEventListener("hashchange", follow);
  document.addEventListener("click", (event) => {
    const link = event.target.closest("a[href^='#']");
    const target = link && document.getElementById(decodeURIComponent(link.hash.slice(1)));
    if (target?.dataset.null) chooseNull(target.dataset.null);
  });
  follow();
})();
