// What is known of the selected frame or function, and what can be done with it.

/**
 * @typedef {{ fn: number, frame: Frame, flames: View }} SelectedFrame
 * @typedef {SelectedFrame | { fn: number, frame: null, flames: null }} Selected
 */
/** @type {Selected | null} */
let selection = null;
const CALLERS = 5; // that are listed
const COLUMNS = 100; // of the selected time, at most

function focusDetails() {
  if (state.side !== "") changeInPlace({ side: "" }, drawViews);
  element("details").querySelector("button")?.focus();
}

// Selects a frame of a view.
/** @type {(frame: Frame, flames: View) => void} */
function showFrame(frame, flames) {
  selection = { fn: frame.fn, frame, flames };
  drawSelection();
  showRow();
}

// Selects a function, wherever it was called.
/** @param {number} fn */
function showFunction(fn) {
  selection = { fn, frame: null, flames: null };
  drawSelection();
  showRow();
}

// Shows what is selected in the details, and where it is in the views.
function drawSelection() {
  drawDetails();
  for (const view of Object.values(views)) view.mark(selection?.fn ?? -1);
  markRow();
}

// The group of the view that the selected frame is in: the process or the thread; null if it is in none, or in several.
function selectedGroup() {
  for (let frame = selection?.frame; frame; frame = frame.parent) {
    if (/^g-?\d+$/.test(frame.id)) return Number(frame.id.slice(1));
  }
  return null;
}

// Whether the tree that a frame is in begins with callees.
/** @type {(flames: View | null) => boolean} */
const isFromCallees = (flames) => flames === views.callers || !(flames instanceof Flames && flames.isUpright) && state.inverted !== "";

/** @type {(selected: SelectedFrame) => [string, string][]} */
function countsOf({ frame, flames }) {
  if (flames.root.isOfExits) return [["time", countText(frame, flames.root)]];
  if (flames.root.isOfWaits) return [["waits", `${countText(frame, flames.root)}, ${rounded(frame.ticks / Math.max(waited.looks, 1))} tasks per look`]];
  const isSelf = frame.fn >= 0 && !isFromCallees(flames) && !(frame instanceof ChartFrame);
  if (isComparison) {
    const own = frame.calls.reduce(([before, after], { sides }) => [before - sides[0], after - sides[1]], frame.sides);
    /** @type {[string, string][]} */
    const counts = [["ticks", countText(frame, flames.root)], ["change", chanceText(frame.sides)], ["self", changeText(own)]];
    return isSelf ? counts : counts.slice(0, 2);
  }
  const own = frame.calls.reduce((rest, called) => rest - called.ticks, frame.ticks);
  if (frame instanceof ChartFrame) {
    const time = [frame.from, frame.to].map(shownTime).join(" to ");
    return [["time", `${time} (${duration((frame.to - frame.from) * data.width)})`], ["ticks", `${frame.ticks} in this time, of the way that most took`]];
  }
  /** @type {[string, string][]} */
  const counts = [["total", shareText(frame.ticks)]];
  if (flames.root.ticks !== sums.total) counts.push(["of these", `${percent(frame.ticks, flames.root.ticks)} of what is shown`]);
  if (isSelf) counts.push(["self", shareText(own)]);
  return counts;
}

/** @type {(count: number) => string} */
const shareText = (count) => `${ticksOf(count)}, ${percent(count, sums.total)} of what is selected (${intervalText(count)})`;

/** @typedef {ReturnType<typeof sumFunction>} FunctionSum */
/** @type {(selected: Selected, whole: FunctionSum | null) => [string, string][]} */
function factsOf(selected, whole) {
  const { fn, frame } = selected;
  const facts = selected.frame ? countsOf(selected) : [];
  if (frame && !isComparison) facts.push(["modes", modesText(frame)]);
  if (whole && !frame) facts.push(["total", shareText(whole.frame.ticks)], ["self", shareText(whole.own)], ["modes", modesText(whole.frame)]);
  if (fn < 0) return facts;
  const [low, span] = [functions.low[fn], functions.span[fn]];
  const module = functions.module[fn];
  const kind = functions.kernel[fn] ? "kernel" : "user";
  facts.push(["function of", `${kind}${frame?.isInlined ? ", inlined" : ""}`]);
  if (selected.frame && selected.frame.cut > 0) {
    const all = countOf(selected.frame.ticks, selected.flames.root);
    facts.push(["callers", `missing in ${selected.frame.cut} of its ${all}: their stacks are cut short`]);
  }
  facts.push(["module", moduleName(fn)]);
  facts.push(["build id", modules.build[module]]);
  if (low !== "") facts.push(["addresses", span === "" ? `0x${low}` : `0x${low} to 0x${(BigInt(`0x${low}`) + BigInt(`0x${span}`)).toString(16)}`]);
  facts.push(["source", functions.lines[fn]]);
  return facts.filter(([, value]) => value);
}

/** @type {(selected: Selected) => HTMLElement[]} */
function actionsOf(selected) {
  const { fn, frame, flames } = selected;
  /** @type {HTMLElement[]} */
  const actions = [];
  /** @type {AddAction} */
  const add = (name, action, key) => { actions.push(actionButton(name, action, key)); };
  if (frame && flames.root !== frame && flames instanceof Flames) add("Zoom in", () => flames.enter(frame));
  if (fn >= 0) {
    const key = keyOf(fn);
    // A module's frame was not recorded: filters know its functions.
    if (!isOfModule(fn)) {
      add("Only with it", () => change({ only: [...new Set([...state.only, key])], zoom: "" }));
      add("Without it", () => hideFunction(fn), "d");
    }
    add("Callers and callees", () => change({ tab: "function", about: key }));
    const name = moduleName(fn);
    if (name !== "") {
      add("Only its module", () => include("module", name));
      add("Without its module", () => exclude("module", name));
    }
    if (codes.has(functionWithCode(selected))) add("Code", () => change({ tab: "code", about: keyOf(functionWithCode(selected)) }));
  } else if (frame && /^g-?\d+$/.test(frame.id)) {
    addGroupActions(Number(frame.id.slice(1)), frame, add);
  }
  if (frame) add("Copy stack", (event) => copy(stackOf(frame, isFromCallees(flames)).join("\n"), event.target));
  return actions;
}

// A button that does `action`, as does its key if it has one.
/** @typedef {(name: string, action: (event: any) => void, key?: string) => void} AddAction */
/** @type {(textContent: string, action: (event: any) => void, key?: string) => HTMLElement} */
function actionButton(textContent, action, key) {
  const made = make("button", { type: "button", textContent, onclick: action });
  if (key) {
    made.title = `Key: ${key}`;
    made.setAttribute("aria-keyshortcuts", key === key.toLowerCase() ? key : `Shift+${key}`);
  }
  return made;
}

// Leaves out the ticks with a function on their stack.
/** @param {number} fn */
function hideFunction(fn) {
  if (!isOfModule(fn)) change({ hide: [...new Set([...state.hide, keyOf(fn)])], zoom: "" });
}

// The transforms by what is selected, with their own heading.
/** @type {(selected: Selected) => HTMLElement[]} */
function transformActions(selected) {
  const kinds = transformsOf(selected);
  if (kinds.length === 0) return [];
  const buttons = kinds.map((kind) => actionButton(TRANSFORMS[kind].button, () => transform(kind, selected), TRANSFORMS[kind].key));
  return [make("h3", { textContent: "Transform all stacks" }), make("p", { className: "actions" }, ...buttons)];
}

// The functions that call a function most, with their shares of its ticks.
/** @type {(whole: FunctionSum) => HTMLElement[]} */
function callersOf({ frame, callers }) {
  if (callers.length === 0) return [];
  const listed = callers.slice(0, CALLERS).map(([fn, ticks]) => {
    const name = make("button", { type: "button", className: "link", textContent: functions.name[fn], onclick: () => showFunction(fn) });
    return make("li", {}, name, ` ${percent(ticks, frame.ticks)}`);
  });
  const left = callers.length - listed.length;
  return [make("h3", { textContent: left > 0 ? `Called by (and ${left} more)` : "Called by" }), make("ul", { className: "callers" }, ...listed)];
}

// The functions from the outermost frame of a tree to one of its frames.
/** @type {(frame: Frame) => number[]} */
function wayOf(frame) {
  const way = [];
  for (let at = /** @type {Frame | null} */ (frame); at; at = at.parent) if (at.fn >= 0) way.unshift(at.fn);
  return way;
}

// 1 for the recorded nodes whose selected ticks are those of a frame, or of a function wherever it was called.
/** @type {(selected: Selected) => Uint8Array} */
function nodesOf({ fn, frame, flames }) {
  const way = frame ? wayOf(frame) : [fn];
  const [isFolded, anywhere] = [state.fold !== "", !frame || flames === views.callers || flames === views.callees];
  const starts = anywhere && frame ? outermostOf(nodes, way[0]) : null;
  const along = frame && isFromCallees(flames) ? null : alongWay(nodes, way, isFolded, anywhere);
  // Whether a stack that is read from its callees has the functions of the way.
  /** @param {number} node */
  const isInverse = (node) => {
    let [at, count] = [starts ? starts[node] : node, 0];
    while (count < way.length && nodes.fn[at] === way[count]) {
      do at = nodes.parent[at]; while (isFolded && nodes.fn[at] === way[count]);
      count++;
    }
    return count === way.length;
  };
  const { nodes: byNode } = sums.all;
  const has = new Uint8Array(recorded.length);
  for (let node = 0; node < recorded.length; node++) {
    if (byNode !== null && byNode[node] === 0) continue;
    if (along ? along[shownAs[node]] === way.length : isInverse(shownAs[node])) has[node] = 1;
  }
  return has;
}

// Which runs have ticks of a frame: those of its group, or of its vCPU in a chart.
/** @type {(frame: Frame | null) => (run: number) => boolean} */
function runFilter(frame) {
  const group = selectedGroup();
  let root = frame;
  while (root?.parent) root = root.parent;
  const vcpu = root && /^v\d+$/.test(root.id) ? Number(root.id.slice(1)) : null;
  return (run) => (group === null || GROUPS[state.group](runs.thread[run]) === group) && (vcpu === null || runs.vcpu[run] === vcpu);
}

// The ticks of a frame or a function over the selected time.
/** @type {(selected: Selected) => { ticks: Float64Array, edges: number[] }} */
function columnsOf(selected) {
  const [begin, end] = selectedBins();
  const width = Math.ceil((end - begin) / COLUMNS);
  const ticks = new Float64Array(Math.ceil((end - begin) / width));
  const [byNode, isOfFrame] = [nodesOf(selected), runFilter(selected.frame)];
  eachRun(sums.all, (run) => {
    const bin = runs.bin[run];
    if (bin >= begin && bin < end && isOfFrame(run)) ticks[Math.floor((bin - begin) / width)] += ticksOfNodes(run, byNode);
  });
  return { ticks, edges: Array.from({ length: ticks.length + 1 }, (_, column) => Math.min(begin + column * width, end)) };
}

// What the details have of what is selected. They are drawn anew more often than that changes.
/** @type {{ of: AllSums | null, what: Frame | number, whole: FunctionSum | null, columns: ReturnType<typeof columnsOf> }} */
let summed = { of: null, what: -1, whole: null, columns: { ticks: new Float64Array(0), edges: [] } };
/** @type {(selected: Selected) => typeof summed} */
function sumSelected(selected) {
  const what = selected.frame ?? selected.fn;
  if (summed.of !== sums || summed.what !== what) {
    summed = { of: sums, what, whole: selected.fn >= 0 ? sumFunction(sums, selected.fn) : null, columns: columnsOf(selected) };
  }
  return summed;
}

/** @type {(columns: ReturnType<typeof columnsOf>) => Element[]} */
function columnsPicture({ ticks, edges }) {
  const most = Math.max(...ticks);
  if (most === 0 || ticks.length === 1) return [];
  const busiest = ticks.indexOf(most);
  /** @type {(first: number, end: number) => string} */
  const times = (first, end) => `${shownTime(edges[first])} to ${shownTime(edges[end])}`;
  const label = `Ticks over time, ${times(0, ticks.length)}: most from ${times(busiest, busiest + 1)}, ${ticksOf(most)}`;
  const path = Array.from(ticks, (count, column) => count > 0 ? `M${column} 100V${(100 - 100 * count / most).toFixed(1)}h1V100z` : "").join("");
  return [shape("svg", { viewBox: `0 0 ${ticks.length} 100`, preserveAspectRatio: "none", role: "img", "aria-label": label }, shape("path", { d: path })),
    make("p", { className: "note ends" }, ...[0, ticks.length].map((edge) => make("span", { textContent: shownTime(edges[edge]) })))];
}

// What can be done with a process, a thread or a label.
/** @type {(key: number, frame: Frame, add: AddAction) => void} */
function addGroupActions(key, frame, add) {
  if (state.group === "thread") {
    if (threads.tid[key] !== null) add("Only this thread", () => includeThread(key));
    return;
  }
  /** @type {[FilterKind, string, string]} */
  const [kind, name, value] = state.group === "process" ? ["pid", "process", processId(key)] : ["label", "label", frame.name];
  // There is no filter for what has no label.
  if (kind === "label" && !labelNames.includes(value)) return;
  add(`Only this ${name}`, () => include(kind, value));
  add(`Without this ${name}`, () => exclude(kind, value));
}

// A bar with a part for each mode.
/** @type {(counts: { modes: number[], ticks: number }) => HTMLElement} */
function modeBar({ modes, ticks }) {
  const parts = MODES.map((mode, index) => {
    const part = make("i", { className: mode });
    part.style.width = `${100 * modes[index] / Math.max(ticks, 1)}%`;
    return part;
  });
  return make("div", { className: "modes", "aria-hidden": true }, ...parts);
}

function drawDetails() {
  const box = element("details");
  // Where there is little room it is there for what is selected only.
  document.body.classList.toggle("unselected", !selection);
  if (state.side !== "") {
    box.replaceChildren();
    return;
  }
  const hadFocus = box.contains(document.activeElement) ? document.activeElement?.textContent : null;
  /** @type {(rows: [string | Node, string][]) => HTMLElement} */
  const listed = (rows) => make("dl", {}, ...rows.flatMap(([term, value]) => [make("dt", {}, term), make("dd", { textContent: value })]));
  if (!selection) {
    const all = { modes: sums.mode, ticks: sums.total };
    /** @type {(mode: string) => HTMLElement} */
    const filterOf = (mode) => make("button", { type: "button", className: "link", textContent: mode, title: `Only ${mode}; with Alt all but that`,
      onclick: (/** @type {any} */ event) => (event.altKey ? exclude : include)("mode", mode) });
    /** @type {(mode: string, index: number) => [Node, string]} */
    const rowOfMode = (mode, index) => [filterOf(mode), `${percent(sums.mode[index], sums.total)} (${ticksOf(sums.mode[index])})`];
    const rows = MODES.map(rowOfMode).filter((_, index) => sums.mode[index] > 0);
    box.replaceChildren(make("h2", { textContent: "What is selected" }), ...isComparison ? [] : [modeBar(all), listed(rows)],
      make("p", { className: "note", textContent: "Choose a frame or a function to see more of it here." }));
    return;
  }
  const name = selection.frame ? selection.frame.name : functions.name[selection.fn];
  const actions = make("p", { className: "actions" }, ...actionsOf(selection));
  const isOfTicks = !isComparison && !selection.flames?.root.isOfWaits && !selection.flames?.root.isOfExits;
  const { whole, columns } = isOfTicks ? sumSelected(selection) : { whole: null, columns: null };
  const shown = selection.frame ?? whole?.frame;
  const modes = shown && isOfTicks ? [modeBar(shown)] : [];
  box.replaceChildren(make("h2", { textContent: name }), ...modes, ...columns ? columnsPicture(columns) : [], listed(factsOf(selection, whole)), actions, ...whole ? callersOf(whole) : [],
    ...transformActions(selection));
  if (hadFocus) {
    [...box.querySelectorAll("button")].find((button) => button.textContent === hadFocus)?.focus();
  }
}

// Copies `text`, and says so on the `button`.
/** @type {(text: string, button: HTMLElement) => Promise<void>} */
async function copy(text, button) {
  const name = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Pages from disk may have no clipboard but by a selection.
    const area = make("textarea", { value: text, readOnly: true });
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
    button.focus();
  }
  button.textContent = "Copied";
  setTimeout(() => { button.textContent = name; }, 1500);
}
