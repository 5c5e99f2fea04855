// In the frame of a plugin's own view: hands its module the data and the page's colours, and tells the page how it went.
(() => {
  "use strict";
  // No policy forbids these, which reach the network: so they are gone before the module runs, which runs nowhere else.
  for (const name of ["RTCPeerConnection", "webkitRTCPeerConnection"]) delete globalThis[name];
  Object.defineProperty(globalThis, "gausslensReady", { value: true });
  const given = document.getElementById("given").textContent;
  const tell = (said) => parent.postMessage(said, "*");
  const fail = (error) => {
    let text = "an error that cannot be written";
    try { text = String(error); } catch { /* it has no text */ }
    tell({ failed: text.slice(0, 400) });
  };
  let drawn = false;
  // What throws once it is drawn, as an event of its own may, leaves it standing.
  const early = (error) => { if (error && !drawn) fail(error); };
  addEventListener("error", (event) => early(event.error));
  addEventListener("unhandledrejection", (event) => early(event.reason));

  const whole = ({ type, base64, ...rest }) => {
    if (!type) return rest;
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    return { values: new globalThis[type](bytes.buffer), ...rest };
  };
  const data = () => {
    const { plain, arrays } = JSON.parse(given).data;
    return Object.fromEntries([...Object.entries(plain), ...Object.entries(arrays).map(([name, a]) => [name, whole(a)])]);
  };
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => {
    const style = getComputedStyle(document.documentElement), { colours, series, ...scales } = JSON.parse(given).theme;
    const at = (name) => style.getPropertyValue("--" + name).trim();
    const named = Object.fromEntries(colours.map((name) => [name, at(name)]));
    return { dark: dark.matches, ...named, series: series.map(at), ...scales };
  };

  globalThis.gausslensView = (draw) => {
    const again = async () => {
      const old = document.getElementById("view"), element = old.cloneNode(false);
      old.replaceWith(element);
      try {
        await draw(element, data(), theme());
        drawn = true;
        tell({ drawn: true });
      } catch (error) { fail(error); }
    };
    dark.addEventListener("change", again);
    again();
  };
  const script = document.createElement("script");
  script.type = "module";
  script.addEventListener("error", () => fail("its module imports another, which no frame may load"));
  script.textContent = JSON.parse(given).module;
  document.head.append(script);
})();
