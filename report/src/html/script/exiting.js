// The view of exits: a table by reason, their times over time, how long those for one reason took, and where they were made, if there are samples of exits.

const COLOURS = 6; // of reasons; the others have one colour

/** @type {(row: ExitRow) => string} */
const reasonOf = (row) => reasonName(row.reason);

KINDS.exit = {
  rows: () => [...exited.rows],
  columns: [{ name: "reason", value: reasonOf },
    { name: "time", isNumber: true, value: (row) => row.time, text: (row) => duration(row.time) },
    { name: "share", isNumber: true, isShare: true, whole: () => exited.time, value: (row) => row.time, text: (row) => percent(row.time, exited.time) },
    number("count", (row) => row.count),
    { name: "median", isNumber: true, value: (row) => percentileOf(row, 50), text: (row) => duration(percentileOf(row, 50)) },
    { name: "99 %", isNumber: true, value: (row) => percentileOf(row, 99), text: (row) => duration(percentileOf(row, 99)),
      title: () => "99 % of the exits took no longer" },
    { name: "longest", isNumber: true, value: (row) => row.longest, text: (row) => duration(row.longest) },
    { name: "to the VMM", isNumber: true, value: (row) => row.left, text: (row) => percent(row.left, row.count) }],
  choose: (row) => changeInPlace({ exit: reasonOf(row) }, drawViews),
  isSelected: () => false,
};

function setUpExits() {
  views.exits = new Flames(element("exitgraph"), "Time in exits", showFrame, (frame) => views.exits.hold(() => change({ zoom: frame.path })));
  views.exits.isUpright = true;
}

// An element of a picture.
/** @type {(tag: string, attributes: Record<string, string | number>, ...children: Node[]) => Element} */
function shape(tag, attributes, ...children) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, String(value));
  made.append(...children);
  return made;
}

/** @param {Search} isHit */
function drawExits(isHit) {
  const halts = exited.rows.filter(isHalt);
  const [halted, waits] = [halts.reduce((sum, { time }) => sum + time, 0), halts.reduce((sum, { count }) => sum + count, 0)];
  const notes = [`${exited.total} exits took ${duration(exited.time)}, ${duration(halted)} of it in ${waits} halts.`];
  if (onlyTicks()) notes.push("Filters but those of time and vCPUs select ticks only.");
  if (state.time !== "" && !data.exits?.timed) notes.push("These are of the whole time: there are too many to tell when each was.");
  if (data.exits && data.exits.lost > 0) notes.push(`${data.exits.lost} exits aren't counted: there were too many different ones.`);
  element("exited").textContent = notes.join(" ");
  drawExitTimes();
  const row = exited.rows.find((one) => reasonOf(one) === state.exit) ?? exited.rows[0];
  drawHistogram(row);
  const root = exitTree(sums, exited);
  element("exitsamples").hidden = root.ticks === 0;
  views.exits.draw(root, frameAt(root, state.zoom), { hangs: state.view !== "flame", isInverted: false }, isHit);
  follow(views.exits, root);
}

// Whether filters select ticks that select no exits.
function onlyTicks() {
  /** @type {FilterKind[]} */
  const kinds = ["pid", "tid", "label", "mode", "module"];
  return kinds.some((kind) => state[kind] !== "" || leftOut(kind).length > 0) || state.function !== "" || state.only.length > 0 || state.hide.length > 0;
}

// The times of exits over time, but those of halts, as areas on each other.
function drawExitTimes() {
  const rows = exited.rows.filter((row) => !isHalt(row));
  element("exittimes").hidden = exitIntervals.length === 0 || rows.length === 0 || isMerged;
  if (element("exittimes").hidden) return;
  /** @type {Map<number, number>} */
  const tops = new Map();
  for (const { times } of rows) for (const [interval, time] of times) tops.set(interval, (tops.get(interval) ?? 0) + time);
  /** @type {(interval: number, time: number) => number} */
  const rate = (interval, time) => time / Math.max(exitIntervals[interval].length, 1);
  const most = Math.max(...[...tops].map(([interval, time]) => rate(interval, time)), Number.MIN_VALUE);
  const bottoms = new Map();
  const paths = rows.map(({ times }, index) => {
    let path = "";
    for (const [interval, time] of times) {
      const { begin, length } = exitIntervals[interval];
      const bottom = bottoms.get(interval) ?? 100;
      const top = bottom - 100 * rate(interval, time) / most;
      bottoms.set(interval, top);
      path += `M${(begin / 1e6).toFixed(1)} ${top.toFixed(2)}h${(length / 1e6).toFixed(1)}V${bottom.toFixed(2)}H${(begin / 1e6).toFixed(1)}z`;
    }
    return shape("path", { class: `r${Math.min(index, COLOURS)}`, d: path });
  });
  const width = data.bins * data.width / 1e6;
  element("exitchart").replaceChildren(shape("svg", { viewBox: `0 0 ${width} 100`, preserveAspectRatio: "none", role: "img", "aria-label": "Times of exits over time" }, ...paths));
  const named = rows.slice(0, COLOURS).map((row, index) => make("span", {}, make("i", { className: `r${index}` }), reasonOf(row)));
  if (rows.length > COLOURS) named.push(make("span", {}, make("i", { className: `r${COLOURS}` }), "others"));
  element("exitlegend").replaceChildren(...named);
  element("exitscale").textContent = `Time in exits but halts, over time: ${percent(most, 1)} of a vCPU's at most`;
}

// How many of the exits for a reason took how long.
/** @param {ExitRow} row */
function drawHistogram(row) {
  const [median, most] = [50, 99].map((percent) => duration(percentileOf(row, percent)));
  element("exitreason").textContent = `${reasonOf(row)}: ${row.count} exits, the median of their times is ${median}, and 99 % took no more than ${most}.`;
  const numbers = [...row.classes.keys()];
  const [first, last] = [Math.min(...numbers), Math.max(...numbers)];
  const largest = Math.max(...row.classes.values());
  const bars = [...row.classes].sort((a, b) => a[0] - b[0]).map(([number, count]) => {
    const height = Math.max(100 * count / largest, 0.5);
    const text = `${duration(classBegin(number))} to ${duration(classBegin(number + 1))}: ${count}`;
    const title = shape("title", {});
    title.textContent = text;
    return shape("rect", { x: number - first, y: (100 - height).toFixed(2), width: 1, height: height.toFixed(2), class: "r0" }, title);
  });
  const isEmpty = numbers.length === 0;
  element("exithistogram").replaceChildren(...isEmpty ? [] : [shape("svg", { viewBox: `0 0 ${last - first + 1} 100`, preserveAspectRatio: "none", role: "img",
    "aria-label": `Times of exits for ${reasonOf(row)}` }, ...bars)]);
  element("exitshortest").textContent = isEmpty ? "" : duration(classBegin(first));
  element("exitlongest").textContent = isEmpty ? "" : duration(row.longest);
}

// The command that prints the same exits.
function exitsCommand() {
  const words = ["kvmprof report --exits", data.files.length > 0 ? quoted(data.files[0]) : "FILE", ...timeOption()];
  const isOfVcpus = state.vcpu !== "" || leftOut("vcpu").length > 0 || data.selection.vcpus.length > 0;
  return withNote(words, data.files.length > 1 || isOfVcpus);
}
