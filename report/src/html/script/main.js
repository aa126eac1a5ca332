// Puts it together.

/** @type {AllSums} */
let sums;
/** @type {WaitSums} */
let waited;
/** @type {ExitSums} */
let exited;

function render() {
  transformStacks();
  sums = sumUp();
  if (hasWaits) waited = sumWaits();
  if (hasExits) exited = sumExits();
  drawFilters();
  drawTimeline();
  drawViews();
}

// Shows what the address says. Where only the view changes, the sums stay.
function showState() {
  const before = state;
  state = readState();
  tables.limit = ROWS;
  const isSame = /** @type {(keyof State)[]} */ ([...FILTERS, "regex", "idle", "group", ...LISTS]).every((name) => String(before[name]) === String(state[name]));
  if (!isSame) {
    render();
    return;
  }
  element("undo").disabled = steps() === 0;
  drawSpan();
  drawViews();
}

// Says what isn't told apart, so that the page has a bounded size.
function noteLimits() {
  let [rare, others] = [0, 0];
  for (let cell = 0; cell < cells.length; cell++) if (cells.node[cell] === data.rare) rare += cells.ticks[cell];
  for (let run = 0; run < runs.length; run++) if (threads.pid[runs.thread[run]] === null) others += runs.ticks[run];
  const notes = [];
  if (rare > 0) notes.push(`The functions of ${ticksOf(rare)} aren't shown: their stacks are too rare for a page of this size.`);
  if (others > 0) notes.push(`${ticksOf(others)} are of [others]: there are more threads than a page tells apart.`);
  element("limits").hidden = notes.length === 0;
  element("limits").textContent = notes.join(" ");
}

// What the recording is, and how much of its time is known: all about it is behind this.
function setUpBar() {
  const heading = /** @type {HTMLElement} */ (document.querySelector("h1"));
  heading.title = heading.textContent;
  const rate = data.event === null ? "" : ` · ${data.event}`;
  element("what").textContent = `${duration(data.length)} · ${vcpus.length} ${vcpus.length === 1 ? "vCPU" : "vCPUs"}${rate}`;
  const [stolen, lost, others] = MISSED.map((_, part) => missed.reduce((sum, row) => sum + row.parts[part], 0));
  const all = allTicks + stolen + lost + others;
  const part = (stolen + lost) / Math.max(all, 1);
  const pill = element("quality");
  pill.className = `pill ${part < 0.05 ? "good" : part < 0.3 ? "fair" : "poor"}`;
  const about = element("about");
  const warnings = about.querySelectorAll(".warning").length;
  pill.textContent = `${percent(stolen + lost, all)} unknown${warnings > 0 ? ` · ⚠ ${warnings}` : ""}`;
  pill.title = `${percent(stolen, all)} of the ticks were stolen by the host, ${percent(lost, all)} were lost: what the guest did in them isn't known. `
    + `About the recording, with ${warnings === 1 ? "1 warning" : `${warnings} warnings`}`;
  about.popover = "auto";
  about.setAttribute("role", "dialog");
  about.tabIndex = 0;
}

function start() {
  document.body.classList.add("tool");
  element("bar").hidden = false;
  element("tool").hidden = false;
  setUpBar();
  setUpFilters();
  setUpTimeline();
  setUpViews();
  setUpTables();
  setUpKeys();
  window.addEventListener("hashchange", showState);
  noteLimits();
  render();
  let width = element("pane").clientWidth;
  new ResizeObserver(() => {
    if (element("pane").clientWidth === width) return;
    width = element("pane").clientWidth;
    drawViews();
  }).observe(element("pane"));
}

// Shows newer data.
function refresh() {
  setUpBar();
  listChoices();
  listTabs();
  noteLimits();
  views.tree.isHeld = true;
  render();
  views.tree.isHeld = false;
}

if (cells.length > 0) start();
