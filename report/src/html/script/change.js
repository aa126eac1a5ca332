// Two recordings side by side: sides are the ticks before and after.

const shareOf = (sides, side) => sums.sides[side] > 0 ? sides[side] / sums.sides[side] : 0;
const changeOf = (sides) => shareOf(sides, 1) - shareOf(sides, 0);
const points = (change) => `${change < 0 ? "" : "+"}${(100 * change).toFixed(1)} %`;
const changeText = (sides) => `${percent(sides[0], sums.sides[0])} before, ${percent(sides[1], sums.sides[1])} after (${points(changeOf(sides))})`;

// The ticks of a frame and its part of all that is shown.
const countText = (frame, root) => isComparison ? changeText(frame.sides) : `${ticksOf(frame.ticks)}, ${percent(frame.ticks, root.ticks)}`;

// The class of the colour for a change of the total share: by 0.1, 1 and 5 % of all ticks; what is on one side only, besides.
function changeClass(sides) {
  const change = changeOf(sides);
  const step = [0.05, 0.01, 0.001].findIndex((limit) => Math.abs(change) >= limit);
  const colour = step < 0 ? "same" : `${change > 0 ? "more" : "less"}${3 - step}`;
  return sides[1] === 0 ? `${colour} gone` : sides[0] === 0 ? `${colour} new` : colour;
}

// Wilson's interval of `z` standard errors, and by it Newcombe's of the difference of two shares, as in the report.
function difference(sides, z) {
  const [before, after] = sides.map((count, side) => {
    const whole = sums.sides[side];
    if (whole === 0) return { value: 0, low: 0, high: 1 };
    const value = Math.min(count, whole) / whole;
    const scale = 1 + z * z / whole;
    const middle = (value + z * z / (2 * whole)) / scale;
    const half = z / scale * Math.sqrt(value * (1 - value) / whole + z * z / (4 * whole * whole));
    return { value, low: Math.max(0, middle - half), high: Math.min(1, middle + half) };
  });
  const change = after.value - before.value;
  return { change, low: change - Math.hypot(after.value - after.low, before.high - before.value),
    high: change + Math.hypot(after.high - after.value, before.value - before.low) };
}

// The probability of such a change, or a bigger one, by chance alone: by the widest interval without 0.
function probability(sides) {
  const containsNothing = (z) => {
    const { low, high } = difference(sides, z);
    return low <= 0 && high >= 0;
  };
  if (containsNothing(0)) return 1;
  let [outside, inside] = [0, 40];
  for (let step = 0; step < 40; step++) {
    const middle = (outside + inside) / 2;
    if (containsNothing(middle)) inside = middle;
    else outside = middle;
  }
  return errorComplement(outside / Math.SQRT2);
}

// erfc for numbers from 0, to 1.2e-7 of its value (Numerical Recipes, 6.2).
function errorComplement(x) {
  const t = 1 / (1 + x / 2);
  const terms = [0.17087277, -0.82215223, 1.48851587, -1.13520398, 0.27886807, -0.18628806, 0.09678418, 0.37409196, 1.00002368, -1.26551223];
  return t * Math.exp(-x * x + terms.reduce((sum, term) => sum * t + term, 0));
}

// Compares all rows of a table, and corrects the probabilities for their number (Holm), as the report does.
function compareRows(rows) {
  for (const [sides, name] of [["sides", "change"], ["ownSides", "ownChange"], ["totalSides", "totalChange"]]) {
    const compared = rows.filter((row) => row[sides] && row[sides][0] + row[sides][1] > 0);
    rows.forEach((row) => { row[name] = { change: 0, low: 0, high: 0, p: 1 }; });
    compared.forEach((row) => { row[name] = { ...difference(row[sides], 1.959964), p: probability(row[sides]) }; });
    let least = 0;
    compared.sort((a, b) => a[name].p - b[name].p).forEach((row, rank) => {
      least = Math.min(1, Math.max(least, row[name].p * (compared.length - rank)));
      row[name].p = least;
    });
  }
}

// The columns of what changed. The first table is sorted by the size of changes.
function changeColumns(prefix, sidesOf, name) {
  const count = (side, text) => ({ name: `${prefix}${text}`, isNumber: true, value: (row) => shareOf(sidesOf(row), side),
    text: (row) => `${sidesOf(row)[side]} (${percent(sidesOf(row)[side], sums.sides[side])})` });
  const interval = (row) => `${points(row[name].low)} to ${points(row[name].high)}`;
  const title = (row) => `95 % confidence of this change alone: ${interval(row)}`;
  const chance = (row) => row[name].p < 0.05 ? `p ${row[name].p < 0.001 ? "< 0.001" : row[name].p.toFixed(3)}` : "may be chance";
  return [
    { name: `${prefix}change`, isNumber: true, value: (row) => Math.abs(row[name].change), text: (row) => points(row[name].change), title, interval },
    { name: `${prefix}confidence`, isNumber: true, value: (row) => -row[name].p, text: chance, title },
    count(0, "before"), count(1, "after"),
  ];
}

// The command that prints the same changes of functions.
function comparisonCommand() {
  const given = data.selection;
  const [begin, end] = selectedBins();
  // Two times of one recording are compared by its name alone.
  const words = ["kvmprof diff", ...new Set(data.files.map(quoted)), "--json"];
  const times = data.times.map((time) => `${edgeTimeIn(begin, time, time.begin ?? 0)}:${edgeTimeIn(end, time, time.begin ?? 0)}`);
  const isSame = times.every((time) => time === times[0]);
  if (times[0] !== ":" || !isSame) (isSame ? times.slice(0, 1) : times).forEach((time) => words.push(`--time ${time}`));
  if (given.pids.length > 0) words.push(`--pid=${given.pids.join(",")}`);
  given.comms.forEach((comm) => words.push(`--comm ${quoted(comm)}`));
  const [vcpu, mode] = [state.vcpu !== "" ? [state.vcpu] : given.vcpus, state.mode !== "" ? [state.mode] : given.modes];
  if (vcpu.length > 0) words.push(`--vcpu=${vcpu.join(",")}`);
  if (mode.length > 0) words.push(`--mode=${mode.join(",")}`);
  if (given.grep !== null) words.push(`--grep ${quoted(given.grep)}`);
  const others = ["pid", "tid", "module", "function"].some((name) => state[name] !== "");
  if (others || state.only.length > 0 || state.hide.length > 0) words.push("   # without the other filters");
  return words.join(" ");
}
