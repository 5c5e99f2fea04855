// What a view may not do: each attempt writes what it met, "did" where it was let. ADDRESS is a server that counts.
const address = "ADDRESS";
const wait = (time) => new Promise((done) => setTimeout(done, time));
const never = async () => { await wait(300); throw new Error("nothing came"); };
const made = (name, more) => document.head.appendChild(Object.assign(document.createElement(name), more));
const heard = (thing, name) => new Promise((done, fail) => {
  thing.addEventListener(name, () => done());
  thing.addEventListener("error", () => fail(new Error("an error event")));
  setTimeout(() => fail(new Error("nothing came")), 1500);
});
const rings = (global) => {
  const call = new global.RTCPeerConnection({ iceServers: [{ urls: address.replace("http://", "stun:") }] });
  call.createDataChannel("a");
  return call.createOffer().then((offer) => call.setLocalDescription(offer)).then(() => wait(500));
};
// This line runs in whatever frame has this module.
try { rings(globalThis); } catch { /* as it should */ }

const tries = {
  "parent's document": () => parent.document.title,
  "parent's address": () => top.location.href,
  "parent's script": () => parent.eval("1"),
  "its own frame": () => { if (frameElement === null) throw new Error("null"); },
  "page goes away": () => { top.location = address + "/top"; },
  "local storage": () => localStorage.setItem("a", "b"),
  "session storage": () => sessionStorage.setItem("a", "b"),
  "cookie": () => { document.cookie = "a=b"; },
  "database": () => heard(indexedDB.open("a"), "success"),
  "caches": () => caches.open("a"),
  "fetch": () => fetch(address + "/fetch"),
  "request": () => {
    const asked = new XMLHttpRequest();
    asked.open("GET", address + "/xhr");
    asked.send();
    return heard(asked, "load");
  },
  "beacon": () => { navigator.sendBeacon(address + "/beacon"); return never(); },
  "socket": () => heard(new WebSocket(address.replace("http", "ws")), "open"),
  "events": () => heard(new EventSource(address + "/events"), "open"),
  "connection": () => rings(globalThis),
  "connection of a child": () => rings(document.body.appendChild(document.createElement("iframe")).contentWindow),
  "itself in a child": () => {
    const frame = document.createElement("iframe");
    const { module } = JSON.parse(document.getElementById("given").textContent);
    frame.srcdoc = `<a id="gausslensReady"></a><script type="module">${module}</` + "script>";
    document.body.append(frame);
    return never();
  },
  "picture": () => heard(made("img", { src: address + "/picture" }), "load"),
  "script": () => heard(made("script", { src: address + "/script" }), "load"),
  "script of text": () => {
    made("script", { textContent: "globalThis.ran = 1" });
    if (!globalThis.ran) throw new Error("it did not run");
  },
  "style": () => heard(made("link", { rel: "stylesheet", href: address + "/style" }), "load"),
  "import": () => import(address + "/import"),
  "import of data": () => import("data:text/javascript,export default 1"),
  "worker": () => heard(new Worker("data:text/javascript,postMessage(1)"), "message"),
  "font": () => new FontFace("a", `url(${address}/font)`).load(),
  "eval": () => eval("1"),
  "window": () => { if (!open(address + "/window")) throw new Error("null"); },
  "form": () => {
    const form = document.body.appendChild(document.createElement("form"));
    form.action = address + "/form";
    form.submit();
    return never();
  },
  "frame": () => {
    document.body.appendChild(document.createElement("iframe")).src = address + "/frame";
    return never();
  },
};

export default async function draw(element) {
  const went = {};
  for (const [name, attempt] of Object.entries(tries)) {
    try { await attempt(); went[name] = "did"; } catch (error) { went[name] = String(error); }
  }
  element.textContent = JSON.stringify(went);
}
