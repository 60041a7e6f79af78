/* The view of a fabric. A slider is part of the set-up: everything runs again, up to the same virtual time. */
const FABRIC_SLIDERS = [
  ["senders", "Senders", 1, 8, 1, v => v],
  ["buffer", "Buffer of a switch", 50, 4000, 50, v => v + " KB"],
  ["kmin", "Kmin", 0, 400, 5, v => v + " KB"],
  ["kmax", "Kmax", 5, 800, 5, v => v + " KB"],
  ["pmax", "Pmax", 0, 100, 1, v => v + " %"],
];
const FABRIC_CHOICES = [["scene", "value"], ["cc", "value"], ["pfc", "checked"], ["ecn", "checked"]];
const FABRIC_DEFAULT = { seed: 1, scene: "victim", senders: 3, buffer: 1000, pfc: true, ecn: false, kmin: 20, kmax: 100, pmax: 20, cc: "off", at: 0 };
/* What a lecturer shows first. */
const FABRIC_EXAMPLES = [
  ["Pauses: the victim suffers", {}],
  ["Drops in place of pauses", { pfc: false, buffer: 200 }],
  ["DCQCN: no standing queue", { ecn: true, cc: "dcqcn:preset=paper" }],
  ["Incast at one switch", { scene: "incast" }],
];

const Fabric = {
  setup: { ...FABRIC_DEFAULT }, parts: null, samples: [], told: null, playing: false, last: 0, goal: 0,

  take(at) {
    const answer = JSON.parse(taken(at));
    if (answer.error) { Fabric.pause(); $("f-status").textContent = answer.error; throw new Error(answer.error); }
    return answer;
  },
  hear(at) {
    Fabric.told = Fabric.take(at);
    for (const sample of Fabric.told.samples) Fabric.samples.push(sample);
  },
  /* Sets everything up, and goes on to where the page was. */
  restart(at) {
    put(JSON.stringify(Fabric.setup));
    Fabric.parts = Fabric.take(exports.fabric_set_up());
    Fabric.samples = [];
    Fabric.hear(exports.fabric_run(at));
    Fabric.remember();
    Fabric.draw();
  },
  go(until) {
    Fabric.hear(exports.fabric_run(until));
    if (Fabric.told.ended) Fabric.pause();
    Fabric.draw();
  },
  step() { Fabric.pause(); Fabric.hear(exports.fabric_step()); Fabric.remember(); Fabric.draw(); },
  play() {
    if (Fabric.told.ended) return;
    Fabric.playing = true; Fabric.last = performance.now(); Fabric.goal = Fabric.told.now;
    $("f-play").textContent = "Pause"; $("f-play").setAttribute("aria-pressed", "true");
    requestAnimationFrame(Fabric.tick);
  },
  pause() {
    const was = Fabric.playing;
    Fabric.playing = false;
    $("f-play").textContent = "Play"; $("f-play").setAttribute("aria-pressed", "false");
    if (was) Fabric.remember();
  },
  tick(now) {
    if (!Fabric.playing) return;
    const passed = Math.min(Math.max(now - Fabric.last, 0), 100) / 1000 * Number($("f-speed").value);
    Fabric.last = now;
    /* The engine goes on in parts of half a microsecond, of which a frame may be less. */
    Fabric.goal += passed;
    Fabric.go(Fabric.goal);
    requestAnimationFrame(Fabric.tick);
  },

  /* The address has the set-up and the time. */
  remember() {
    Fabric.setup.at = Fabric.told.now;
    history.replaceState(null, "", "#fabric=" + packed(Fabric.setup));
    $("to-fabric").setAttribute("href", location.hash);
  },
  recall(text) {
    Fabric.setup = { ...FABRIC_DEFAULT };
    let fault = "";
    try {
      if (text) Fabric.setup = { ...FABRIC_DEFAULT, ...unpacked(text) };
      Fabric.restart(Fabric.setup.at);
    } catch {
      fault = "The link is damaged: this is the usual set-up.";
      Fabric.setup = { ...FABRIC_DEFAULT };
      Fabric.restart(0);
    }
    Fabric.show();
    if (fault) $("f-status").textContent = fault;
  },
  change(settings) {
    Object.assign(Fabric.setup, settings);
    if (Fabric.setup.kmin > Fabric.setup.kmax) Fabric.setup[settings.kmax === undefined ? "kmax" : "kmin"] = settings.kmax ?? Fabric.setup.kmin;
    Fabric.show();
    Fabric.restart(Fabric.told ? Fabric.told.now : 0);
  },

  /* Controls. */
  show() {
    for (const [key, , , , , unit] of FABRIC_SLIDERS) {
      $("f-" + key).value = Fabric.setup[key];
      $("f-" + key).parentElement.querySelector("output").textContent = unit(Fabric.setup[key]);
    }
    for (const [key, property] of FABRIC_CHOICES) $("f-" + key)[property] = Fabric.setup[key];
    for (const key of ["kmin", "kmax", "pmax"]) $("f-" + key).disabled = !Fabric.setup.ecn;
  },
  build() {
    for (const [key, name, min, max, step] of FABRIC_SLIDERS) {
      const row = slider("f-" + key, name, min, max, step);
      row.querySelector("input").addEventListener("input", event => Fabric.change({ [key]: Number(event.target.value) }));
      $("f-sliders").append(row);
    }
    for (const [key, property] of FABRIC_CHOICES) $("f-" + key).addEventListener("change", event => Fabric.change({ [key]: event.target[property] }));
    for (const [name, settings] of FABRIC_EXAMPLES) {
      const button = document.createElement("button");
      button.textContent = name;
      button.addEventListener("click", () => Fabric.change({ ...FABRIC_DEFAULT, ...settings }));
      $("f-examples").append(button);
    }
    $("f-play").onclick = () => Fabric.playing ? Fabric.pause() : Fabric.play();
    $("f-step").onclick = Fabric.step;
    $("f-reset").onclick = () => { Fabric.pause(); Fabric.restart(0); };
    $("f-zoom").onchange = () => Fabric.draw();
    $("f-share").onclick = () => { Fabric.remember(); share("f-status"); };
  },

  /* Drawing. */
  draw() {
    const { told, samples, parts } = Fabric;
    const span = Number($("f-zoom").value), from = Math.max(0, told.now - span);
    Fabric.map();
    Fabric.ports(from, span);
    /* What each receiver got, over a tenth of the window. */
    const wide = Math.max(1, Math.round(span / 10 / parts.interval));
    const rate = flow => samples.map((sample, i) => {
      const before = samples[i - wide];
      const time = before ? wide * parts.interval : sample.at;
      return [sample.at, (sample.flows[flow] - (before ? before.flows[flow] : 0)) * 8 / time / 1000];
    });
    const senders = parts.flows.map((name, flow) => [name, flow]).filter(([name]) => name !== "victim");
    const lines = senders.map(([, flow], i) => [rate(flow), COLORS.data, i ? "" : "senders (Gb/s)"]);
    const victim = parts.flows.indexOf("victim");
    if (victim >= 0) lines.push([rate(victim), COLORS.again, "victim (Gb/s)"]);
    chart("f-rates", t => t - from, span, lines, [[parts.rates[0], "link"]]);
    const gbps = parts.flows.map((name, flow) => { const line = rate(flow); return `${name} ${line.length ? line[line.length - 1][1].toFixed(2) : "0.00"} Gb/s${told.outcomes[flow] === "failed" ? ", failed" : ""}`; });
    $("f-rates").setAttribute("aria-label", "Goodput over time: now " + gbps.join(", "));
    const drops = Object.entries(told.tally.drops).map(([why, count]) => `dropped (${why}) ${count}`);
    $("f-counters").textContent = [...gbps, "", `packets delivered ${told.tally.delivered}`, `pause frames ${told.pauses}`, `packets marked ${told.marked}`, ...drops].join("\n");
    const text = `${told.now.toFixed(1)} us${told.ended ? " · as far as this page goes" : ""}`;
    if ($("f-status").textContent !== text) $("f-status").textContent = text;
  },
  /* The share of the latest interval for which a port was paused. */
  paused(port) {
    const last = Fabric.samples[Fabric.samples.length - 1];
    return last ? Math.min(1, last.ports[port][2] / 1000 / Fabric.parts.interval) : 0;
  },
  /* The fabric as it is now. */
  map() {
    const { told, parts, setup } = Fabric, svg = $("f-map"), width = svg.getBoundingClientRect().width || 600;
    const sources = parts.flows, height = 30 + 34 * Math.max(sources.length, 4);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.style.height = height + "px";
    const at = {}, middle = height / 2, [host, hub] = width < 520 ? [68, 50] : [84, 74];
    sources.forEach((name, i) => { at[name] = [host / 2 + 4, 17 + 34 * i + (height - 34 * sources.length) / 2]; });
    parts.switches.forEach((name, i) => { at[name] = [width * (parts.switches.length > 1 ? [0.4, 0.68][i] : 0.52), middle]; });
    at.receiver = [width - host / 2 - 4, parts.switches.length > 1 ? middle - 30 : middle];
    at.idle = [width - host / 2 - 4, middle + 30];
    const drawn = [];
    parts.ports.forEach((name, port) => {
      const [a, b] = name.split(">"), [x1, y1] = at[a], [x2, y2] = at[b], paused = Fabric.paused(port);
      const last = Fabric.samples[Fabric.samples.length - 1];
      const used = last ? last.ports[port][1] * 8 / 1000 / parts.interval / parts.rates[port] : 0;
      const words = `${name}: ${(told.queues[port] / 1000).toFixed(1)} KB wait, ${Math.round(used * 100)} % used${paused ? `, paused for ${Math.round(paused * 100)} %` : ""}`;
      const g = node("g", {});
      g.append(node("title", {}, words), node("line", { x1, y1, x2, y2, stroke: "#ddd", "stroke-width": parts.rates[port] > 50 ? 12 : 6 }),
        node("line", { x1, y1, x2, y2, stroke: paused > 0.02 ? COLORS.again : COLORS.data, "stroke-width": 1 + Math.min(used, 1) * (parts.rates[port] > 50 ? 8 : 4), "stroke-dasharray": paused > 0.02 ? "5 4" : "" }));
      drawn.push(g);
    });
    const box = (x, y, w, h, name, fill, share) => {
      const g = node("g", {});
      g.append(node("rect", { x: x - w / 2, y: y - h / 2, width: w, height: h, rx: 4, fill: "#fff", stroke: "#222" }));
      if (share !== undefined) g.append(node("rect", { x: x - w / 2 + 1, y: y + h / 2 - 1 - (h - 2) * Math.min(share, 1), width: w - 2, height: (h - 2) * Math.min(share, 1), fill }));
      g.append(node("text", { x, y: y + 4, "text-anchor": "middle" }, name));
      drawn.push(g);
    };
    for (const name of [...sources, "receiver", ...(parts.switches.length > 1 ? ["idle"] : [])]) box(...at[name], host, 24, name, "#fff");
    parts.switches.forEach((name, i) => {
      box(...at[name], hub, 64, name, "#f3c9ab", told.held[i] / 1000 / setup.buffer);
      drawn.push(node("text", { x: at[name][0], y: at[name][1] + 46, "text-anchor": "middle", fill: "#595959" }, `${(told.held[i] / 1000).toFixed(0)} KB held`));
    });
    svg.replaceChildren(...drawn);
    svg.setAttribute("aria-label", "The fabric: " + parts.switches.map((name, i) => `${name} holds ${(told.held[i] / 1000).toFixed(0)} KB`).join(", "));
  },
  /* A row for each port: what waits there, when it was paused, what was marked and dropped. */
  ports(from, span) {
    const { parts, told } = Fabric, row = 46, canvas = $("f-ports");
    canvas.style.height = row * parts.ports.length + 22 + "px";
    const [c, width] = brush(canvas), left = 108, right = width - 8, seen = Fabric.samples.filter(sample => sample.at >= from);
    const x = t => left + (t - from) / span * (right - left);
    const high = Math.max(...seen.flatMap(sample => sample.ports.map(port => port[0])), ...told.queues, 20_000) * 1.1;
    parts.ports.forEach((name, port) => {
      const top = 4 + row * port, bottom = top + row - 8, y = v => bottom - v / high * (bottom - top);
      c.fillStyle = "#222"; c.textAlign = "right"; c.fillText(name, left - 6, top + 14);
      c.fillStyle = "#595959"; c.fillText((told.queues[port] / 1000).toFixed(0) + " KB", left - 6, top + 30);
      c.fillStyle = "#f8d9c4";
      for (const { at, ports } of seen) if (ports[port][2]) { const share = Math.min(1, ports[port][2] / 1000 / parts.interval); c.fillRect(x(at - parts.interval), bottom - (bottom - top) * share, x(at) - x(at - parts.interval) + 0.5, (bottom - top) * share); }
      c.fillStyle = COLORS.data; c.beginPath(); c.moveTo(x(Math.max(from, 0)), bottom);
      for (const { at, ports } of seen) c.lineTo(x(at), y(ports[port][0]));
      c.lineTo(x(told.now), y(told.queues[port])); c.lineTo(x(told.now), bottom); c.fill();
      for (const { at, ports } of seen) {
        if (ports[port][3]) { c.fillStyle = COLORS.cnp; c.fillRect(x(at) - 1, top, 2, 6); }
        if (ports[port][4]) { c.strokeStyle = "#222"; c.lineWidth = 2; c.beginPath(); c.moveTo(x(at) - 3, top + 8); c.lineTo(x(at) + 3, top + 14); c.moveTo(x(at) + 3, top + 8); c.lineTo(x(at) - 3, top + 14); c.stroke(); }
      }
      c.strokeStyle = "#999"; c.lineWidth = 1; c.strokeRect(left, top, right - left, bottom - top);
    });
    const bottom = row * parts.ports.length + 14;
    c.fillStyle = "#595959"; c.textAlign = "left"; c.fillText(`${from.toFixed(0)} us`, left, bottom);
    c.textAlign = "right"; c.fillText(`${(from + span).toFixed(0)} us · full height ${(high / 1000).toFixed(0)} KB`, right, bottom);
    canvas.setAttribute("aria-label", "Queues over time: now " + parts.ports.map((name, port) => `${name} ${(told.queues[port] / 1000).toFixed(1)} KB`).join(", "));
  },
};
/* The log of the present run, as the native program writes it: for tests. */
window.rnicFabricLog = until => { put(JSON.stringify(Fabric.setup)); return taken(exports.fabric_log(until)); };
