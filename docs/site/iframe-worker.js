// Search where the site is read from disk: there a browser starts no worker, and a frame of the page stands in for it.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.waiting = [];
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      const load = (source) => new Promise((done) => {
        const script = this.inside.document.createElement("script");
        script.src = new URL(source, document.baseURI);
        script.onload = done;
        this.inside.document.body.appendChild(script);
      });
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = (...sources) => Promise.all(sources.map(load));
      load(url).then(() => {
        this.ready = true;
        this.waiting.splice(0).forEach((data) => this.postMessage(data));
      });
    }
    postMessage(data) {
      if (this.ready) this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data }));
      else this.waiting.push(data);
    }
  };
}
