// The filters, which combine: one value of each kind, what is left out, and functions of stacks. Each is a chip, as transforms are.

/** @typedef {"pid" | "tid" | "label" | "vcpu" | "mode" | "module"} FilterKind */
/** @type {Record<FilterKind, string>} */
const KINDS_OF_FILTERS = { pid: "process", tid: "thread", label: "label", vcpu: "vCPU", mode: "mode", module: "module" };

// Only what has this value, or all but that.
/** @type {(kind: FilterKind, value: string) => void} */
const include = (kind, value) => change({ [kind]: value, ...kind === "pid" ? { tid: "" } : {}, not: state.not.filter((one) => one !== `${kind}:${value}`), zoom: "" });
/** @type {(kind: FilterKind, value: string) => void} */
const exclude = (kind, value) => change({ not: [...new Set([...state.not, `${kind}:${value}`])], ...state[kind] === value ? { [kind]: "" } : {}, zoom: "" });
/** @type {(thread: number) => void} */
const includeThread = (thread) => change({ pid: processId(processOf[thread]), tid: threadId(thread), zoom: "" });

const filterKinds = /** @type {FilterKind[]} */ (Object.keys(KINDS_OF_FILTERS));

// Lists what there is to choose from.
function listChoices() {
  const listed = processes.pid.map((_, process) => process).filter((process) => sameProcess[process] === process);
  fill("pid", listed.map((process) => [processId(process), processName(process)]));
  fill("label", labelNames.map((label) => [label, label]));
  element("label").closest("label")?.toggleAttribute("hidden", labelNames.length === 0);
  fill("vcpu", vcpus.map((vcpu) => [String(vcpu), `vCPU ${vcpu}`]));
  fill("mode", MODES.map((mode) => [mode, mode]));
  const isWithout = nodesWith(recorded, functionsWhere((_, fn) => moduleName(fn) === ""));
  const isAnyWithout = cells.node.some((node) => isWithout[node] === 1);
  fill("module", modules.name.filter((name) => name !== "" || isAnyWithout).map((name) => name || NO_MODULE).map((name) => [name, name]));
  element("idling").hidden = !hasIdle;
}

function setUpFilters() {
  listChoices();
  for (const kind of filterKinds) {
    element(kind).addEventListener("change", () => include(kind, element(kind).value));
  }
  // What is typed from one pause to the next is one step.
  let isTyped = false;
  // It has the focus when the filters open. With the attribute in the page's text browsers give it the focus as the page opens, and complain if the user was quicker.
  element("function").autofocus = true;
  setUpSearch(element("function"), (text, isDone) => {
    if (text !== state.function) (isTyped ? changeInPlace : change)({ function: text, zoom: "" });
    isTyped = !isDone;
  });
  element("regex").addEventListener("change", () => change({ regex: element("regex").checked ? "1" : "", zoom: "" }));
  element("clear").addEventListener("click", clearFilters);
  element("idle").addEventListener("change", () => change({ idle: element("idle").checked ? "1" : "", zoom: "" }));
  element("undo").addEventListener("click", undo);
  element("copycommand").addEventListener("click", () => copy(element("command").textContent ?? "", element("copycommand")));
}

function clearFilters() {
  const cleared = Object.fromEntries(FILTERS.map((name) => [name, ""]));
  change({ ...cleared, regex: "", only: [], hide: [], not: [], transform: [], zoom: "" });
}

// Fills a list with the choices; the first one is all.
/** @type {(id: string, choices: string[][]) => void} */
function fill(id, choices) {
  const all = make("option", { value: "", textContent: "all" });
  element(id).replaceChildren(all, ...choices.map(([value, textContent]) => make("option", { value, textContent })));
}

function drawFilters() {
  const own = threads.tid.map((_, thread) => thread).filter((thread) =>
    threads.tid[thread] !== null && sameThread[thread] === thread && (state.pid === "" || processId(processOf[thread]) === state.pid));
  fill("tid", own.slice(0, 2000).map((thread) => [threadId(thread), threadName(thread)]));
  for (const kind of filterKinds) element(kind).value = state[kind];
  if (document.activeElement !== element("function")) element("function").value = state.function;
  element("regex").checked = state.regex !== "";
  element("idle").checked = state.idle !== "";
  const isWrong = state.function !== "" && matcher(state.function, state.regex !== "") === null;
  element("function").setAttribute("aria-invalid", String(isWrong));
  element("wrong").hidden = !isWrong;
  element("clear").disabled = !isFiltered();
  element("undo").disabled = steps() === 0;
  const applied = chips();
  element("chips").replaceChildren(...applied);
  // Where chips have no room their number is there.
  element("add").textContent = applied.length > 0 ? `Filter (${applied.length})` : "Filter";
  const [stolen, lost] = sums.missed;
  element("total").textContent = isComparison ? `${ticksOf(sums.sides[0])} selected before, ${ticksOf(sums.sides[1])} after.` : `${ticksOf(sums.total)} selected, ${percent(sums.total, allTicks)} of all; besides ${stolen} stolen, ${lost} lost.`;
}

function drawCommand() {
  element("command").textContent = state.tab === "wait" ? waitsCommand() : state.tab === "exit" ? exitsCommand() : command();
  element("command").title = element("command").textContent;
}

// What a value of a filter is called.
/** @type {(kind: string, value: string) => string} */
function shownValue(kind, value) {
  if (kind === "pid") {
    const process = processes.pid.findIndex((_, process) => sameProcess[process] === process && processId(process) === value);
    return processName(process);
  }
  const thread = kind === "tid" ? threads.tid.findIndex((_, thread) => threadId(thread) === value) : -1;
  return thread >= 0 ? threadName(sameThread[thread]) : value;
}

// A filter that can be removed, and where `turn` is given be turned round: only this, or all but that.
/** @type {(text: string, remove: () => void, turn?: (() => void) | null) => HTMLElement} */
function chip(text, remove, turn) {
  const body = turn ? make("button", { type: "button", textContent: text, title: "Turn round: only this, or all but this", onclick: turn }) : make("span", { textContent: text });
  return make("span", { className: "chip" }, body, make("button", { type: "button", textContent: "✕", "aria-label": `${text}: remove this filter`, onclick: remove }));
}

function chips() {
  const made = [];
  /** @type {(list: "only" | "hide" | "not" | "transform", key: string) => Partial<State>} */
  const without = (list, key) => ({ [list]: state[list].filter((other) => other !== key), zoom: "" });
  if (state.time !== "") {
    const [begin, end] = selectedBins();
    made.push(chip(`${shownTime(begin)} to ${shownTime(end)}`, () => change({ time: "", zoom: "" })));
  }
  for (const kind of filterKinds) {
    const value = state[kind];
    if (value === "") continue;
    const turn = kind === "tid" ? null : () => change({ [kind]: "", not: [...state.not, `${kind}:${value}`], zoom: "" });
    made.push(chip(`${KINDS_OF_FILTERS[kind]} ${shownValue(kind, value)}`, () => change({ [kind]: "", zoom: "" }), turn));
  }
  if (state.function !== "") made.push(chip(`function ${state.function}`, () => change({ function: "", zoom: "" })));
  for (const one of state.not) {
    const [kind, value] = /** @type {[FilterKind, string]} */ (kindAndValue(one));
    const turn = () => change({ ...without("not", one), [kind]: value });
    if (kind in KINDS_OF_FILTERS) made.push(chip(`not ${KINDS_OF_FILTERS[kind]} ${shownValue(kind, value)}`, () => change(without("not", one)), turn));
  }
  for (const [list, other, word] of /** @type {const} */ ([["only", "hide", "only"], ["hide", "only", "without"]])) {
    for (const key of state[list]) {
      made.push(chip(`${word} ${nameOfKey(key)}`, () => change(without(list, key)), () => change({ ...without(list, key), [other]: [...new Set([...state[other], key])] })));
    }
  }
  for (const one of state.transform) made.push(chip(transformName(one), () => change(without("transform", one))));
  return made;
}

// What regular expressions of browsers have and those of the command line don't: looking ahead and behind, and references to groups.
const ONLY_OF_BROWSERS = /\(\?<?[=!]|\\[1-9]|\\k</;
const LONGEST_PATTERN = 1000; // bytes, of the command line

// The modes and the vCPUs that the command has to select; none if these are all that there are. null: it can't.
/** @type {(all: string[], given: string[], isChosen: (one: string) => boolean) => string[] | null} */
function chosenOf(all, given, isChosen) {
  const chosen = (given.length > 0 ? given : all).filter(isChosen);
  if (chosen.length === 0) return null;
  return chosen.length === all.length ? given : chosen;
}

// A text as a regular expression that has just that.
/** @type {(text: string) => string} */
const literally = (text) => text.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");

// The pattern for a function by its name; null if the command can't have it.
/** @type {(key: string) => string | null} */
function patternOfKey(key) {
  const name = nameInCommand(functionOfKey(key) ?? -1);
  return name === null ? null : `^${literally(name)}$`;
}

// The options of the command for the filters, and whether it can't have some of them.
class FilterOptions {
  /** @type {string[]} */
  options = [];
  others = false;

  // Values in one option.
  /** @type {(kind: string, values: (number | string)[] | null) => void} */
  list(kind, values) {
    if (values === null) this.others = true;
    else if (values.length > 0) this.options.push(`--${kind}=${values.join(",")}`);
  }

  // Values in an option each.
  /** @type {(kind: string, values: (string | null)[]) => void} */
  each(kind, values) {
    for (const value of values) {
      if (value === null || new TextEncoder().encode(value).length > LONGEST_PATTERN) this.others = true;
      else this.options.push(`--${kind}${value.startsWith("-") ? "=" : " "}${quoted(value)}`);
    }
  }

  // What is left out.
  /** @type {(kind: string, values: (number | string | null)[]) => void} */
  not(kind, values) {
    this.each("not", values.map((value) => value === null ? null : `${kind}=${value}`));
  }
}

// A value that the command knows as well; null for an id of one recording of several, and for what has no module.
/** @type {(value: string) => string | null} */
const inCommand = (value) => /^\d+:/.test(value) || value === "null" || value === NO_MODULE ? null : value;

// The pattern for the functions that are typed as a filter. The page has no difference between capital and small letters.
function typedPattern() {
  const isRegex = state.regex !== "";
  if (isRegex && ONLY_OF_BROWSERS.test(state.function)) return null;
  return `(?i)${isRegex ? state.function : literally(state.function)}`;
}

// The options of the filters that all commands have. `pids` are the selected processes.
/** @type {(given: PageData["selection"], pids: (number | string)[]) => FilterOptions} */
function optionsOfFilters(given, pids) {
  const made = new FilterOptions();
  const wanted = selectedModes();
  made.list("pid", pids);
  // An id in front of which there is its recording is one of the recording that the process is in.
  if (state.tid === "") made.list("tid", given.tids);
  else made.list("tid", state.pid === "" && inCommand(state.tid) === null ? null : [state.tid.split(":").at(-1) ?? ""]);
  made.each("comm", given.comms);
  made.list("vcpu", chosenOf(vcpus.map(String), given.vcpus.map(String), (vcpu) => isSelectedVcpu(Number(vcpu))));
  made.list("mode", chosenOf(MODES, given.modes, (mode) => wanted.includes(mode)));
  made.each("label", selectedLabels());
  // The command takes ticks of one of several modules.
  if (state.module !== "" && given.modules.length > 0) made.others = true;
  else made.each("module", state.module !== "" ? [inCommand(state.module)] : given.modules);
  const isTyped = state.function !== "" && matcher(state.function, state.regex !== "") !== null;
  made.each("grep", [...given.greps, ...isTyped ? [typedPattern()] : [], ...state.only.map(patternOfKey)]);
  for (const [kind, values] of /** @type {const} */ ([["pid", given.not.pids], ["tid", given.not.tids], ["comm", given.not.comms], ["vcpu", given.not.vcpus],
    ["mode", given.not.modes], ["label", given.not.labels], ["module", given.not.modules], ["grep", given.not.greps]])) made.not(kind, [...values]);
  for (const kind of ["pid", "label", "module"]) made.not(kind, leftOut(kind).map(inCommand));
  made.not("grep", state.hide.map(patternOfKey));
  made.each("transform", [...given.transforms, ...state.transform.map(transformInCommand)]);
  // Filters of functions go by what was recorded; those of this page by what is in it.
  if (given.transforms.length > 0 && isOfStacks()) made.others = true;
  return made;
}

// Appends that there are filters which the command doesn't have.
/** @type {(words: string[], others: boolean) => string} */
const withNote = (words, others) => [...words, ...others ? ["   # without the other filters"] : []].join(" ");

// The option that selects the same time, if it isn't all.
function timeOption() {
  const time = selectedBins().map(edgeTime).join(":");
  return time === ":" ? [] : [`--time ${time}`];
}

// The command that prints the same numbers; filters that it doesn't have are left out, and said so.
function command() {
  const given = data.selection;
  if (isComparison) return comparisonCommand();
  const [recording, pid] = state.pid.includes(":") ? state.pid.split(":") : ["", state.pid];
  // A process is in one recording only.
  const files = recording !== "" ? [data.files[Number(recording) - 1]] : data.files;
  const words = ["kvmprof report", ...files.length > 0 ? files.map(quoted) : ["FILE"], ...data.naming.map(quoted), ...timeOption()];
  const { options, others } = optionsOfFilters(given, pid !== "" ? [pid] : given.pids);
  return withNote([...words, ...options], others);
}

// `text` as one word of a shell.
/** @type {(text: string) => string} */
const quoted = (text) => /^[\w./:=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
