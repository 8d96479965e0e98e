"use strict";

const at = (id) => document.getElementById(id);
const size = (bytes) => (bytes < 1000 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);
const time = (seconds) => (seconds < 1 ? `${(1000 * seconds).toFixed(0)} ms` : `${seconds.toFixed(2)} s`);

let last = null;

function made(parent, tag, text = "", kind = "") {
  const node = document.createElement(tag);
  if (text) node.textContent = text;
  if (kind) node.className = kind;
  parent.append(node);
  return node;
}

function drawn(tag, attributes, text = "") {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.textContent = text;
  at("timeline").append(node);
}

function fail(reason) {
  at("error").textContent = reason;
  at("error").hidden = false;
}

async function received(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new Error("deepshare private ui has ended: start it again");
  }
  const said = await response.json();
  if (!response.ok) throw new Error(said.error);
  return said;
}

async function describe() {
  const about = await received("/about");
  const [channels, height, width] = about.size;
  const kind = channels === 1 ? "grey" : "colour";
  at("where").textContent =
    `${about.server}. It takes ${width}×${height} pixels in ${kind} and knows ${about.classes} classes; ` +
    `your pool is good for ${about.left.toLocaleString("en")} more pictures.`;
  at("size").textContent = `, ${width}×${height} as the network takes it`;
  if (about.samples && at("samples").hidden) {
    for (let number = 0; number < about.samples; number++) {
      const button = made(at("samples"), "button");
      button.type = "button";
      button.ariaLabel = `Sample ${number + 1}`;
      const picture = made(button, "img");
      picture.src = `/samples/${number}.png`;
      picture.alt = "";
      button.addEventListener("click", async () => ask(await (await fetch(picture.src)).blob()));
    }
    at("samples").hidden = false;
  }
}

async function ask(picture) {
  if (at("drop").classList.contains("busy")) return;
  at("drop").classList.add("busy");
  at("error").hidden = true;
  try {
    last = await received("/ask", { method: "POST", headers: { "Content-Type": "application/octet-stream" }, body: picture });
    show();
    await describe();
  } catch (error) {
    fail(error.message);
  } finally {
    at("drop").classList.remove("busy");
  }
}

function show() {
  at("answer").hidden = false;
  at("class").textContent = last.classes[0].name;
  at("bars").replaceChildren();
  for (const { name, probability } of last.classes) {
    const row = made(at("bars"), "li");
    made(row, "span", name, "name").title = name;
    if (probability === null) continue;
    made(made(row, "span", "", "bar"), "i").style.width = `${100 * probability}%`;
    made(row, "span", `${(100 * probability).toFixed(1)}%`, "share");
  }
  const scoreless = last.classes[0].probability === null;
  at("bars").classList.toggle("scoreless", scoreless);
  at("scoreless").hidden = !scoreless;
  at("figures").replaceChildren();
  const figures = [
    ["from picture to class", time(last.seconds)],
    ["you sent", size(last.client_bytes)],
    ["the server sent", size(last.server_bytes)],
    ["you sent before the picture", size(last.before_bytes)],
    ["gates computed", last.comparisons.toLocaleString("en")],
    ["rounds", last.rounds.toLocaleString("en")],
  ];
  for (const [name, value] of figures) {
    made(at("figures"), "dt", name);
    made(at("figures"), "dd", value);
  }
  at("picture").src = last.picture;
  at("share").src = last.share;
  at("words").textContent = `${last.words.join(" ")} …`;
  at("dealt").textContent = size(last.dealer_bytes);
  timeline();
}

// One row a layer: a line from the last frame of the layer before to its own last frame, and what both sent at its end.
function timeline() {
  const svg = at("timeline"), layers = last.layers, row = 26, top = 20;
  const whole = svg.clientWidth, names = Math.min(130, whole * 0.3), sizes = whole < 500 ? 62 : 80;
  const begin = names + 8, room = whole - begin - 2 * sizes - 8, bottom = top + row * layers.length;
  const end = Math.max(...layers.map((layer) => layer.end)) || 1;
  const most = Math.max(...layers.map((layer) => Math.max(layer.client, layer.server)));
  const x = (seconds) => begin + (room * seconds) / end;
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${whole} ${bottom + 20}`);
  svg.setAttribute("height", bottom + 20);
  drawn("text", { x: whole - sizes, y: 12, "text-anchor": "end", class: "client" }, "you");
  drawn("text", { x: whole, y: 12, "text-anchor": "end", class: "server" }, "server");
  let before = 0;
  layers.forEach((layer, number) => {
    const y = top + row * number;
    drawn("line", { x1: 0, x2: whole, y1: y, y2: y });
    const letters = Math.floor(names / 6.6);
    const name = layer.name.length > letters ? `${layer.name.slice(0, letters - 1)}…` : layer.name;
    drawn("text", { x: 0, y: y + 17 }, name);
    drawn("rect", { x: x(before), y: y + 11, width: Math.max(1, x(layer.end) - x(before)), height: 4, class: "wait" });
    for (const [who, up] of [["client", 4], ["server", 14]]) {
      if (!layer[who]) continue;
      const width = Math.max(3, room * 0.08 * (layer[who] / most));
      drawn("rect", { x: Math.max(begin, x(layer.end) - width), y: y + up, width, height: 8, rx: 2, class: who });
    }
    drawn("text", { x: whole - sizes, y: y + 17, "text-anchor": "end", class: "soft" }, layer.client ? size(layer.client) : "–");
    drawn("text", { x: whole, y: y + 17, "text-anchor": "end", class: "soft" }, layer.server ? size(layer.server) : "–");
    before = layer.end;
  });
  drawn("line", { x1: 0, x2: whole, y1: bottom, y2: bottom });
  drawn("text", { x: begin, y: bottom + 15, class: "soft" }, "0");
  drawn("text", { x: begin + room, y: bottom + 15, "text-anchor": "end", class: "soft" }, time(end));
}

at("file").addEventListener("change", (event) => {
  if (event.target.files.length) ask(event.target.files[0]);
  event.target.value = "";
});
document.addEventListener("dragover", (event) => {
  event.preventDefault();
  at("drop").classList.add("over");
});
document.addEventListener("dragleave", () => at("drop").classList.remove("over"));
document.addEventListener("drop", (event) => {
  event.preventDefault();
  at("drop").classList.remove("over");
  if (event.dataTransfer.files.length) ask(event.dataTransfer.files[0]);
});
document.addEventListener("paste", (event) => {
  if (event.clipboardData.files.length) ask(event.clipboardData.files[0]);
});
window.addEventListener("resize", () => last && timeline());
describe().catch((error) => fail(error.message));
