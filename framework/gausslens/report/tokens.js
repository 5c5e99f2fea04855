// Attention beside its tokens: draws the map that the sliders reach, all heads of its layer small, and tells each cell.
(() => {
  "use strict";
  const STEPS = 4095, tip = document.getElementById("tip");
  const number = (value) => {
    const text = Math.abs(value) >= 1e6 || (value && Math.abs(value) < 1e-3)
      ? value.toExponential(2) : String(Number(value.toPrecision(3)));
    return text.replaceAll("-", "\u2212");
  };
  const channels = (colour) => [1, 3, 5].map((i) => parseInt(colour.slice(i, i + 2), 16));
  const shade = (stops, share) => {
    const at = share * (stops.length - 1), low = Math.min(Math.floor(at), stops.length - 2);
    return stops[low].map((c, i) => Math.round(c + (stops[low + 1][i] - c) * (at - low)));
  };
  const opened = async (text) => {
    const packed = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
    const planes = new Uint8Array(await new Response(stream).arrayBuffer()), half = planes.length / 2;
    return Uint16Array.from({ length: half }, (_, i) => planes[i] * 256 + planes[half + i]);
  };

  for (const box of document.querySelectorAll(".tokens")) {
    const shape = JSON.parse(box.dataset.shape), [low, high, power] = JSON.parse(box.dataset.range);
    const [down, across] = shape.slice(-2), size = down * across;
    const stops = box.dataset.colours.split(" ").map(channels), units = box.dataset.units ? " " + box.dataset.units : "";
    const sliders = [...box.querySelectorAll(":scope > .dials input")];
    const labels = sliders.map((slider) => JSON.parse(slider.dataset.labels));
    const heads = sliders.findIndex((slider) => slider.ariaLabel === "head");
    const sheet = box.querySelector(".sheet"), pixels = sheet.querySelector(".pixels"), image = pixels.querySelector("img");
    const sides = { keys: [...sheet.querySelectorAll(".keys > span")], queries: [...sheet.querySelectorAll(".queries > span")] };
    const thumbs = box.querySelector(":scope > .thumbs");
    const cursor = document.createElement("div");
    cursor.className = "cursor";
    cursor.hidden = true;
    pixels.append(cursor);
    let stored = null, at = null;

    const places = () => sliders.map((slider) => Number(slider.value));
    const mapAt = (turned) => turned.reduce((map, place, i) => map * labels[i].length + place, 0);
    // The share of the colours follows a power of the value.
    const value = (step) => low + (high - low) * ((step - 1) / (STEPS - 1)) ** (1 / power);
    const picture = (map) => {
      const canvas = document.createElement("canvas");
      canvas.width = across;
      canvas.height = down;
      const made = new ImageData(across, down);
      for (let i = 0; i < size; i += 1) {
        const step = stored[map * size + i];
        if (!step) continue;
        made.data.set(shade(stops, (step - 1) / (STEPS - 1)), 4 * i);
        made.data[4 * i + 3] = 255;
      }
      canvas.getContext("2d").putImageData(made, 0, 0);
      return canvas.toDataURL();
    };

    const leave = () => {
      at = null;
      cursor.hidden = true;
      tip.hidden = true;
      for (const side of Object.values(sides)) side.forEach((label) => label.classList.remove("at"));
    };
    const tell = (i, j) => {
      leave();
      at = [i, j];
      cursor.hidden = false;
      cursor.style.left = `calc(var(--side) * ${j})`;
      cursor.style.top = `calc(var(--side) * ${i})`;
      sides.queries[i].classList.add("at");
      sides.keys[j].classList.add("at");
      const step = stored[mapAt(places()) * size + i * across + j];
      const said = step ? number(value(step)) + units : box.dataset.missing || "no value";
      tip.textContent = `query ${sides.queries[i].textContent}, key ${sides.keys[j].textContent}: ${said}`;
      tip.hidden = false;
      const place = cursor.getBoundingClientRect();
      tip.style.left = Math.max(4, Math.min(place.right + 8, innerWidth - tip.offsetWidth - 8)) + "px";
      tip.style.top = Math.min(place.bottom + 8, innerHeight - tip.offsetHeight - 8) + "px";
    };

    const grid = () => {
      if (heads < 0 || !thumbs) return;
      const turned = places();
      if (!thumbs.children.length) {
        labels[heads].forEach((label, place) => {
          const button = document.createElement("button"), small = new Image();
          button.type = "button";
          button.append(small, `head ${label}`);
          small.alt = "";
          button.addEventListener("click", () => {
            sliders[heads].value = place;
            sliders[heads].dispatchEvent(new Event("input", { bubbles: true }));
          });
          thumbs.append(button);
        });
        thumbs.hidden = false;
      }
      [...thumbs.children].forEach((button, place) => {
        button.setAttribute("aria-pressed", String(place === turned[heads]));
        button.firstChild.src = picture(mapAt(turned.map((other, i) => (i === heads ? place : other))));
      });
    };
    const turn = () => {
      if (!stored) return;
      leave();
      sliders.forEach((slider, i) => {
        slider.nextElementSibling.textContent = labels[i][slider.value];
        slider.setAttribute("aria-valuetext", labels[i][slider.value]);
      });
      image.src = picture(mapAt(places()));
      grid();
    };
    sliders.forEach((slider) => slider.addEventListener("input", turn));

    pixels.addEventListener("pointermove", (event) => {
      if (!stored) return;
      const place = pixels.getBoundingClientRect();
      const j = Math.floor((event.clientX - place.left) / place.width * across);
      const i = Math.floor((event.clientY - place.top) / place.height * down);
      if (i >= 0 && j >= 0 && i < down && j < across && !(at && at[0] === i && at[1] === j)) tell(i, j);
    });
    pixels.addEventListener("pointerleave", leave);
    sheet.addEventListener("focusout", leave);
    sheet.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
      if (event.key === "Escape") { leave(); return; }
      const ends = { Home: [0, 0], End: [down - 1, across - 1] }[event.key];
      if (!stored || !(ends || event.key in moves)) return;
      event.preventDefault();
      const [i, j] = ends ?? (at ? at.map((place, k) => place + moves[event.key][k]) : [0, 0]);
      if (i < 0 || j < 0 || i >= down || j >= across) return;
      tell(i, j);
      cursor.scrollIntoView({ block: "nearest", inline: "nearest" });
      tell(i, j);
    });

    // The numbers are opened when the map comes near: a page may hold many.
    const near = new IntersectionObserver((seen) => {
      if (!seen.some(({ isIntersecting }) => isIntersecting)) return;
      near.disconnect();
      opened(box.dataset.maps).then((numbers) => {
        stored = numbers;
        turn();
        const dials = box.querySelector(":scope > .dials");
        if (dials) dials.hidden = false;
        box.classList.add("ready");
      });
    }, { rootMargin: "600px" });
    near.observe(box);
  }
})();
