// Newer data of the same guest, for a live page. What the address and the selection have by its number keeps it: functions, modules, processes and threads.

// Adds the rows of a newer table: those that the table has already, by `keyOf`, replace these. Returns the numbers that they have there.
/** @type {<Table extends { name: string[] }>(table: Table, newer: Table, keyOf: (table: Table, row: number) => string) => number[]} */
function addRows(table, newer, keyOf) {
  const columns = /** @type {Record<string, unknown[]>} */ (table);
  const known = new Map(table.name.map((_, row) => [keyOf(table, row), row]));
  return newer.name.map((_, row) => {
    const key = keyOf(newer, row);
    const number = known.get(key) ?? table.name.length;
    known.set(key, number);
    for (const [name, column] of Object.entries(newer)) columns[name][number] = column[row];
    return number;
  });
}

/** @type {(table: typeof functions, fn: number) => string} */
const functionKey = (table, fn) => table === functions && isOfModule(fn) ? `module ${fn}` : JSON.stringify([table.name[fn], table.module[fn], table.kernel[fn]]);
/** @type {(table: typeof threads, thread: number) => string} */
const threadKey = (table, thread) => JSON.stringify([table.recording[thread], table.pid[thread], table.tid[thread], table.labels[thread]]);

// Reads newer data. False if most of what the tables have is of older ones only: a guest could have them grow forever by new names.
/** @param {string} text */
function readNewer(text) {
  /** @type {PageData} */
  const newer = JSON.parse(text);
  const ofModules = addRows(modules, newer.modules, (table, row) => table.name[row]);
  newer.functions.module = newer.functions.module.map((module) => ofModules[module]);
  addRows(processes, newer.processes, (table, row) => `${table.recording[row]}:${table.pid[row]}`);
  renumbered = { functions: addRows(functions, newer.functions, functionKey), threads: addRows(threads, labelledThreads(newer), threadKey) };
  for (const code of newer.code) code.function = renumbered.functions[code.function];
  data = newer;
  for (const compute of derivations) compute();
  return [[functions, newer.functions], [threads, newer.threads]].every(([all, own]) => all.name.length <= 4 * own.name.length + 1000);
}
