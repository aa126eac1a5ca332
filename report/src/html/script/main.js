// Puts it together.

let sums = null;

function render() {
  sums = sumUp();
  drawFilters();
  drawTimeline();
  drawViews();
  drawTables();
}

// Shows what the address says.
function showState() {
  state = readState();
  tables.limit = ROWS;
  render();
}

// Says what isn't told apart, so that the page has a bounded size.
function noteLimits() {
  let [rare, others] = [0, 0];
  for (let cell = 0; cell < cells.length; cell++) {
    if (cells.node[cell] === data.rare) rare += cells.ticks[cell];
    if (threads.pid[runs.thread[cells.run[cell]]] === null) others += cells.ticks[cell];
  }
  const notes = [];
  if (rare > 0) notes.push(`The functions of ${ticksOf(rare)} aren't shown: their stacks are too rare for a page of this size.`);
  if (others > 0) notes.push(`${ticksOf(others)} are of [others]: there are more threads than a page tells apart.`);
  element("limits").hidden = notes.length === 0;
  element("limits").textContent = notes.join(" ");
}

if (cells.length > 0) {
  element("tool").hidden = false;
  setUpFilters();
  setUpTimeline();
  setUpViews();
  setUpTables();
  window.addEventListener("hashchange", showState);
  let width = 0;
  new ResizeObserver(() => {
    if (element("tool").clientWidth === width) return;
    width = element("tool").clientWidth;
    drawViews();
  }).observe(element("tool"));
  render();
  noteLimits();
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && event.target.type !== "search") {
      event.preventDefault();
      element("search").focus();
    }
  });
}
