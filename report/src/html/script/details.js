// What is known of the selected frame or function, and what can be done with it.

let selection = null; // { fn, frame, flames }

function focusDetails() {
  element("details").querySelector("button")?.focus();
}

// Shows a frame. `isChosen`: it stays until another one is.
function showFrame(frame, flames, isChosen) {
  if (isChosen) selection = { fn: frame.fn, frame, flames };
  element("hover").textContent = `${frame.name}: ${countText(frame, flames.root)}`;
  if (!isChosen) return;
  drawSelection();
  showRow();
}

// Shows a function, wherever it was called.
function showFunction(fn) {
  selection = { fn, frame: null, flames: null };
  drawSelection();
  showRow();
}

// Shows what is selected in the details, and where it is in the graphs and in the table.
function drawSelection() {
  drawDetails();
  for (const flames of Object.values(views)) flames.mark(selection?.fn ?? -1);
  markRow();
}

// The group of the view that the selected frame is in: the process or the thread; null if it is in none, or in several.
function selectedGroup() {
  for (let frame = selection?.frame; frame; frame = frame.parent) {
    if (/^g-?\d+$/.test(frame.id)) return Number(frame.id.slice(1));
  }
  return null;
}

function factsOf({ fn, frame, flames }) {
  const facts = [];
  if (frame && isComparison) {
    facts.push(["ticks", countText(frame, flames.root)]);
    const own = frame.calls.reduce(([before, after], { sides }) => [before - sides[0], after - sides[1]], frame.sides);
    if (frame.fn >= 0 && state.view !== "inverted" && flames !== views.callers) facts.push(["self", changeText(own)]);
  } else if (frame) {
    facts.push(["ticks", `${frame.ticks}: ${percent(frame.ticks, flames.root.ticks)} of what is shown, ${percent(frame.ticks, sums.total)} of what is selected`]);
    const own = frame.calls.reduce((rest, called) => rest - called.ticks, frame.ticks);
    if (frame.fn >= 0 && state.view !== "inverted" && flames !== views.callers) facts.push(["self", `${own}: ${percent(own, sums.total)}`]);
    const modes = MODES.map((mode, index) => [mode, frame.modes[index]]).filter(([, ticks]) => ticks > 0);
    facts.push(["modes", modes.map(([mode, ticks]) => `${mode} ${percent(ticks, frame.ticks)}`).join(", ")]);
  }
  if (fn < 0) return facts;
  const [low, span] = [functions.low[fn], functions.span[fn]];
  const module = functions.module[fn];
  const kind = functions.kernel[fn] ? "kernel" : "user";
  facts.push(["function of", `${kind}${frame?.isInlined ? ", inlined" : ""}`]);
  if (frame?.cut > 0) facts.push(["callers", `missing in ${frame.cut} of its ${ticksOf(frame.ticks)}: their stacks are cut short`]);
  facts.push(["module", moduleName(fn)]);
  facts.push(["build id", modules.build[module]]);
  if (low !== "") facts.push(["addresses", span === "" ? `0x${low}` : `0x${low} to 0x${(BigInt(`0x${low}`) + BigInt(`0x${span}`)).toString(16)}`]);
  facts.push(["source", functions.lines[fn]]);
  return facts.filter(([, value]) => value);
}

function actionsOf({ fn, frame, flames }) {
  const actions = [];
  const add = (name, action) => actions.push(make("button", { type: "button", textContent: name, onclick: action }));
  if (frame && flames.root !== frame) add("Zoom in", () => flames.enter(frame));
  if (fn >= 0) {
    const key = keyOf(fn);
    add("Only with it", () => change({ only: [...new Set([...state.only, key])] }));
    add("Without it", () => change({ hide: [...new Set([...state.hide, key])] }));
    add("Callers and callees", () => change({ view: "sandwich", about: key, zoom: "" }));
    if (moduleName(fn) !== "") add("Only its module", () => change({ module: moduleName(fn) }));
  } else if (frame && /^g-?\d+$/.test(frame.id)) {
    const key = Number(frame.id.slice(1));
    const filters = { process: { pid: processId(key) }, thread: { pid: processId(processOf[key]), tid: threadId(key) } };
    const filter = filters[state.group] ?? { label: frame.name };
    // There is no filter for what has no label.
    if (!filter.label || labelNames.includes(filter.label)) add(`Only this ${state.group.split(" ")[0]}`, () => change({ ...filter, zoom: "" }));
  }
  if (frame) add("Copy stack", (event) => copy(stackOf(frame, state.view === "inverted" || flames === views.callers).join("\n"), event.target));
  return actions;
}

function drawDetails() {
  const box = element("details");
  const hadFocus = box.contains(document.activeElement) ? document.activeElement.textContent : null;
  if (!selection) {
    box.replaceChildren(make("p", { className: "note", textContent: "Choose a frame to see more of it here. Arrow keys move between frames, Enter zooms in, Escape out." }));
    return;
  }
  const name = selection.frame ? selection.frame.name : functions.name[selection.fn];
  const rows = factsOf(selection).flatMap(([term, value]) => [make("dt", { textContent: term }), make("dd", { textContent: value })]);
  const actions = make("p", { className: "actions" }, ...actionsOf(selection));
  box.replaceChildren(make("h3", { textContent: name }), actions, make("dl", {}, ...rows), ...codeListsOf(selection));
  if (hadFocus !== null) {
    [...box.querySelectorAll("button")].find((button) => button.textContent === hadFocus)?.focus();
  }
}

// Copies `text`, and says so on the `button`.
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
