// The views of what is selected, one at a time.

/** @type {{ graph: Flames, callers: Flames, callees: Flames, waits: Flames, exits: Flames, tree: CallTree, chart: StackChart }} */
const views = Object.create(null);
const PAUSE = 200; // ms
/** @type {Record<string, string>} */
const TAB_NAMES = { flame: "Flame graph", tree: "Call tree", chart: "Stack chart", function: "Functions", module: "Modules", process: "Processes",
  thread: "Threads", vcpu: "vCPUs", wait: "Waits", exit: "Exits", code: "Code" };

/** @type {(frame: Frame) => void} */
const zoomTo = (frame) => views.graph.hold(() => change({ zoom: frame.path }));

const SELECTS = /** @type {const} */ (["view", "group", "order"]);

function setUpViews() {
  document.body.classList.toggle("comparison", isComparison);
  views.graph = new Flames(element("graph"), "Call stacks", showFrame, zoomTo);
  /** @type {(frame: Frame) => void} */
  const about = (frame) => { if (frame.fn >= 0) change({ about: keyOf(frame.fn) }); };
  views.callers = new Flames(element("callers"), "Callers", showFrame, about);
  views.callees = new Flames(element("callees"), "Callees", showFrame, about);
  views.callees.isUpright = true;
  setUpWaits();
  setUpExits();
  views.tree = new CallTree(element("tree"), showFrame);
  views.chart = new StackChart(element("chart"), showFrame);
  listTabs();
  // Arrow keys move between tabs, as in all lists of tabs.
  element("tabs").addEventListener("keydown", (event) => {
    const step = event.key === "ArrowLeft" ? -1 : event.key === "ArrowRight" ? 1 : 0;
    if (step === 0) return;
    const next = TABS[(TABS.indexOf(state.tab) + step + TABS.length) % TABS.length];
    change({ tab: next });
    element(`tab-${next}`).focus();
  });
  for (const name of SELECTS) {
    element(name).addEventListener("change", () => change({ [name]: element(name).value, zoom: "" }));
  }
  for (const name of ["inverted", "fold"]) {
    element(name).addEventListener("change", () => change({ [name]: element(name).checked ? "1" : "", zoom: "" }));
  }
  element("heaviest").addEventListener("click", () => views.tree.openHeaviest());
  element("expand").addEventListener("click", () => views.tree.openAll());
  element("side").addEventListener("click", toggleDetails);
  element("showidle").addEventListener("click", () => change({ idle: "1" }));
  setUpSearch(element("search"), (search) => changeInPlace({ search }, drawViews));
  element("search").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && event.ctrlKey) change({ function: element("search").value, search: "", zoom: "" });
    else if (event.key === "Enter") nextHit(event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && element("search").value === "") element("search").blur();
    else return;
    if (event.key === "Enter") event.preventDefault();
  });
}

// Lists the views, and what graphs can be grouped by.
function listTabs() {
  if (element("tabs").childElementCount !== TABS.length) {
    element("tabs").replaceChildren(...TABS.map((name, index) => make("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-controls": "pane",
      "aria-keyshortcuts": index + 1, textContent: TAB_NAMES[name], onclick: () => change({ tab: name }) })));
  }
  for (const value of GROUPINGS) {
    if (!element("group").querySelector(`[value="${CSS.escape(value)}"]`)) element("group").append(make("option", { value, textContent: value }));
  }
}

// Says what the view can be grouped by: a chart has lanes of threads, or else of vCPUs.
/** @param {boolean} isOfChart */
function drawGroups(isOfChart) {
  for (const option of element("group").querySelectorAll("option")) {
    option.hidden = isOfChart && !["process", "thread"].includes(option.value);
    if (option.value === "process") option.textContent = isOfChart ? "vCPU" : "process";
  }
  if (isOfChart && state.group !== "thread") element("group").value = "process";
}

function toggleDetails() {
  change({ side: state.side === "" ? "hidden" : "" });
}

// Calls `take` with the text when no key has been pressed for a moment, or at once and with true by Enter and when the focus leaves.
/** @type {(input: HTMLInputElement, take: (text: string, isDone: boolean) => void) => void} */
function setUpSearch(input, take) {
  let pause = 0;
  const takeNow = () => {
    clearTimeout(pause);
    take(input.value, true);
  };
  input.addEventListener("input", () => {
    clearTimeout(pause);
    pause = setTimeout(() => take(input.value, false), PAUSE);
  });
  input.addEventListener("change", takeNow);
  input.addEventListener("keydown", (event) => { if (event.key === "Enter") takeNow(); });
}

// What the search means: a predicate of names, or null.
/** @type {() => Search} */
const searched = () => state.search === "" ? null : matcher(state.search, state.regex !== "");

let drawnTab = "";

function drawViews() {
  hideTip();
  const { tab } = state;
  const isNew = tab !== drawnTab;
  drawnTab = tab;
  for (const name of TABS) {
    element(`tab-${name}`).setAttribute("aria-selected", String(name === tab));
    element(`tab-${name}`).tabIndex = name === tab ? 0 : -1;
  }
  element("pane").setAttribute("aria-labelledby", `tab-${tab}`);
  /** @type {HTMLElement[]} */
  const options = Array.from(element("options").querySelectorAll("[data-tabs]"));
  for (const option of options) option.hidden = !option.dataset.tabs?.split(" ").includes(tab);
  for (const name of SELECTS) element(name).value = state[name];
  drawGroups(tab === "chart");
  for (const name of /** @type {const} */ (["inverted", "fold", "intervals"])) element(name).checked = state[name] !== "";
  if (document.activeElement !== element("search")) element("search").value = state.search;
  document.body.classList.toggle("narrow", state.side !== "");
  element("side").setAttribute("aria-expanded", String(state.side === ""));
  const isTable = TABLES.includes(tab);
  const isEmpty = tab !== "code" && (tab === "wait" ? waited : tab === "exit" ? exited : sums).total === 0;
  const parts = { flame: tab === "flame", tree: tab === "tree", chart: tab === "chart", rows: isTable, sandwich: tab === "function",
    waits: tab === "wait", exits: tab === "exit", code: tab === "code" };
  for (const [id, isShown] of Object.entries(parts)) {
    element(id).hidden = !isShown || isEmpty;
  }
  drawEmptiness(isEmpty);
  drawCommand();
  const isHit = searched();
  element("pane").classList.toggle("split", ["function", "wait", "exit"].includes(tab) && !isEmpty);
  if (isEmpty) selection = null;
  else if (tab === "flame") drawGraph(isHit);
  else if (tab === "tree") drawTree(isHit);
  else if (tab === "chart") views.chart.draw(isHit);
  else if (tab === "code") drawCode(!isNew);
  else drawTables();
  if (tab === "function" && !isEmpty) drawSandwich(isHit);
  if (tab === "wait" && !isEmpty) drawWaits(isHit);
  if (tab === "exit" && !isEmpty) drawExits(isHit);
  noteCrowd();
  drawSelection();
  if (isNew) showRow();
  drawFound(isHit);
}

// Says why there is nothing.
/** @param {boolean} isEmpty */
function drawEmptiness(isEmpty) {
  element("empty").hidden = !isEmpty;
  /** @type {Record<string, string | undefined>} */
  const others = { wait: "waits", exit: "exits" };
  const what = others[state.tab];
  const isOfIdle = state.idle === "" && hasIdle && !isFiltered();
  element("emptiness").textContent = what ? `No ${what} are selected.` : isOfIdle ? "All ticks are idle." : "No ticks are selected.";
  element("showidle").hidden = what !== undefined || state.idle !== "" || !hasIdle;
}

function noteCrowd() {
  const { tab } = state;
  /** @type {Record<string, { isCrowded: boolean }[]>} */
  const drawn = { flame: [views.graph], function: [views.callers, views.callees], tree: [views.tree], chart: [views.chart], wait: [views.waits], exit: [views.exits] };
  const isCrowded = element("empty").hidden && (drawn[tab] ?? []).some((view) => view.isCrowded);
  element("crowded").hidden = !isCrowded;
  element("crowded").textContent = tab === "tree" ? `Only the first ${MOST_ROWS} rows are shown: close some to see the others.`
    : `Only the outermost ${MOST} frames are drawn: zoom in to see the others.`;
}

// The frames that are found in the present view, and the number of the one that was gone to last.
let hitAt = -1;
/** @type {() => Flames | CallTree | StackChart | undefined} */
const hitView = () => new Map(Object.entries({ flame: views.graph, tree: views.tree, chart: views.chart, wait: views.waits, exit: views.exits })).get(state.tab);
const hitsShown = () => hitView()?.hits ?? [];

/** @param {Search} isHit */
function drawFound(isHit) {
  hitAt = Math.min(hitAt, hitsShown().length - 1);
  const place = hitsShown().length > 0 ? `${hitAt < 0 ? "" : `${hitAt + 1} of `}${hitsShown().length}, ` : "";
  element("found").textContent = state.search === "" ? ""
    : isHit === null ? "not a regular expression" : `${place}found in ${foundText(isHit)}`;
}

// Goes to the next frame that is found, round and round, and selects it.
/** @param {number} step */
function nextHit(step) {
  const [view, hits] = [hitView(), hitsShown()];
  if (!view || hits.length === 0) return;
  hitAt = hitAt < 0 && step < 0 ? hits.length - 1 : (hitAt + step + hits.length) % hits.length;
  const lane = view instanceof StackChart ? view.lanes.find((lane) => lane.hits.includes(hits[hitAt])) : view;
  if (lane) showFrame(hits[hitAt], lane);
  view.reveal(hits[hitAt]);
  drawFound(searched());
}

/** @type {(isHit: (name: string) => boolean) => string} */
function foundText(isHit) {
  if (state.tab === "wait") {
    const { ticks } = countFound(waited, isHit);
    return `${percent(ticks, waited.total)} (${countOf(ticks, views.waits.root)})`;
  }
  if (state.tab === "exit") {
    const found = exited.rows.filter((row) => isHit(reasonOf(row)));
    return `${percent(found.reduce((sum, { time }) => sum + time, 0), exited.time)} of the time`;
  }
  const { ticks, sides } = countFound(sums, isHit);
  return isComparison ? changeText(sides) : `${percent(ticks, sums.total)} (${ticksOf(ticks)})`;
}

/** @type {{ of: AllSums | null, shape: string, root: Frame }} */
let drawn = { of: null, shape: "", root: new Frame(null, "", -1, "") };

// The tree of the graph and the call tree, which stays as long as the sums and its shape do.
function drawnTree() {
  const shape = [state.inverted, state.fold, state.order].join();
  if (drawn.of !== sums || drawn.shape !== shape) drawn = { of: sums, shape, root: state.inverted !== "" ? invertedTree(sums) : callTree(sums) };
  return drawn.root;
}

/** @param {Search} isHit */
function drawGraph(isHit) {
  const root = drawnTree();
  views.graph.draw(root, frameAt(root, state.zoom), { hangs: state.view !== "flame", isInverted: state.inverted !== "" }, isHit);
  follow(views.graph, root);
}

/** @param {Search} isHit */
function drawTree(isHit) {
  const root = drawnTree();
  views.tree.draw(root, isHit);
  follow(views.tree, root);
}

/** @param {Search} isHit */
function drawSandwich(isHit) {
  const fn = functionOfKey(state.about) ?? largestFunction();
  if (fn === undefined) return;
  const { callers, callees } = sandwichTrees(sums, fn);
  element("of").textContent = `${functions.name[fn]}: ${isComparison ? changeText(callees.sides) : `${ticksOf(callees.ticks)}, ${percent(callees.ticks, sums.total)}`}`;
  views.callers.draw(callers, callers, { hangs: true, isInverted: true }, isHit);
  views.callees.draw(callees, callees, { hangs: true, isInverted: false }, isHit);
  follow(views.callers, callers);
  follow(views.callees, callees);
}

// The function with the most self ticks.
function largestFunction() {
  const rows = sumFunctions(sums.stacks, (fn) => fn).sort((a, b) => b.own - a.own);
  return rows[0]?.key;
}

// The selected frame is in a tree that isn't drawn any more: its place in the new one is selected. The graph and the call tree have the same frames.
/** @type {(flames: View, root: Frame) => void} */
function follow(flames, root) {
  /** @type {unknown[]} */
  const both = [views.graph, views.tree];
  const isOfBoth = both.includes(flames) && both.includes(selection?.flames);
  if (!selection?.frame || selection.flames !== flames && !isOfBoth) return;
  const path = selection.frame.path;
  const frame = frameAt(root, path);
  const isElsewhere = selection.flames !== flames;
  selection = frame.path === path ? { fn: frame.fn, frame, flames } : null;
  if (selection && isElsewhere) flames.reveal(frame);
}
