// Tables: a column's name sorts its rows; above longer ones a field finds words, and lists keep a layer, head or variant.
(() => {
  "use strict";
  const FEW = 6, MOST = 300;
  const LISTED = ["layer", "head", "kv_head", "variant", "in", "result", "analysis", "tensor", "family", "explained by"];
  const words = (cell) => (cell.querySelector("small") ? cell.firstChild.textContent : cell.textContent).trim();
  const number = (cell) => {
    if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
    const text = cell.textContent.trim().replaceAll(",", "").replaceAll("\u2212", "-").replace("\u221e", "Infinity");
    return /^[-+]?(\d|\.\d|Infinity)/.test(text) ? parseFloat(text) : NaN;
  };

  const sortable = (table, heads, rows) => {
    heads.forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const cells = rows.map((row) => row.cells[column]);
        const numbers = new Map(rows.map((row, i) => [row, number(cells[i])]));
        const plain = cells.filter((cell) => cell.textContent.trim()).some((cell) => Number.isNaN(number(cell)) && cell.textContent.trim() !== "\u2013");
        // Numbers begin with the largest, words with the first.
        const down = head.ariaSort === "descending" ? false : head.ariaSort === "ascending" ? true : !plain;
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", down ? "descending" : "ascending");
        const missing = (value) => Number.isNaN(value);
        const order = (a, b) => {
          if (plain) return words(a.cells[column]).localeCompare(words(b.cells[column]), "en", { numeric: true }) * (down ? -1 : 1);
          const [x, y] = [numbers.get(a), numbers.get(b)];
          return missing(x) || missing(y) ? missing(x) - missing(y) : (x - y) * (down ? -1 : 1);
        };
        table.tBodies[0].append(...[...rows].sort(order));
      });
    });
  };

  const sifted = (table, names, rows) => {
    const box = document.createElement("div"), count = document.createElement("output");
    box.className = "sift";
    const labelled = (name, input) => {
      const label = document.createElement("label");
      label.append(name, input);
      box.append(label);
      return input;
    };
    const search = labelled("find", Object.assign(document.createElement("input"), { type: "search", autocomplete: "off" }));
    const lists = new Map();
    names.forEach((name, column) => {
      if (!LISTED.includes(name)) return;
      const held = [...new Set(rows.map((row) => words(row.cells[column])))];
      if (held.length < 2 || held.length > MOST) return;
      held.sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
      const select = labelled(name, document.createElement("select"));
      select.append(new Option("all", ""), ...held.map((text) => new Option(text, text)));
      select.addEventListener("change", () => sift());
      lists.set(column, { name, select, held });
    });
    const sift = () => {
      const wanted = search.value.trim().toLowerCase();
      let shown = 0;
      for (const row of rows) {
        const fits = [...lists].every(([column, { select }]) => !select.value || words(row.cells[column]) === select.value);
        row.hidden = !(fits && (!wanted || row.textContent.toLowerCase().includes(wanted)));
        shown += !row.hidden;
      }
      count.textContent = shown === rows.length ? `${rows.length} rows` : `${shown} of ${rows.length} rows`;
    };
    search.addEventListener("input", sift);
    document.addEventListener("chosen", ({ detail }) => {
      let follows = false;
      for (const { name, select, held } of lists.values()) {
        if (!(name in detail)) continue;
        select.value = held.includes(detail[name]) ? detail[name] : "";
        follows = true;
      }
      if (follows) sift();
    });
    box.append(count);
    (table.closest(".scroll") ?? table).before(box);
    sift();
  };

  for (const table of document.querySelectorAll("table")) {
    const heads = [...(table.tHead?.rows[0]?.cells ?? [])], rows = [...(table.tBodies[0]?.rows ?? [])];
    if (!heads.length || rows.length < 2) continue;
    const names = heads.map(words);
    sortable(table, heads, rows);
    if (rows.length > FEW) sifted(table, names, rows);
  }
})();
