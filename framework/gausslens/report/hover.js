// Shows the title of what is under the pointer at once; without it, the browser shows it after a while.
(() => {
  const tip = document.getElementById("tip");
  let held = null, title = null;
  const drop = () => { if (held && title) held.prepend(title); held = title = null; tip.hidden = true; };
  document.addEventListener("pointerover", (event) => {
    drop();
    const mark = event.target.closest("svg [class]");
    const found = mark && mark.querySelector(":scope > title");
    if (!found) return;
    held = mark; title = found; title.remove();
    tip.textContent = title.textContent;
    tip.hidden = false;
  });
  document.addEventListener("pointermove", (event) => {
    if (tip.hidden) return;
    const right = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    const above = event.clientY + 20 + tip.offsetHeight > innerHeight;
    tip.style.left = right + "px";
    tip.style.top = (above ? event.clientY - tip.offsetHeight - 10 : event.clientY + 18) + "px";
  });
  document.addEventListener("scroll", drop, { passive: true });
})();
