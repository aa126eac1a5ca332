// The flame graph in its views.

const views = {};
const PAUSE = 200; // ms

const zoomTo = (frame) => views.graph.hold(() => change({ zoom: frame.path }));

function setUpViews() {
  document.body.classList.toggle("comparison", isComparison);
  views.graph = new Flames(element("graph"), "Call stacks", showFrame, zoomTo);
  const about = (frame) => { if (frame.fn >= 0) change({ about: keyOf(frame.fn) }); };
  views.callers = new Flames(element("callers"), "Callers", showFrame, about);
  views.callees = new Flames(element("callees"), "Callees", showFrame, about);
  element("group").append(...labelKeys.map((key) => make("option", { value: `label ${key}`, textContent: `label ${key}` })));
  for (const name of ["view", "group", "order"]) {
    element(name).addEventListener("change", (event) => change({ [name]: event.target.value, zoom: "" }));
  }
  element("fold").addEventListener("change", (event) => change({ fold: event.target.checked ? "1" : "", zoom: "" }));
  setUpSearch(element("search"), search);
  element("whole").addEventListener("click", () => change({ zoom: "" }));
}

// Calls `take` with the text when no key has been pressed for a moment, or at once and with true by Enter and when the focus leaves.
function setUpSearch(input, take) {
  let pause = 0;
  input.addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(() => take(input.value, false), PAUSE);
  });
  input.addEventListener("change", () => {
    clearTimeout(pause);
    take(input.value, true);
  });
}

// What the search means: a predicate of names, or null.
const searched = () => state.search === "" ? null : matcher(state.search, state.regex !== "");

function drawViews() {
  for (const name of ["view", "group", "order"]) element(name).value = state[name];
  element("fold").checked = state.fold !== "";
  if (document.activeElement !== element("search")) element("search").value = state.search;
  const isSandwich = state.view === "sandwich";
  element("graph").hidden = isSandwich;
  element("sandwich").hidden = !isSandwich;
  element("whole").disabled = state.zoom === "";
  const isHit = searched();
  element("found").textContent = state.search === "" ? ""
    : isHit === null ? "not a regular expression" : `found in ${foundText(isHit)}`;
  if (isSandwich) drawSandwich(isHit);
  else drawGraph(isHit);
  const isCrowded = (isSandwich ? [views.callers, views.callees] : [views.graph]).some((flames) => flames.isCrowded);
  element("crowded").hidden = !isCrowded;
  element("crowded").textContent = `Only the outermost ${MOST} frames are drawn: zoom in to see the others.`;
  drawSelection();
}

function foundText(isHit) {
  const { ticks, sides } = countFound(sums, isHit);
  return isComparison ? changeText(sides) : `${percent(ticks, sums.total)} (${ticksOf(ticks)})`;
}

function drawGraph(isHit) {
  const root = state.view === "inverted" ? invertedTree(sums) : callTree(sums);
  views.graph.draw(root, frameAt(root, state.zoom), { hangs: state.view !== "flame", isInverted: state.view === "inverted" }, isHit);
  follow(views.graph, root);
}

function drawSandwich(isHit) {
  const fn = functionOfKey(state.about) ?? largestFunction();
  if (fn === undefined) return;
  const { callers, callees } = sandwichTrees(sums, fn);
  element("about").textContent = `${functions.name[fn]}: ${isComparison ? changeText(callees.sides) : `${ticksOf(callees.ticks)}, ${percent(callees.ticks, sums.total)}`}`;
  views.callers.draw(callers, callers, { hangs: false, isInverted: true }, isHit);
  views.callees.draw(callees, callees, { hangs: true, isInverted: false }, isHit);
  for (const [flames, root] of [[views.callers, callers], [views.callees, callees]]) follow(flames, root);
}

// The function with the most self ticks.
function largestFunction() {
  const rows = sumFunctions(sums.stacks, (fn) => fn).sort((a, b) => b.own - a.own);
  return rows[0]?.key;
}

// The selected frame is in a tree that isn't drawn any more: its place in the new one is selected.
function follow(flames, root) {
  if (!selection?.frame || selection.flames !== flames) return;
  const path = selection.frame.path;
  const frame = frameAt(root, path);
  selection = frame.path === path ? { fn: frame.fn, frame, flames } : null;
}
