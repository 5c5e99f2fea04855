// Where a page has views of plugins: each gets its frame when it comes near. Where it fails, what stands in for it is shown.
(() => {
  "use strict";
  const PATIENCE = 30000, MARGIN = "800px";
  const views = new Map();
  const framed = (view) => {
    const frame = view.querySelector("template").content.firstElementChild.cloneNode(true);
    const end = (why) => {
      clearTimeout(late);
      if (why === undefined || !views.has(frame)) return;
      views.delete(frame);
      frame.remove();
      view.classList.remove("framed");
      const said = document.createElement("p");
      said.className = "failed";
      said.textContent = "The view failed, and this stands in for it: " + why;
      view.prepend(said);
    };
    const late = setTimeout(() => end("it took more than " + PATIENCE / 1000 + " seconds"), PATIENCE);
    let loads = 0;
    frame.addEventListener("load", () => { loads += 1; if (loads > 1) end("it went to another page"); });
    views.set(frame, end);
    view.append(frame);
  };
  addEventListener("message", ({ source, data }) => {
    for (const [frame, end] of views) {
      if (source !== frame.contentWindow || !data) continue;
      if (typeof data.failed === "string") end(data.failed.slice(0, 400));
      else if (data.drawn === true) end();
    }
  });
  const near = new IntersectionObserver((seen) => {
    for (const { isIntersecting, target } of seen) if (isIntersecting) { near.unobserve(target); framed(target); }
  }, { rootMargin: MARGIN });
  for (const view of document.querySelectorAll(".view")) { view.classList.add("framed"); near.observe(view); }
})();
