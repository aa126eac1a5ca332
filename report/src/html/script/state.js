// What is selected and how it is shown. It stands in the address of the page, so that it can be kept and Back works.

const DEFAULTS = {
  time: "", pid: "", tid: "", label: "", vcpu: "", mode: "", module: "", function: "", regex: "",
  view: "flame", group: "process", order: "share", fold: "", search: "", about: "", zoom: "",
  lanes: "vcpu", table: "function", intervals: "",
};
const CHOICES = {
  view: ["flame", "icicle", "inverted", "sandwich"], group: ["process", "thread", "merged", ...labelKeys.map((key) => `label ${key}`)],
  order: ["share", "time", "name"], lanes: ["vcpu", "process", "thread"],
  table: ["function", "module", "process", "thread", "vcpu"],
};

let state = readState();

function readState() {
  const words = new URLSearchParams(location.hash.slice(1));
  const read = { only: words.getAll("only"), hide: words.getAll("hide") };
  for (const [name, value] of Object.entries(DEFAULTS)) read[name] = words.get(name) ?? value;
  for (const [name, choices] of Object.entries(CHOICES)) {
    if (!choices.includes(read[name])) read[name] = DEFAULTS[name];
  }
  return read;
}

function hashOf(wanted) {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(DEFAULTS)) {
    if (wanted[name] !== value) words.set(name, wanted[name]);
  }
  for (const name of ["only", "hide"]) wanted[name].forEach((key) => words.append(name, key));
  return `#${words}`;
}

// Changes the state, by a step that Back undoes. Browsers scroll to the begin of the page when they go to an empty hash themselves.
function change(changes) {
  const hash = hashOf({ ...state, ...changes });
  if (hash === hashOf(state)) return;
  history.pushState(null, "", hash);
  showState();
}

// The same as a part of the present step: a text that is being typed.
function changeInPlace(changes) {
  const hash = hashOf({ ...state, ...changes });
  if (hash === hashOf(state)) return;
  history.replaceState(null, "", hash);
  showState();
}

// Changes what is searched for, which selects nothing: the sums stay. It is no step of its own.
function search(text) {
  const hash = hashOf({ ...state, search: text });
  if (hash === hashOf(state)) return;
  history.replaceState(null, "", hash);
  state = readState();
  drawViews();
  drawTables();
}

// The selected bins, as the first one and the one behind the last: the nearest edges of bins, at least one bin.
function selectedBins() {
  if (!/^[\d.]*:[\d.]*$/.test(state.time)) return [0, data.bins];
  const [begin, end] = state.time.split(":");
  const edge = (text, open) => {
    const found = text === "" ? open : Math.round((parseFloat(text) * 1e9 - data.begin) / data.width);
    return Number.isFinite(found) ? Math.min(Math.max(found, 0), data.bins) : open;
  };
  const first = Math.min(edge(begin, 0), data.bins - 1);
  return [first, Math.max(end === "" || edgeTime(data.bins) === end ? data.bins : edge(end, data.bins), first + 1)];
}

// The range of time from one edge to another, for the state.
function timeRange(first, end) {
  const [low, high] = [Math.min(first, end), Math.max(first, end)];
  if (low <= 0 && high >= data.bins) return "";
  return `${low <= 0 ? "" : edgeTime(low)}:${high >= data.bins ? "" : edgeTime(high)}`;
}

// The labels that the command has selected, and the page's own.
const selectedLabels = () => [...data.selection.labels ?? [], ...state.label !== "" ? [state.label] : []];

const FILTERS = ["time", "pid", "tid", "label", "vcpu", "mode", "module", "function"];
const isFiltered = () => FILTERS.some((name) => state[name] !== "") || state.only.length > 0 || state.hide.length > 0;
