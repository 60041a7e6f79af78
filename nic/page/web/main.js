/* Which view there is, and how the page begins. */
function view() {
  const hash = location.hash.slice(1), isFabric = hash === "fabric" || hash.startsWith("fabric=");
  pause(); if (Fabric.told) Fabric.pause();
  $("cable-view").hidden = isFabric;
  $("fabric-view").hidden = !isFabric;
  for (const [id, isHere] of [["to-cable", !isFabric], ["to-fabric", isFabric]]) {
    if (isHere) $(id).setAttribute("aria-current", "page"); else $(id).removeAttribute("aria-current");
  }
  if (isFabric) Fabric.recall(hash.slice("fabric=".length)); else recall(hash);
}
document.addEventListener("keydown", event => {
  const tag = event.target.tagName, isFabric = $("cable-view").hidden;
  if (tag === "INPUT" || tag === "SELECT" || (tag === "BUTTON" && event.key === " ")) return;
  if (!isFabric && key(event)) event.preventDefault();
  else if (event.key === " ") { $(isFabric ? "f-play" : "play").click(); event.preventDefault(); }
  else if (event.key === "s") $(isFabric ? "f-step" : "step").click();
});
window.addEventListener("resize", () => { if ($("cable-view").hidden) Fabric.draw(); else if (told) draw(); });
window.addEventListener("hashchange", view);
(async () => {
  const packed = Uint8Array.from(atob($("engine").textContent.trim()), letter => letter.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  exports = (await WebAssembly.instantiate(await new Response(stream).arrayBuffer(), {})).instance.exports;
  build(); Fabric.build(); view();
  document.body.dataset.ready = "1";
})();
