// Two recordings side by side: sides are the ticks before and after.

/** @type {(sides: Sides, side: number) => number} */
const shareOf = (sides, side) => sums.sides[side] > 0 ? sides[side] / sums.sides[side] : 0;
/** @type {(sides: Sides) => number} */
const changeOf = (sides) => shareOf(sides, 1) - shareOf(sides, 0);
/** @type {(change: number) => string} */
const points = (change) => `${change < 0 ? "" : "+"}${(100 * change).toFixed(1)} %`;
/** @type {(sides: Sides) => string} */
const changeText = (sides) => `${percent(sides[0], sums.sides[0])} before, ${percent(sides[1], sums.sides[1])} after (${points(changeOf(sides))})`;

// A number of ticks, or of waits, or a time in exits, as the tree with this root has them.
/** @type {(count: number, root: Frame) => string} */
const countOf = (count, root) => root.isOfExits ? `${duration(count)} of the sampled exits` : root.isOfWaits ? `${count} ${count === 1 ? "wait" : "waits"}` : ticksOf(count);

// The ticks of a frame and its part of all that is shown.
/** @type {(frame: Frame, root: Frame) => string} */
const countText = (frame, root) => isComparison ? changeText(frame.sides) : `${countOf(frame.ticks, root)}, ${percent(frame.ticks, root.ticks)}`;

// The class of the colour for a change of the total share: by 0.1, 1 and 5 % of all ticks, paler if that may be chance; what is on one side only, besides.
/** @type {(sides: Sides) => string} */
function changeClass(sides) {
  const change = changeOf(sides);
  const step = [0.05, 0.01, 0.001].findIndex((limit) => Math.abs(change) >= limit);
  const colour = step < 0 ? "same" : `${change > 0 ? "more" : "less"}${3 - step}${mayBeChance(intervalOf(sides)) ? " chance" : ""}`;
  return sides[1] === 0 ? `${colour} gone` : sides[0] === 0 ? `${colour} new` : colour;
}

// Neighbouring ticks depend on each other: what is known of chance is how much a share varies from one block of the selected time to the next, as in the
// report. The ticks of sides that are compared are in the order of these blocks, those before first.
const BLOCKS = 16;
/** @type {() => Sides} */
const newSides = () => isComparison ? Object.assign([0, 0], { blocks: new Uint32Array(2 * BLOCKS) }) : [0, 0];

// For each side the number of blocks in the selected bins, and how many bins each has.
/** @type {(bins: Bins) => typeof divided} */
function dividedTime([begin, end]) {
  return data.lengths.map((length) => {
    const bins = Math.max(Math.min(Math.floor(length / data.width) + 1, end) - begin, 1);
    const width = Math.ceil(bins / BLOCKS);
    return { begin, width, count: Math.ceil(bins / width) };
  });
}

/** @type {(sides: Sides, run: number, ticks: number) => void} */
function addToBlock(sides, run, ticks) {
  const side = sideOf(run);
  const { begin, width, count } = divided[side];
  const block = Math.min(Math.floor((runs.bin[run] - begin) / width), count - 1);
  if (sides.blocks) sides.blocks[side * BLOCKS + block] += ticks;
}

// How many independent ticks the ticks of both sides are worth, and the degrees of freedom: as diff/change.rs.
/** @typedef {{ part: number, whole: number }} Worth */
/** @type {(sides: Sides) => { worth: Worth[], freedom: number } | null} */
function worthOf(sides) {
  const all = sums.sides;
  const parts = sides.map((count, side) => Math.min(count, all[side]));
  const [counts, chances] = [divided.map(({ count }) => count), parts.map((part, side) => part * (all[side] - part) / Math.max(all[side], 1))];
  const { blocks } = sides;
  if (!blocks || !all.blocks || counts.some((count) => count < 2)) return null;
  const allBlocks = all.blocks;
  const squares = parts.map((part, side) => {
    let sum = 0;
    for (let block = side * BLOCKS; block < side * BLOCKS + counts[side]; block++) {
      sum += (blocks[block] - part / Math.max(all[side], 1) * allBlocks[block]) ** 2;
    }
    return sum * counts[side] / (counts[side] - 1);
  });
  /** @type {(square: number, chance: number) => number} */
  const times = (square, chance) => chance > 0 ? square / chance : 1;
  const both = times(squares[0] + squares[1], chances[0] + chances[1]);
  const worth = parts.map((part, side) => {
    const stretch = Math.max(times(squares[side], chances[side]), both, 1);
    return { part: part / stretch, whole: all[side] / stretch };
  });
  return { worth, freedom: freedomOf(worth, counts) };
}

// The degrees of freedom (Welch), as a whole number.
/** @type {(worth: Worth[], counts: number[]) => number} */
function freedomOf(worth, counts) {
  const [one, other] = worth.map(({ whole }) => 1 / Math.max(whole, 1));
  const freedom = (one + other) ** 2 / (one ** 2 / (counts[0] - 1) + other ** 2 / (counts[1] - 1));
  return Math.max(Math.floor(freedom + 1e-6), 1);
}

// Wilson's interval of `z` standard errors, and by it Newcombe's of the difference of two shares.
/** @type {(worth: Worth[], z: number) => { change: number, low: number, high: number }} */
function difference(worth, z) {
  const [before, after] = worth.map(({ part, whole }) => {
    if (whole === 0) return { value: 0, low: 0, high: 1 };
    const value = part / whole;
    const scale = 1 + z * z / whole;
    const middle = (value + z * z / (2 * whole)) / scale;
    const half = z / scale * Math.sqrt(value * (1 - value) / whole + z * z / (4 * whole * whole));
    return { value, low: Math.max(0, middle - half), high: Math.min(1, middle + half) };
  });
  const change = after.value - before.value;
  return { change, low: change - Math.hypot(after.value - after.low, before.high - before.value),
    high: change + Math.hypot(after.high - after.value, before.value - before.low) };
}

// The 95 % confidence interval of a change, taken alone. Without two blocks of time nothing is known of chance.
/** @type {(sides: Sides) => { change: number, low: number, high: number }} */
function intervalOf(sides) {
  const known = worthOf(sides);
  return known === null ? { change: changeOf(sides), low: -1, high: 1 } : difference(known.worth, quantile(known.freedom));
}

/** @type {(interval: { low: number, high: number }) => boolean} */
const mayBeChance = ({ low, high }) => low <= 0 && high >= 0;
/** @type {(interval: { low: number, high: number }) => string} */
const changeInterval = ({ low, high }) => `${points(low)} to ${points(high)}`;

/** @type {(sides: Sides) => string} */
function chanceText(sides) {
  const interval = intervalOf(sides);
  return `95 % confidence of this change alone: ${changeInterval(interval)}${mayBeChance(interval) ? ", may be chance" : ""}`;
}

// The number from 0 to 40 up to which `isBelow` is true, which is true up to there only.
/** @type {(isBelow: (at: number) => boolean) => number} */
function bisect(isBelow) {
  let [low, high] = [0, 40];
  for (let step = 0; step < 50; step++) {
    const middle = (low + high) / 2;
    if (isBelow(middle)) low = middle;
    else high = middle;
  }
  return low;
}

// The probability of such a change, or a bigger one, by chance alone: by the widest interval without 0.
/** @type {(worth: Worth[], freedom: number) => number} */
function probability(worth, freedom) {
  /** @type {(z: number) => boolean} */
  const isWithout0 = (z) => {
    const { low, high } = difference(worth, z);
    return low > 0 || high < 0;
  };
  return isWithout0(0) ? beyond(bisect(isWithout0), freedom) : 1;
}

// The probability that Student's t is farther from 0 than `t` (Abramowitz and Stegun, 26.7.3 and 26.7.4).
/** @type {(t: number, freedom: number) => number} */
function beyond(t, freedom) {
  const angle = Math.atan(t / Math.sqrt(freedom));
  const square = Math.cos(angle) ** 2;
  const isOdd = freedom % 2 === 1;
  let [sum, term] = [0, isOdd ? Math.cos(angle) : 1];
  for (let left = isOdd ? 3 : 2; left <= freedom; left += 2) {
    sum += term;
    term *= square * (left - 1) / left;
  }
  const within = isOdd ? 2 / Math.PI * (angle + Math.sin(angle) * sum) : Math.sin(angle) * sum;
  return Math.min(Math.max(1 - within, 0), 1);
}

// The t that 5 % are beyond.
/** @type {Map<number, number>} */
const quantiles = new Map();
/** @type {(freedom: number) => number} */
function quantile(freedom) {
  const known = quantiles.get(freedom) ?? bisect((t) => beyond(t, freedom) > 0.05);
  quantiles.set(freedom, known);
  return known;
}

// Compares all rows of a table, and corrects the probabilities for their number (Holm), as the report does.
/** @type {(rows: any[]) => void} */
function compareRows(rows) {
  for (const [sides, name] of [["sides", "change"], ["ownSides", "ownChange"], ["totalSides", "totalChange"]]) {
    const compared = rows.filter((row) => row[sides] && row[sides][0] + row[sides][1] > 0);
    rows.forEach((row) => { row[name] = { change: 0, low: 0, high: 0, p: 1 }; });
    compared.forEach((row) => {
      const known = worthOf(row[sides]);
      row[name] = { ...intervalOf(row[sides]), p: known === null ? 1 : probability(known.worth, known.freedom) };
    });
    let least = 0;
    compared.sort((a, b) => a[name].p - b[name].p).forEach((row, rank) => {
      least = Math.min(1, Math.max(least, row[name].p * (compared.length - rank)));
      row[name].p = least;
    });
  }
}

// The columns of what changed. The first table is sorted by the size of changes.
/** @type {(prefix: string, sidesOf: (row: any) => Sides, name: string) => Column[]} */
function changeColumns(prefix, sidesOf, name) {
  /** @type {(side: number, text: string) => Column} */
  const count = (side, text) => ({ name: `${prefix}${text}`, isNumber: true, value: (row) => shareOf(sidesOf(row), side),
    text: (row) => `${sidesOf(row)[side]} (${percent(sidesOf(row)[side], sums.sides[side])})` });
  /** @type {(row: any) => string} */
  const interval = (row) => changeInterval(row[name]);
  /** @type {(row: any) => string} */
  const title = (row) => `95 % confidence of this change alone: ${changeInterval(row[name])}`;
  /** @type {(row: any) => string} */
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
  const words = ["kvmprof diff", ...new Set(data.files.map(quoted)), ...data.naming.map(quoted), "--json"];
  const times = data.times.map((time) => `${edgeTimeIn(begin, time, time.begin ?? 0)}:${edgeTimeIn(end, time, time.begin ?? 0)}`);
  const isSame = times.every((time) => time === times[0]);
  if (times[0] !== ":" || !isSame) (isSame ? times.slice(0, 1) : times).forEach((time) => words.push(`--time ${time}`));
  const { options, others } = optionsOfFilters(given, given.pids);
  return withNote([...words, ...options], others || state.pid !== "");
}
