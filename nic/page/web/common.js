/* What both views use. */
"use strict";
const $ = id => document.getElementById(id);
const COLORS = { data: "#0072b2", again: "#d55e00", ack: "#009e73", nak: "#cc79a7", cnp: "#b07800", other: "#595959" };
let exports;

/* Calls into the engine: texts in and out. */
function put(text) {
  const bytes = new TextEncoder().encode(text);
  const at = exports.input_room(bytes.length);
  new Uint8Array(exports.memory.buffer, at, bytes.length).set(bytes);
}
function taken(at) {
  const length = new DataView(exports.memory.buffer).getUint32(at, true);
  return new TextDecoder().decode(new Uint8Array(exports.memory.buffer, at + 4, length));
}

/* A set-up as part of an address, in UTF-8, and back. */
function packed(setup) { return btoa(String.fromCharCode(...new TextEncoder().encode(JSON.stringify(setup)))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, ""); }
function unpacked(text) {
  const bytes = Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), letter => letter.charCodeAt(0));
  return JSON.parse(new TextDecoder().decode(bytes));
}
async function share(status) {
  try { await navigator.clipboard.writeText(location.href); $(status).textContent = "The link is copied."; } catch { $(status).textContent = "Copy the address of this page: it has everything."; }
}

/* A row with a slider. */
function slider(id, name, min, max, step) {
  const row = document.createElement("label"); row.className = "row";
  row.innerHTML = `<span>${name}</span><input type="range" id="${id}" min="${min}" max="${max}" step="${step}"><output></output>`;
  return row;
}

/* Drawing. */
function node(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  if (text !== undefined) made.textContent = text;
  return made;
}
/* A canvas that is as sharp as the screen, and its size. */
function brush(canvas) {
  const box = canvas.getBoundingClientRect(), scale = window.devicePixelRatio || 1;
  canvas.width = box.width * scale; canvas.height = box.height * scale;
  const c = canvas.getContext("2d"); c.scale(scale, scale); c.font = "12px system-ui,sans-serif";
  return [c, box.width, box.height];
}
/* A number with two digits, or all that it has in front of the point. */
function round(value) { return value >= 10 ? value.toFixed(0) : value.toPrecision(2); }
/* Lines over time. `place` has the place of a time in the window, from 0 to `span`. */
function chart(id, place, span, lines, levels) {
  const [c, width, height] = brush($(id));
  const seen = lines.map(([points]) => points.filter(([at]) => place(at) >= 0));
  const high = Math.max(...seen.flat().map(p => p[1]), ...levels.map(l => l[0]), 0.001) * 1.15;
  const x = t => 46 + place(t) / span * (width - 140), y = v => height - 16 - v / high * (height - 26);
  c.strokeStyle = "#999"; c.strokeRect(46, 8, width - 140, height - 24);
  c.fillStyle = "#595959"; c.textAlign = "right"; c.fillText("0", 40, y(0) + 4); c.fillText(round(high / 1.15), 40, y(high / 1.15) + 4);
  c.textAlign = "left";
  for (const [value, name] of levels) { c.strokeStyle = "#888"; c.setLineDash([4, 4]); c.beginPath(); c.moveTo(46, y(value)); c.lineTo(width - 94, y(value)); c.stroke(); c.setLineDash([]); c.fillText(name, width - 88, y(value) + 4); }
  let legend = 52;
  lines.forEach(([, color, name], i) => {
    c.strokeStyle = color; c.lineWidth = 2; c.setLineDash(color === COLORS.again ? [6, 3] : []); c.beginPath();
    seen[i].forEach(([at, value], n) => n ? c.lineTo(x(at), y(value)) : c.moveTo(x(at), y(value)));
    c.stroke(); c.setLineDash([]); c.fillStyle = color; if (name) { c.fillText(name, legend, 20); legend += c.measureText(name).width + 16; }
  });
}
