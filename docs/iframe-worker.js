// A page that was opened as a file may start no worker: the search then runs in a hidden frame. The site's offline
// plugin would fetch such a script from elsewhere.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inner = frame.contentWindow
      inner.document.open() // or Firefox puts another document there later
      inner.document.write("<!doctype html><body></body>")
      inner.document.close()
      inner.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const script = inner.document.createElement("script")
      script.src = new URL(url, location)
      this.loaded = new Promise(resolve => { script.onload = resolve })
      this.inner = inner
      inner.document.body.append(script)
    }

    postMessage(data) {
      this.loaded.then(() => this.inner.dispatchEvent(new MessageEvent("message", { data })))
    }
  }
  window.Worker = window.IFrameWorker
}
