// What is selected and how it is shown. It stands in the address of the page, so that it can be kept and Back works.

/** @type {string[]} */
const TABLES = [];
/** @type {string[]} */
const TABS = [];
/** @type {string[]} */
const GROUPINGS = [];
derive(() => {
  // Waits are there in recordings with looks at tasks, exits where they were counted.
  TABLES.splice(0, Infinity, "function", "module", "process", "thread", "vcpu", ...data.waits ? ["wait"] : [], ...data.exits ? ["exit"] : []);
  // A chart has one time, a comparison two.
  TABS.splice(0, Infinity, "flame", "tree", ...isComparison ? [] : ["chart"], ...TABLES, ...data.code.length > 0 ? ["code"] : []);
  GROUPINGS.splice(0, Infinity, "process", "thread", "merged", ...labelKeys.map((key) => `label ${key}`));
});
const DEFAULTS = {
  time: "", pid: "", tid: "", label: "", vcpu: "", mode: "", module: "", function: "", regex: "",
  // A comparison is of all ticks, as `kvmprof diff`.
  idle: isComparison ? "1" : "",
  tab: "flame", view: "icicle", inverted: "", group: "process", order: "share", fold: "", search: "", about: "", exit: "", zoom: "",
  span: "", intervals: "", side: "",
};
const NAMES = /** @type {(keyof typeof DEFAULTS)[]} */ (Object.keys(DEFAULTS));
const CHOICES = {
  tab: TABS, view: ["icicle", "flame"], group: GROUPINGS,
  order: ["share", "time", "name"],
};
// Functions that stacks have to have, and may not have; what is left out, as KIND:VALUE; transforms, as KIND:VALUE, in their order; processes whose
// threads have lanes, none at all if they are the usual ones.
/** @type {("only" | "hide" | "not" | "transform" | "open")[]} */
const LISTS = ["only", "hide", "not", "transform", "open"];

/** @typedef {typeof DEFAULTS & { only: string[], hide: string[], not: string[], transform: string[], open: string[] }} State */
/** @type {State} */
let state = readState();

/** @returns {State} */
function readState() {
  const words = new URLSearchParams(location.hash.slice(1));
  /** @type {any} */
  const read = Object.fromEntries(LISTS.map((name) => [name, words.getAll(name)]));
  for (const name of NAMES) read[name] = words.get(name) ?? DEFAULTS[name];
  for (const name of /** @type {(keyof typeof CHOICES)[]} */ (Object.keys(CHOICES))) {
    if (!CHOICES[name].includes(read[name])) read[name] = DEFAULTS[name];
  }
  return read;
}

/** @type {(wanted: State) => string} */
function hashOf(wanted) {
  const words = new URLSearchParams();
  for (const name of NAMES) if (wanted[name] !== DEFAULTS[name]) words.set(name, wanted[name]);
  for (const name of LISTS) wanted[name].forEach((key) => words.append(name, key));
  return `#${words}`;
}

// How many steps of this page can be undone.
const steps = () => history.state?.steps ?? 0;

// Changes the state, by a step that Back undoes. Browsers scroll to the begin of the page when they go to an empty hash themselves.
/** @type {(changes: Partial<State>) => void} */
function change(changes) {
  const hash = hashOf({ ...state, ...changes });
  if (hash === hashOf(state)) return;
  history.pushState({ steps: steps() + 1 }, "", hash);
  showState();
}

// The same as a part of the present step, such as a text that is being typed. `show` draws what depends on it.
/** @type {(changes: Partial<State>, show?: () => void) => void} */
function changeInPlace(changes, show = showState) {
  const hash = hashOf({ ...state, ...changes });
  if (hash === hashOf(state)) return;
  history.replaceState(history.state, "", hash);
  state = readState();
  show();
}

// The bins of a range of time, as the first one and the one behind the last: the nearest edges of bins, at least one bin.
/** @type {(time: string) => Bins} */
function binsOf(time) {
  if (!/^[\d.]*:[\d.]*$/.test(time)) return [0, data.bins];
  const [begin, end] = time.split(":");
  /** @type {(text: string, open: number) => number} */
  const edge = (text, open) => {
    const found = text === "" ? open : Math.round((parseFloat(text) * 1e9 - data.begin) / data.width);
    return Number.isFinite(found) ? Math.min(Math.max(found, 0), data.bins) : open;
  };
  const first = Math.min(edge(begin, 0), data.bins - 1);
  return [first, Math.max(end === "" || edgeTime(data.bins) === end ? data.bins : edge(end, data.bins), first + 1)];
}

const selectedBins = () => binsOf(state.time);

// The range of time from one edge to another, for the state.
/** @type {(first: number, end: number) => string} */
function timeRange(first, end) {
  const [low, high] = [Math.min(first, end), Math.max(first, end)];
  if (low <= 0 && high >= data.bins) return "";
  return `${low <= 0 ? "" : edgeTime(low)}:${high >= data.bins ? "" : edgeTime(high)}`;
}

// The labels that the command has selected, and the page's own.
/** @returns {string[]} */
const selectedLabels = () => [...data.selection.labels, ...state.label !== "" ? [state.label] : []];

// The values of a kind that are left out.
/** @type {(kind: string) => string[]} */
const leftOut = (kind) => state.not.filter((one) => one.startsWith(`${kind}:`)).map((one) => one.slice(kind.length + 1));

// The modes that are selected.
let hasIdle = false;
derive(() => { hasIdle = runs.mode.includes(IDLE); });
function selectedModes() {
  const without = leftOut("mode");
  return MODES.filter((mode) => state.mode !== "" ? mode === state.mode
    : !without.includes(mode) && (mode !== "idle" || state.idle !== "" || !hasIdle));
}

/** @type {(keyof typeof DEFAULTS)[]} */
const FILTERS = ["time", "pid", "tid", "label", "vcpu", "mode", "module", "function"];
const isFiltered = () => FILTERS.some((name) => state[name] !== "") || LISTS.some((name) => name !== "open" && state[name].length > 0);
