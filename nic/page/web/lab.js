/* The view of the labs: an experiment as `rnic lab run` runs it, and the picture that `rnic lab plot` draws of it. */
const Lab = {
  all: [], labs: [], module: null, worker: null, file: null, shown: null, setup: null,

  /* A call that takes no time. */
  ask(name, text) {
    if (text !== undefined) put(text);
    const answer = JSON.parse(taken(exports[name]()));
    if (answer.error) throw new Error(answer.error);
    return answer;
  },
  entry() { return Lab.labs.find(lab => lab.name === $("l-lab").value); },
  /* What the controls say. */
  read() {
    const task = {};
    for (const field of $("l-task").querySelectorAll("[data-key]")) {
      const isNumber = field.tagName === "INPUT" && field.value.trim() !== "" && Number.isFinite(Number(field.value));
      task[field.dataset.key] = isNumber ? Number(field.value) : field.value;
    }
    const setup = { lab: $("l-lab").value, experiment: $("l-experiment").value, student: $("l-student").value.trim(), task };
    if (Lab.file && $("l-file").value !== Lab.file.text) setup.file = $("l-file").value;
    return setup;
  },
  /* An experiment runs beside the page, which stays usable: it may take some seconds. */
  run() {
    Lab.stop();
    Lab.setup = Lab.read();
    Lab.remember();
    Lab.say("Running ...");
    Lab.show(null);
    const source = `"use strict"; let exports; ${put} ${taken}
onmessage = async ({ data: [module, text] }) => {
  exports = (await WebAssembly.instantiate(module, {})).exports;
  put(text);
  postMessage(taken(exports.lab_show()));
};`;
    const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
    Lab.worker = new Worker(address);
    URL.revokeObjectURL(address);
    Lab.worker.onmessage = ({ data }) => {
      const answer = JSON.parse(data);
      Lab.end();
      if (answer.error) { Lab.say(answer.error); return; }
      Lab.show(answer);
      Lab.say(answer.picture ? "The run has ended." : "The run has ended. It has no picture.");
    };
    Lab.worker.onerror = event => { Lab.end(); Lab.say("The run has failed: " + event.message); };
    Lab.worker.postMessage([Lab.module, JSON.stringify(Lab.setup)]);
    $("l-stop").disabled = false;
  },
  end() {
    if (Lab.worker) Lab.worker.terminate();
    Lab.worker = null;
    $("l-stop").disabled = true;
  },
  stop() { if (Lab.worker) { Lab.end(); Lab.say("The run was stopped."); } },
  say(text) { $("l-status").textContent = text; },
  /* Which labs a link can name. */
  offer() {
    const links = Lab.labs.flatMap(({ name }) => {
      const link = document.createElement("a");
      link.href = "#lab=" + name; link.textContent = name;
      return [" ", link];
    });
    $("l-status").append(" These can be opened:", ...links);
  },

  /* What came out: the picture is a file of its own, so that nothing in it can act on the page. */
  show(shown) {
    Lab.shown = shown;
    const picture = $("l-picture");
    picture.parentElement.hidden = !(shown && shown.picture);
    if (shown && shown.picture) {
      picture.src = "data:image/svg+xml;charset=utf-8," + encodeURIComponent(shown.picture);
      picture.alt = shown.title + ". The numbers below say what was measured.";
    }
    const rows = ((shown && shown.values) || []).map(cells => {
      const row = document.createElement("tr");
      for (const [index, cell] of cells.entries()) { const made = document.createElement(index ? "td" : "th"); if (!index) made.scope = "row"; made.textContent = cell; row.append(made); }
      return row;
    });
    $("l-values").replaceChildren(...rows);
    $("l-ladder").textContent = (shown && shown.text) || "";
    $("l-ladder").hidden = !(shown && shown.text);
  },

  /* The address has the lab, the experiment and the student; and the file and the choices, if there are any. */
  remember() {
    const { lab, experiment, student, file, task } = Lab.setup;
    const parts = new URLSearchParams({ lab, experiment, student });
    if (file !== undefined || Object.values(task).some(value => value !== "")) parts.set("own", packed({ file, task }));
    history.replaceState(null, "", "#" + parts);
    $("to-lab").setAttribute("href", location.hash);
  },
  recall(text) {
    const given = new URLSearchParams(text), name = given.get("lab"), isKnown = Lab.labs.some(lab => lab.name === name);
    let own = {}, fault = "";
    if (name && !isKnown) {
      const isElsewhere = Lab.all.some(lab => lab.name === name);
      fault = isElsewhere ? `The lab ${name} has no experiment for a browser: rnic lab start ${name} makes its folder.` : `There is no lab ${name}.`;
    }
    try { if (given.get("own")) own = unpacked(given.get("own")); } catch { fault = "The link is damaged: this is the lab's own experiment."; }
    if (isKnown) $("l-lab").value = name;
    $("l-student").value = given.get("student") || "student";
    Lab.choose(given.get("experiment"), own);
    /* Whoever begins here predicts first; a link shows what it is of. */
    if (fault) { Lab.say(fault); if (!isKnown) Lab.offer(); }
    else if (isKnown && (!$("l-task").childElementCount || own.task)) Lab.run();
  },
  /* Shows the experiments of a lab, and the file of one. */
  choose(experiment, own = {}) {
    Lab.end();
    const { experiments } = Lab.entry();
    $("l-experiment").replaceChildren(...experiments.map(name => new Option(name, name)));
    $("l-experiment").value = experiments.includes(experiment) ? experiment : experiments[0];
    $("l-task").replaceChildren();
    Lab.file = null; Lab.show(null);
    try { Lab.file = Lab.ask("lab_text", JSON.stringify(Lab.read())); } catch (error) { $("l-file").value = ""; Lab.say(error.message); return; }
    $("l-file-name").textContent = Lab.file.name;
    $("l-file").value = own.file ?? Lab.file.text;
    $("l-task").replaceChildren(...Lab.file.asks.map(([key, ask, choices]) => {
      const row = document.createElement("label"), field = document.createElement(choices.length ? "select" : "input");
      row.className = "ask";
      if (choices.length) field.append(new Option("choose", ""), ...choices.map(word => new Option(word, word)));
      field.dataset.key = key;
      if (own.task && own.task[key] !== undefined) field.value = own.task[key];
      const text = document.createElement("span"), name = document.createElement("b");
      name.textContent = key; text.append(name, " " + ask);
      row.append(text, field);
      return row;
    }));
    $("l-task").parentElement.hidden = !Lab.file.asks.length;
    Lab.setup = Lab.read();
    Lab.remember();
    Lab.say(Lab.file.asks.length ? "Choose, and run it." : "");
  },

  build() {
    Lab.all = Lab.ask("lab_list");
    Lab.labs = Lab.all.filter(lab => lab.experiments.length);
    $("l-lab").replaceChildren(...Lab.labs.map(lab => new Option(lab.title, lab.name)));
    $("l-lab").onchange = () => Lab.choose();
    $("l-experiment").onchange = () => Lab.choose($("l-experiment").value);
    $("l-student").onchange = () => Lab.choose($("l-experiment").value);
    $("l-run").onclick = Lab.run;
    $("l-stop").onclick = Lab.stop;
    $("l-restore").onclick = () => { if (Lab.file) $("l-file").value = Lab.file.text; };
    $("l-share").onclick = () => { Lab.setup = Lab.read(); Lab.remember(); share("l-status"); };
  },
};
