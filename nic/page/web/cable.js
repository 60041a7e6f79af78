/* The view of two NICs and a cable. */
const SLIDERS = [
  ["latency_us", "Cable", 1, 200, 1, v => v + " us"],
  ["loss", "Loss", 0, 20, 0.5, v => v + " %"],
  ["rate_gbps", "Port", 0.1, 10, 0.1, v => v + " Gb/s"],
  ["sender_gbps", "Your rate", 0.05, 10, 0.05, v => v + " Gb/s"],
  ["buffer", "Buffer", 4000, 400000, 4000, v => v / 1000 + " KB"],
  ["kmin", "Kmin", 0, 200000, 1000, v => v / 1000 + " KB"],
  ["kmax", "Kmax", 1000, 400000, 1000, v => v / 1000 + " KB"],
  ["pmax", "Pmax", 0, 100, 1, v => v + " %"],
];
const CHOICES = [["operation", "operation", String], ["bytes", "bytes", Number], ["messages", "messages", Number], ["cc", "cc", String], ["receiver", "receiver_us", Number]];
const DEFAULT = { seed: 1, operation: "write", bytes: 8192, messages: 4, depth: 4, mtu: 1024, timeout: 8, retry_cnt: 7,
  receiver_us: 0, cc: "off", selective_repeat: false, actions: [],
  sliders: { latency_us: 10, loss: 0, rate_gbps: 1, sender_gbps: 0, buffer: 100000, kmin: 10000, kmax: 40000, pmax: 20 } };
let setup = structuredClone(DEFAULT), sliders, packets = [], samples = [], told = null, playing = false, chosen = null, last = 0;

function take(at) {
  const answer = JSON.parse(taken(at));
  if (answer.error) { pause(); $("status").textContent = answer.error; throw new Error(answer.error); }
  told = answer;
  for (const packet of answer.packets) packets[packet.id] = packet;
  sample();
  return answer;
}
function restart() {
  packets = []; samples = []; chosen = null; told = null; last = 0;
  sliders = { ...setup.sliders };
  put(JSON.stringify({ ...setup, actions: [] }));
  take(exports.set_up());
  for (const action of setup.actions) {
    take(exports.run(action.at)); put(JSON.stringify(action)); take(exports.act());
    if (action.do === "set") sliders = action.sliders;
  }
  showControls(); draw();
}
function go(until) {
  const spans = 40, from = told.now;
  for (let i = 1; i <= spans; i++) take(exports.run(from + (until - from) * i / spans));
  if (told.ended) pause();
  draw();
}
function act(action) {
  action.at = told.now;
  setup.actions.push(action);
  put(JSON.stringify(action));
  take(exports.act());
  remember(); draw();
}

/* What the charts show. */
function sample() {
  const sent = packets.reduce((sum, p) => sum + (p && p.from === 0 && p.left !== null && p.left <= told.now && p.fate !== "dropped" ? p.bytes : 0), 0);
  samples.push({ at: told.now, queue: told.queue, rate: told.rate, sent });
  if (samples.length > 4000) samples = samples.filter((_, i) => i % 2);
}

function play() { playing = true; $("play").textContent = "Pause"; $("play").setAttribute("aria-pressed", "true"); last = performance.now(); requestAnimationFrame(tick); }
function pause() { playing = false; $("play").textContent = "Play"; $("play").setAttribute("aria-pressed", "false"); }
function tick(now) {
  if (!playing) return;
  const passed = Math.min(now - last, 100) / 1000 * Number($("speed").value);
  last = now;
  go(told.now + passed);
  requestAnimationFrame(tick);
}

/* Drawing. */
function words(p) {
  return `${p.from ? "responder" : "requester"} ${p.name} PSN ${p.relative}${p.again ? " again" : ""}${p.marked ? " marked" : ""}, ${p.fate}`;
}
/* The time axis: times in which nothing is under way take a fifth of the window at most. */
function axis(span) {
  const most = span / 5, gaps = [];
  const gap = (from, to) => { if (to - from > most) gaps.push([from, to]); };
  let end = 0;
  for (const p of packets) {
    if (!p || p.sent > told.now) continue;
    gap(end, p.sent);
    end = Math.max(end, Math.min(p.arrives ?? p.left ?? told.now, told.now));
  }
  gap(end, told.now);
  const place = t => gaps.reduce((at, [from, to]) => at - (t >= to ? to - from - most : t > from ? (t - from) * (1 - most / (to - from)) : 0), t);
  const begin = Math.max(0, place(told.now) - span * 0.92);
  return { gaps, place: t => place(t) - begin };
}
function time(us) { return us < 1000 ? `${Math.round(us)} us` : us < 1e6 ? `${(us / 1000).toFixed(us < 1e4 ? 2 : 1)} ms` : `${(us / 1e6).toFixed(2)} s`; }
function draw() {
  const span = Number($("zoom").value), { gaps, place } = axis(span);
  ladder(span, gaps, place);
  $("queue").setAttribute("aria-label", `Queue over time: now ${(told.queue / 1000).toFixed(1)} KB`);
  chart("queue", place, span, [[samples.map(s => [s.at, s.queue / 1000]), COLORS.data, "queue (KB)"]], [[sliders.kmin / 1000, "Kmin"], [sliders.kmax / 1000, "Kmax"]]);
  const step = span / 60, used = [];
  for (let i = 0, j = 0; i < samples.length; i++) {
    while (samples[i].at - samples[j].at > step * 3 && j < i - 1) j++;
    const time = samples[i].at - samples[j].at;
    if (time > 0) used.push([samples[i].at, (samples[i].sent - samples[j].sent) * 8 / time / 1000]);
  }
  chart("rates", place, span, [[used, COLORS.data, "used (Gb/s)"], [samples.filter(s => s.rate).map(s => [s.at, s.rate]), COLORS.again, told.rate ? "allowed (Gb/s)" : ""]], [[sliders.rate_gbps, "port"]]);
  $("rates").setAttribute("aria-label", `Rates over time: ${told.rate ? `${told.rate.toFixed(2)} Gb/s are allowed now` : "no rate is prescribed"}`);
  const text = `${told.now.toFixed(1)} us · ${told.done} of ${setup.messages} messages${told.status ? " · " + told.status : ""}${told.ended ? " · ended" : ""}${isIgnored() ? " · not marked: without congestion control nobody reacts to a mark, and packets say so" : ""}`;
  if ($("status").textContent !== text) $("status").textContent = text;
  $("counters").textContent = told.counters.map(([name, count]) => `${name} ${count}`).join("\n");
  show();
}
function ladder(span, gaps, place) {
  const svg = $("ladder"), box = svg.getBoundingClientRect(), width = box.width || 600, height = box.height || 400, top = 34;
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const left = 84, right = width - 40, y = t => top + place(t) / span * (height - top - 8);
  const parts = rails(span, gaps, place, y, left, right, height);
  const first = packets.find(p => p && p.kind === "data");
  const seen = packets.filter(p => p && p.sent <= told.now && place(p.arrives ?? p.left ?? told.now) >= 0);
  const begins = p => p.left ?? told.now;
  for (const p of seen) p.relative = first ? (p.psn - first.psn) & 0xffffff : 0;
  /* What waits, or is being sent, is a mark beside the rail: as many as there is room for, and the number of the others. */
  const waits = p => p.fate === "queued" || begins(p) > told.now, room = Math.max(1, Math.floor((right - left - 80) / 7));
  for (const side of [0, 1]) {
    const all = seen.filter(p => p.from === side && waits(p)), x = i => side ? right - 8 - i * 7 : left + 8 + i * 7;
    all.slice(0, room).forEach((p, i) => {
      const g = packet(p);
      g.append(node("rect", { x: x(i) - 3, y: y(told.now) + 3, width: 6, height: 12, fill: p === chosen ? "#222" : color(p) }));
      parts.push(g);
    });
    if (all.length > room) parts.push(node("text", { class: "more", x: x(room), y: y(told.now) + 13, "text-anchor": side ? "end" : "start" }, `+ ${all.length - room} more`));
  }
  const names = seen.length < 60;
  for (const p of seen.filter(p => !waits(p)).slice(-400)) parts.push(line(p, p.from ? [right, left] : [left, right], y, begins(p), names));
  parts.push(node("line", { x1: left, y1: y(told.now), x2: right, y2: y(told.now), stroke: "#bbb", "stroke-dasharray": "2 4" }));
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.id : null;
  svg.replaceChildren(...parts);
  if (focused) { const again = svg.querySelector(`[data-id="${focused}"]`); if (again) again.focus({ preventScroll: true }); }
}
/* The two ends, with the times beside them. */
function rails(span, gaps, place, y, left, right, height) {
  const top = y(told.now) - place(told.now) / span * (height - 42), parts = [];
  for (const x of [left, right]) parts.push(node("line", { x1: x, y1: top, x2: x, y2: height, stroke: "#222" }));
  parts.push(node("text", { x: left, y: 20, "text-anchor": "middle" }, "requester"), node("text", { x: right, y: 20, "text-anchor": "end" }, "responder"));
  const every = span / 6;
  const hidden = gaps.reduce((sum, [from, to]) => sum + to - from, 0), start = Math.max(0, Math.floor((told.now - span - hidden) / every)) * every;
  for (let t = start; place(t) < span; t += every) {
    const gap = gaps.find(([from, to]) => t > from && t < to);
    if (gap) { t = Math.ceil(gap[1] / every - 1) * every; continue; }
    if (place(t) >= 0) parts.push(node("text", { x: left - 8, y: y(t) + 4, "text-anchor": "end", fill: "#595959" }, time(t)));
  }
  for (const [from, to] of gaps) {
    if (place(to) < 0) continue;
    const y1 = Math.max(y(from), top), y2 = y(to);
    for (const x of [left, right]) parts.push(node("line", { x1: x, y1, x2: x, y2, stroke: "#fff", "stroke-width": 3, "stroke-dasharray": "3 5" }));
    parts.push(node("text", { class: "gap", x: (left + right) / 2, y: (y1 + y2) / 2 + 4, "text-anchor": "middle", fill: "#595959" }, `no packet for ${time(to - from)}`));
  }
  return parts;
}
function color(p) { return p.kind === "data" && p.again ? COLORS.again : COLORS[p.kind]; }
/* A packet that can be chosen. */
function packet(p) {
  const g = node("g", { class: "packet", tabindex: 0, role: "button", "aria-label": words(p), "data-id": p.id });
  g.append(node("title", {}, words(p)));
  return g;
}
/* A packet on the cable, or what has become of it. */
function line(p, [a, b], y, begin, isNamed) {
  const whole = (p.arrives ?? begin + sliders.latency_us) - begin || 1, lost = p.fate === "lost" || p.fate === "dropped";
  const way = lost ? 0.45 : Math.min(1, Math.max(0, (told.now - begin) / whole));
  const x2 = a + (b - a) * way, y2 = y(begin + whole * way), x1 = a, y1 = y(begin), stroke = color(p), g = packet(p);
  g.append(node("line", { x1, y1, x2, y2, stroke: "transparent", "stroke-width": 12 }),
    node("line", { x1, y1, x2, y2, stroke, "stroke-width": p === chosen ? 4 : 2, "stroke-dasharray": p.kind === "data" ? "" : p.kind === "ack" ? "6 3" : "2 2" }));
  if (lost) g.append(node("path", { d: `M${x2 - 6} ${y2 - 6}L${x2 + 6} ${y2 + 6}M${x2 + 6} ${y2 - 6}L${x2 - 6} ${y2 + 6}`, stroke: "#222", "stroke-width": 3 }));
  else g.append(node("circle", { cx: x2, cy: y2, r: p.marked ? 6 : 4, fill: p.marked ? "#fff" : stroke, stroke, "stroke-width": 2 }));
  if (isNamed) g.append(node("text", { x: a + (b - a) * 0.12, y: y(begin + whole * 0.12) - 4, "text-anchor": p.from ? "end" : "start", style: `fill:${stroke}` }, `${p.name} ${p.relative}`));
  return g;
}
/* Whether somebody wanted to mark a packet of a NIC that looks at no marks. Its ECN field says so, and then no switch marks it. */
function isIgnored() { return setup.cc === "off" && setup.actions.some(action => action.do === "mark"); }
function show() {
  const p = chosen && packets[chosen.id];
  const open = p && (p.fate === "queued" || p.fate === "flying");
  for (const id of ["drop", "late", "mark"]) $(id).disabled = !open || (id === "late" && p.fate !== "flying");
  if (p) $("fields").textContent = words(p) + "\n" + JSON.stringify(p.fields, null, 1);
}
function choose(id) { chosen = packets[id]; draw(); }

/* Controls. */
function remember() {
  history.replaceState(null, "", "#" + packed(setup));
  $("to-cable").setAttribute("href", location.hash);
}
/* Begins with what the address has. A link that somebody damaged does no harm. */
function recall(text) {
  setup = structuredClone(DEFAULT);
  try {
    if (text) {
      const given = unpacked(text);
      setup = { ...setup, ...given, sliders: { ...setup.sliders, ...given.sliders } };
    }
    restart();
  } catch {
    setup = structuredClone(DEFAULT);
    restart();
    $("status").textContent = "The link is damaged: this is the usual set-up.";
  }
}
/* Congestion control needs hundreds of round trips before there is something to see. Nothing else shall disturb: the buffer takes
   all that is outstanding, and the timeout, perftest's, is longer than that waits. */
function makeLong() {
  Object.assign(setup, { messages: 2000, timeout: 14, sliders: { ...setup.sliders, buffer: 400000 } });
  if (Number($("zoom").value) < 2000) $("zoom").value = "2000";
  if (Number($("speed").value) < 1000) $("speed").value = "1000";
}
function build() {
  for (const [key, name, min, max, step, unit] of SLIDERS) {
    const row = slider("s-" + key, name, min, max, step), input = row.querySelector("input");
    input.addEventListener("input", () => {
      row.querySelector("output").textContent = unit(Number(input.value));
      if (key === "sender_gbps" && !$("hand").checked) return;
      sliders = { ...sliders, [key]: Number(input.value) };
      act({ do: "set", sliders });
    });
    $("sliders").append(row);
  }
  for (const [id, key, of] of CHOICES) {
    $(id).addEventListener("change", () => {
      setup = { ...setup, [key]: of($(id).value), actions: [] };
      if (key === "cc" && setup.cc !== "off") makeLong();
      setup.depth = Math.min(setup.messages, 16);
      remember(); pause(); restart();
    });
  }
  $("selective").addEventListener("change", () => { setup = { ...setup, selective_repeat: $("selective").checked, actions: [] }; remember(); pause(); restart(); });
  $("hand").addEventListener("change", () => { sliders = { ...sliders, sender_gbps: $("hand").checked ? Number($("s-sender_gbps").value) : 0 }; act({ do: "set", sliders }); showControls(); });
}
/* The controls show what there is. */
function showControls() {
  for (const [key, , , , , unit] of SLIDERS) {
    const value = key === "sender_gbps" && !sliders.sender_gbps ? sliders.rate_gbps : sliders[key];
    $("s-" + key).value = value;
    $("s-" + key).parentElement.querySelector("output").textContent = unit(value);
  }
  $("hand").checked = sliders.sender_gbps > 0;
  for (const [id, key] of CHOICES) $(id).value = String(setup[key]);
  $("selective").checked = setup.selective_repeat;
  if (setup.cc !== "off") $("score").textContent = "Make the port slower: the sender has to find out.";
  else $("score").textContent = $("hand").checked ? "Keep the port busy and the queue between Kmin and Kmax." : "";
}
$("play").onclick = () => playing ? pause() : play();
$("step").onclick = () => { pause(); if (told.ended) return; take(exports.step(1e6)); draw(); };
$("reset").onclick = () => { pause(); setup.actions = []; setup.sliders = { ...sliders }; remember(); restart(); };
$("zoom").onchange = () => draw();
$("share").onclick = () => { remember(); share("status"); };
$("drop").onclick = () => chosen && act({ do: "drop", packet: chosen.id });
$("late").onclick = () => chosen && act({ do: "delay", packet: chosen.id, by: 50 });
$("mark").onclick = () => chosen && act({ do: "mark", packet: chosen.id });
$("ladder").addEventListener("click", e => { const g = e.target.closest("g.packet"); if (g) choose(Number(g.dataset.id)); });
$("ladder").addEventListener("mouseover", e => { const g = e.target.closest("g.packet"); if (g && !chosen) { const p = packets[g.dataset.id]; $("fields").textContent = words(p) + "\n" + JSON.stringify(p.fields, null, 1); } });
/* A key at a packet. Returns whether it means something. */
function key(event) {
  const id = event.target.dataset && event.target.dataset.id;
  if (id === undefined || !["Enter", "d", "l", "m"].includes(event.key)) return false;
  choose(Number(id));
  const button = { d: "drop", l: "late", m: "mark" }[event.key];
  if (button && !$(button).disabled) $(button).click();
  return true;
}
/* The log of the present run, as the native program writes it: for tests. */
window.rnicLog = until => { put(JSON.stringify(setup)); return taken(exports.log(until)); };
