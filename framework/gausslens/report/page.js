// What the page can do beyond being read: values under the pointer or the arrow keys, and sliders over maps.
(() => {
  "use strict";
  const tip = document.getElementById("tip");
  const MARKS = ".cell,.dot,.near";
  let held = null, title = null;

  const drop = () => {
    if (held) held.classList.remove("held");
    if (held && title && !held.contains(title)) held.prepend(title);
    held = title = null;
    tip.hidden = true;
  };

  // The browser's own tooltip would come later and cover ours: so the title is taken out while ours is shown.
  const show = (mark, x, y) => {
    drop();
    const found = mark.querySelector(":scope > title");
    if (!found) return;
    held = mark; title = found; title.remove(); held.classList.add("held");
    tip.textContent = title.textContent;
    tip.hidden = false;
    place(x, y);
  };

  const place = (x, y) => {
    const left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8));
    const above = y + 24 + tip.offsetHeight > innerHeight;
    tip.style.left = left + "px";
    tip.style.top = (above ? y - tip.offsetHeight - 10 : y + 18) + "px";
  };

  document.addEventListener("pointermove", (event) => {
    const mark = event.target.closest(MARKS);
    if (!mark) { if (held) drop(); }
    else if (mark === held) place(event.clientX, event.clientY);
    else show(mark, event.clientX, event.clientY);
  });
  const beside = () => {
    const box = held.getBoundingClientRect();
    place(box.right - 8, box.bottom - 12);
  };
  document.addEventListener("scroll", () => { if (held) beside(); }, { passive: true });

  // A figure that has the focus: arrows go from value to value, Escape leaves.
  document.addEventListener("keydown", (event) => {
    const svg = event.target.closest("svg[tabindex]");
    if (!svg) return;
    const marks = [...svg.querySelectorAll(MARKS)], across = Number(svg.dataset.across) || 1;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: across, ArrowUp: -across };
    let next = held && svg.contains(held) ? marks.indexOf(held) : -1;
    if (event.key === "Escape") { drop(); return; }
    if (event.key === "Home") next = 0;
    else if (event.key === "End") next = marks.length - 1;
    else if (!(event.key in steps)) return;
    else next = next < 0 ? 0 : next + steps[event.key];
    event.preventDefault();
    if (!(next in marks)) return;
    marks[next].scrollIntoView({ block: "nearest" });
    show(marks[next], 0, 0);
    if (held) beside();
  });
  document.addEventListener("focusout", drop);

  const number = (value) => {
    const text = Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3)
      ? value.toExponential(2) : String(Number(value.toPrecision(4)));
    return text.replaceAll("-", "\u2212");
  };

  const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const shade = (stops, share) => {
    const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    const mixed = stops[low].map((c, i) => Math.round(c + (stops[low + 1][i] - c) * (at - low)));
    return "rgb(" + mixed.join(",") + ")";
  };

  const turned = (slider, labels) => {
    slider.nextElementSibling.textContent = labels[slider.value];
    slider.setAttribute("aria-valuetext", labels[slider.value]);
    return Number(slider.value);
  };

  for (const box of document.querySelectorAll(".dials.turns")) {
    const plots = [...box.parentElement.querySelectorAll(":scope > .turn")];
    const sliders = [...box.querySelectorAll("input")];
    const labels = sliders.map((slider) => JSON.parse(slider.dataset.labels));
    const turn = () => {
      drop();
      const at = sliders.reduce((place, slider, i) => place * labels[i].length + turned(slider, labels[i]), 0);
      plots.forEach((plot, i) => { plot.hidden = i !== at; });
    };
    sliders.forEach((slider) => slider.addEventListener("input", turn));
    box.hidden = false;
  }

  for (const box of document.querySelectorAll(".dials[data-map]")) {
    const cells = [...box.parentElement.querySelectorAll(":scope > .scroll > svg .cell")];
    const titles = cells.map((cell) => cell.querySelector("title"));
    const sliders = [...box.querySelectorAll("input")];
    const labels = sliders.map((slider) => JSON.parse(slider.dataset.labels));
    const stops = box.dataset.colours.split(" ").map(channels);
    const [low, high, from, to, power] = JSON.parse(box.dataset.range);
    const units = box.dataset.units ? " " + box.dataset.units : "";
    const where = titles.map((each) => each.textContent.slice(0, each.textContent.lastIndexOf(": ") + 2));
    const names = box.dataset.names ? JSON.parse(box.dataset.names) : null;
    const missingWords = box.dataset.missing || "\u2013";
    const colour = (value) => names ? box.dataset.colours.split(" ")[Math.round(value)] : shade(stops, to > from ? Math.min(Math.max((value - from) / (to - from), 0), 1) ** power : 0.5);
    let stored = null;
    const turn = () => {
      drop();
      stored ??= new DataView(Uint8Array.from(atob(box.dataset.map), (c) => c.charCodeAt(0)).buffer);
      let map = 0;
      sliders.forEach((slider, i) => { map = map * labels[i].length + turned(slider, labels[i]); });
      cells.forEach((cell, i) => {
        const step = stored.getUint16(2 * (map * cells.length + i), true), missing = step === 65535;
        const value = low + (high - low) * step / 65534;
        cell.classList.toggle("none", missing);
        cell.setAttribute("fill", missing ? "none" : colour(value));
        titles[i].textContent = where[i] + (missing ? missingWords : names ? names[Math.round(value)] : number(value) + units);
      });
    };
    sliders.forEach((slider) => slider.addEventListener("input", turn));
    box.hidden = false;
  }
})();
