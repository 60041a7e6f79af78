/* Which view there is, and how the page begins. */
function view() {
  const hash = location.hash.slice(1), here = hash.split("=")[0];
  const isFabric = here === "fabric", isLab = here === "lab";
  pause(); if (Fabric.told) Fabric.pause();
  if (!isLab) Lab.stop();
  for (const [name, isHere] of [["cable", !isFabric && !isLab], ["fabric", isFabric], ["lab", isLab]]) {
    $(name + "-view").hidden = !isHere;
    if (isHere) $("to-" + name).setAttribute("aria-current", "page"); else $("to-" + name).removeAttribute("aria-current");
  }
  if (isFabric) Fabric.recall(hash.slice("fabric=".length)); else if (isLab) Lab.recall(hash); else recall(hash);
}
document.addEventListener("keydown", event => {
  const tag = event.target.tagName, isFabric = !$("fabric-view").hidden;
  if (!$("lab-view").hidden || ["INPUT", "SELECT", "TEXTAREA"].includes(tag) || (tag === "BUTTON" && event.key === " ")) return;
  if (!isFabric && key(event)) event.preventDefault();
  else if (event.key === " ") { $(isFabric ? "f-play" : "play").click(); event.preventDefault(); }
  else if (event.key === "s") $(isFabric ? "f-step" : "step").click();
});
window.addEventListener("resize", () => { if (!$("fabric-view").hidden) Fabric.draw(); else if (!$("cable-view").hidden && told) draw(); });
window.addEventListener("hashchange", view);
(async () => {
  const packed = Uint8Array.from(atob($("engine").textContent.trim()), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const made = await WebAssembly.instantiate(await new Response(stream).arrayBuffer(), {});
  exports = made.instance.exports; Lab.module = made.module;
  build(); Fabric.build(); Lab.build(); view();
  document.body.dataset.ready = "1";
})();
