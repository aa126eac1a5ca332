// The filters, which combine.

function setUpFilters() {
  const listed = processes.pid.map((_, process) => process).filter((process) => sameProcess[process] === process);
  fill("pid", listed.map((process) => [processId(process), processName(process)]));
  fill("label", labelNames.map((label) => [label, label]));
  element("label").parentElement.hidden = labelNames.length === 0;
  fill("vcpu", vcpus.map((vcpu) => [String(vcpu), `vCPU ${vcpu}`]));
  fill("mode", MODES.map((mode) => [mode, mode]));
  const isWithout = nodesWith(functionsWhere((_, fn) => moduleName(fn) === ""));
  const isAnyWithout = cells.node.some((node) => isWithout[node] === 1);
  fill("module", modules.name.filter((name) => name !== "" || isAnyWithout).map((name) => name || NO_MODULE).map((name) => [name, name]));
  element("pid").addEventListener("change", (event) => change({ pid: event.target.value, tid: "", zoom: "" }));
  for (const name of ["tid", "label", "vcpu", "mode", "module"]) {
    element(name).addEventListener("change", (event) => change({ [name]: event.target.value, zoom: "" }));
  }
  // What is typed from one pause to the next is one step.
  let isTyping = false;
  setUpSearch(element("function"), (text, isDone) => {
    if (text !== state.function) (isTyping ? changeInPlace : change)({ function: text, zoom: "" });
    isTyping = !isDone;
  });
  element("regex").addEventListener("change", (event) => change({ regex: event.target.checked ? "1" : "", zoom: "" }));
  element("clear").addEventListener("click", () => {
    const cleared = Object.fromEntries(FILTERS.map((name) => [name, ""]));
    change({ ...cleared, regex: "", only: [], hide: [], zoom: "" });
  });
  element("copycommand").addEventListener("click", (event) => copy(element("command").textContent, event.target));
}

// Fills a list with the choices; the first one is all.
function fill(id, choices) {
  const all = make("option", { value: "", textContent: "all" });
  element(id).replaceChildren(all, ...choices.map(([value, textContent]) => make("option", { value, textContent })));
}

function drawFilters() {
  const own = threads.tid.map((tid, thread) => [thread, tid]).filter(([thread, tid]) =>
    tid !== null && sameThread[thread] === thread && (state.pid === "" || processId(processOf[thread]) === state.pid));
  fill("tid", own.slice(0, 2000).map(([thread]) => [threadId(thread), threadName(thread)]));
  for (const name of ["pid", "tid", "label", "vcpu", "mode", "module"]) element(name).value = state[name];
  if (document.activeElement !== element("function")) element("function").value = state.function;
  element("regex").checked = state.regex !== "";
  const isWrong = state.function !== "" && matcher(state.function, state.regex !== "") === null;
  element("function").setAttribute("aria-invalid", isWrong);
  element("wrong").hidden = !isWrong;
  element("clear").disabled = !isFiltered();
  drawChips();
  const [stolen, lost] = sums.missed;
  element("total").textContent = isComparison ? `${ticksOf(sums.sides[0])} selected before, ${ticksOf(sums.sides[1])} after.` : `${ticksOf(sums.total)} selected, ${percent(sums.total, allTicks)} of all; besides ${stolen} stolen, ${lost} lost.`;
  element("command").textContent = command();
}

// The functions that stacks have to have, or may not have.
function drawChips() {
  const chip = (list, text, key) => {
    const name = nameOfKey(key);
    const without = () => change({ [list]: state[list].filter((other) => other !== key), zoom: "" });
    return make("button", { type: "button", className: "chip", textContent: `${text} ${name} ✕`, onclick: without,
      "aria-label": `${text} ${name}: remove this filter` });
  };
  element("chips").replaceChildren(
    ...state.only.map((key) => chip("only", "only", key)), ...state.hide.map((key) => chip("hide", "without", key)));
}

// What regular expressions of browsers have and those of the command line don't: looking ahead and behind, and references to groups.
const ONLY_OF_BROWSERS = /\(\?<?[=!]|\\[1-9]|\\k</;

// The command that prints the same numbers; filters that it doesn't have are left out, and said so.
function command() {
  const given = data.selection;
  if (isComparison) return comparisonCommand();
  const [recording, pid] = state.pid.includes(":") ? state.pid.split(":") : ["", state.pid];
  // A process is in one recording only.
  const files = recording !== "" ? [data.files[recording - 1]] : isMerged ? data.files : ["FILE"];
  const words = ["kvmprof report", ...files.map((file) => isMerged ? quoted(file) : file)];
  const [begin, end] = selectedBins();
  const time = `${edgeTime(begin)}:${edgeTime(end)}`;
  if (time !== ":") words.push(`--time ${time}`);
  const list = (option, chosen, others) => {
    const values = chosen !== "" ? [chosen] : others;
    if (values.length > 0) words.push(`--${option}=${values.join(",")}`);
  };
  list("pid", pid, given.pids);
  given.comms.forEach((comm) => words.push(`--comm ${quoted(comm)}`));
  list("vcpu", state.vcpu, given.vcpus);
  list("mode", state.mode, given.modes);
  selectedLabels().forEach((label) => words.push(`--label ${quoted(label)}`));
  // The page has no difference between capital and small letters.
  const pattern = state.regex !== "" ? state.function : state.function.replace(/[\\^$.*+?()[\]{}|]/g, "\\$&");
  const isGiven = state.function !== "" && given.grep === null && !(state.regex !== "" && ONLY_OF_BROWSERS.test(pattern));
  const grep = isGiven ? `(?i)${pattern}` : given.grep;
  if (grep !== null) words.push(`--grep ${quoted(grep)}`);
  const others = state.tid !== "" || state.module !== "" || state.function !== "" && !isGiven;
  if (others || state.only.length > 0 || state.hide.length > 0) words.push("   # without the other filters");
  return words.join(" ");
}

// `text` as one word of a shell.
const quoted = (text) => /^[\w./:=,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
