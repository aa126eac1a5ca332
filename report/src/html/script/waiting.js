// The view of waits: a table by the function that waits, and a graph.

// A number with two digits at least.
/** @type {(value: number) => string} */
const rounded = (value) => value >= 10 ? value.toFixed(0) : value.toPrecision(2);
/** @type {(row: WaitRow) => number} */
const mostSeen = ({ tasks }) => [...tasks].reduce((most, one) => one[1] > most[1] ? one : most)[0];

KINDS.wait = {
  rows: () => [...waited.rows.values()],
  columns: [{ name: "waits in", value: (row) => row.fn < 0 ? "(unknown)" : functions.name[row.fn] },
    number("seen", (row) => row.seen),
    { name: "share", isNumber: true, isShare: true, whole: () => waited.total, value: (row) => row.seen, text: (row) => percent(row.seen, waited.total) },
    { name: "tasks per look", isNumber: true, value: (row) => row.seen, text: (row) => rounded(row.seen / Math.max(waited.looks, 1)) },
    number("tasks", (row) => row.tasks.size),
    { name: "longest", isNumber: true, value: (row) => row.longest, text: (row) => duration(row.longest),
      title: () => "How long a task hadn't run at least, also outside of the selected time" },
    { name: "state", value: (row) => stateName(row.state) },
    { name: "most", value: (row) => threadName(mostSeen(row)) }],
  choose: (row) => showFunction(row.fn),
  // Nothing is known of it.
  isInert: (row) => row.fn < 0,
  isSelected: (row) => selection !== null && selection.fn >= 0 && row.fn === selection.fn,
};

function setUpWaits() {
  views.waits = new Flames(element("waitgraph"), "Waits", showFrame, (frame) => views.waits.hold(() => change({ zoom: frame.path })));
  views.waits.isUpright = true;
}

/** @param {Search} isHit */
function drawWaits(isHit) {
  const notes = [`${waited.total} waits in ${waited.looks} looks at the guest's tasks.`];
  /** @type {FilterKind[]} */
  const ofTicks = ["label", "vcpu", "mode"];
  if (ofTicks.some((kind) => state[kind] !== "" || leftOut(kind).length > 0)) notes.push("Filters of labels, vCPUs and modes select ticks only.");
  if (state.time !== "" && !isTimed) notes.push("These are of the whole time: there are too many to tell when each was.");
  const rare = data.waits?.rare;
  if (rare && rare.waits > 0) notes.push(`${rare.waits} rare ones, seen ${rare.seen} times, aren't shown.`);
  element("waited").textContent = notes.join(" ");
  const root = waitTree(waited);
  views.waits.draw(root, frameAt(root, state.zoom), { hangs: state.view !== "flame", isInverted: false }, isHit);
  follow(views.waits, root);
}

// The command that prints the same waits.
function waitsCommand() {
  const [recording, pid] = state.pid.includes(":") ? state.pid.split(":") : ["", state.pid];
  const files = recording !== "" ? [data.files[Number(recording) - 1]] : data.files;
  const words = ["kvmprof report --tasks", files.length > 0 ? quoted(files[0]) : "FILE", ...data.naming.map(quoted), ...timeOption()];
  const pids = pid !== "" ? [pid] : data.selection.pids;
  if (pids.length > 0) words.push(`--pid=${pids.join(",")}`);
  const others = files.length > 1 || [state.tid, state.module, state.function].some((value) => value !== "")
    || [state.only, state.hide, state.transform].some((list) => list.length > 0)
    || ["pid", "module"].some((kind) => leftOut(kind).length > 0);
  return withNote(words, others);
}
