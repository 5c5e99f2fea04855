// What of a page's text cannot be read: text that lies over other text, or is cut off, and too little contrast.
(() => {
  "use strict";
  const SLACK = 2.5;
  const seen = (element) => {
    if (!element.checkVisibility({ visibilityProperty: true, opacityProperty: true })) return false;
    return !element.closest("#tip, template, [hidden], details:not([open]) > :not(summary)");
  };
  // The part of a box that no ancestor cuts away by scrolling or hiding.
  const clipped = (box, element) => {
    let { left, top, right, bottom } = box;
    for (let outer = element; outer && outer !== document.body; outer = outer.parentElement) {
      const style = getComputedStyle(outer);
      if (style.overflowX === "visible" && style.overflowY === "visible") continue;
      const edge = outer.getBoundingClientRect();
      left = Math.max(left, edge.left); right = Math.min(right, edge.right);
      top = Math.max(top, edge.top); bottom = Math.min(bottom, edge.bottom);
    }
    return { left, top, right, bottom };
  };
  const texts = () => {
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), found = [];
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const element = node.parentElement;
      if (!node.textContent.trim() || element.closest("script, style, title, select, template") || !seen(element)) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      // Letters are lower than their line: a quarter of it is room.
      for (const box of range.getClientRects()) {
        const room = box.height * 0.16, part = clipped(box, element);
        const one = { left: part.left, right: part.right, top: part.top + room, bottom: part.bottom - room };
        if (one.right - one.left > 1 && one.bottom - one.top > 1) found.push({ ...one, element, text: node.textContent.trim() });
      }
    }
    return found;
  };
  const sticky = (element) => element.closest("#choose, thead, .corner, .keys, .queries");

  globalThis.overlaps = () => {
    const all = texts().sort((a, b) => a.top - b.top), bad = [];
    let open = [];
    for (const one of all) {
      open = open.filter((other) => other.bottom > one.top + SLACK);
      for (const other of open) {
        const wide = Math.min(one.right, other.right) - Math.max(one.left, other.left);
        const high = Math.min(one.bottom, other.bottom) - Math.max(one.top, other.top);
        // What sticks to an edge while others scroll below it covers them, and has a ground of its own.
        const apart = sticky(one.element) !== sticky(other.element) && (sticky(one.element) || sticky(other.element));
        if (wide > SLACK && high > SLACK && one.element !== other.element && !apart) bad.push(`${one.text} | ${other.text}`);
      }
      open.push(one);
    }
    return bad.slice(0, 20);
  };

  // Text of a picture that leaves it is cut off or lies over what is beside it.
  globalThis.outside = () => {
    const bad = [];
    for (const text of document.querySelectorAll("svg text")) {
      if (!seen(text)) continue;
      const one = text.getBoundingClientRect(), svg = text.ownerSVGElement.getBoundingClientRect();
      const out = Math.max(svg.left - one.left, one.right - svg.right, svg.top - one.top, one.bottom - svg.bottom);
      if (out > SLACK && text.textContent) bad.push(`${text.textContent} by ${Math.round(out)} px`);
    }
    return bad.slice(0, 20);
  };

  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  canvas.canvas.width = canvas.canvas.height = 1;
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const over = (top, below) => top.slice(0, 3).map((c, i) => c * top[3] + below[i] * (1 - top[3]));
  const luminance = (colour) => {
    const [r, g, b] = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ground = (element) => {
    const layers = [];
    for (let outer = element; outer; outer = outer.parentElement) {
      const colour = rgba(getComputedStyle(outer).backgroundColor);
      if (colour[3]) layers.unshift(colour);
      if (colour[3] === 1) break;
    }
    return layers.reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };

  // WCAG 2.2, 1.4.3 (AA): 4.5 to 1, for large text 3 to 1. Text in a cell of a map stands on the cell before it.
  globalThis.faint = () => {
    const bad = new Set();
    for (const { element, text } of texts()) {
      const style = getComputedStyle(element), svg = element.closest("svg");
      const cell = svg && element.matches(".inside") ? element.previousElementSibling : null;
      const below = cell ? over(rgba(getComputedStyle(cell).fill), [255, 255, 255]) : ground(svg ?? element);
      const ink = over(rgba(svg ? style.fill : style.color), below);
      const [high, low] = [luminance(ink), luminance(below)].sort((a, b) => b - a);
      const ratio = (high + 0.05) / (low + 0.05), size = parseFloat(style.fontSize);
      const least = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700) ? 3 : 4.5;
      if (ratio < least - 0.01) bad.add(`${text.slice(0, 40)}: ${ratio.toFixed(2)}`);
    }
    return [...bad].slice(0, 20);
  };
})();
