// The parts of the page's script that tests call without a browser, over data that tests write as tables.
import fs from 'node:fs'
import vm from 'node:vm'

const folder = new URL('../../src/html/script/', import.meta.url)
// In the order in which page.rs has them.
const FILES = ['data.js', 'state.js', 'transforms.js', 'sums.js', 'change.js', 'tree.js', 'waits.js', 'exits.js', 'flames.js', 'chart.js', 'details.js', 'views.js', 'lanes.js', 'filters.js', 'newer.js']
export const MODES = ['user', 'kernel', 'interrupt', 'idle']

const NO_CRITERIA = { pids: [], tids: [], comms: [], vcpus: [], modes: [], labels: [], modules: [], greps: [] }

// Numbers as the module `pack` writes them.
class Packing {
  bytes = []

  push (number) {
    for (; number >= 128; number = Math.floor(number / 128)) this.bytes.push(number % 128 + 128)
    this.bytes.push(number)
    return this
  }

  pushDifference (from, to) {
    return this.push(to >= from ? 2 * (to - from) : 2 * (from - to) - 1)
  }

  toString () {
    return Buffer.from(this.bytes).toString('base64')
  }
}

const indexIn = (list, value) => list.includes(value) ? list.indexOf(value) : list.push(value) - 1

// Where tasks waited, by looks in these bins.
function waitsOf (waits, bins, nodeOf) {
  const looks = new Packing().push(bins.length)
  bins.forEach((bin, look) => looks.pushDifference(bins[look - 1] ?? 0, bin))
  const [threads, rows] = [[], new Packing()]
  let last = 0
  for (const { pid, state, stack, runs, longest = 0 } of waits) {
    const thread = indexIn(threads, pid)
    rows.pushDifference(last, thread).push(state).push(nodeOf(stack)).push(runs.reduce((sum, [first, end]) => sum + end - first, 0)).push(longest).push(runs.length)
    runs.forEach(([first, end], run) => rows.pushDifference(runs[run - 1]?.[1] ?? 0, first).push(end - first))
    last = thread
  }
  return {
    looks: [String(looks)], states: ['runnable (R)', 'sleeping (S)', 'uninterruptible (D)'], timed: true, rows: String(rows), rare: { waits: 0, seen: 0 },
    threads: { recording: threads.map(() => 0), pid: threads, tid: threads, name: threads.map(pid => `w${pid}`) }
  }
}

// Exits for reasons, in intervals of the length of a bin.
function exitsOf (exits) {
  const [reasons, intervals, rows] = [[], new Packing(), new Packing()]
  const bins = [...new Set(exits.map(({ bin }) => bin))]
  bins.forEach((bin, index) => intervals.pushDifference(bins[index - 1] ?? 0, bin).push(bin * 1e9).push(1e9))
  let last = 0
  for (const { bin, reason, vcpu = 0, time, left = 0, longest = time, classes } of exits) {
    const interval = bins.indexOf(bin)
    const counts = Object.entries(classes).map(entry => entry.map(Number))
    rows.pushDifference(last, interval).push(indexIn(reasons, reason)).push(vcpu).push(counts.reduce((sum, [, count]) => sum + count, 0))
      .push(time).push(left).push(longest).push(counts.length)
    counts.forEach(([number, count], index) => rows.push(number - (index === 0 ? 0 : counts[index - 1][0] + 1)).push(count))
    last = interval
  }
  return { reasons, halts: reasons.map(reason => Number(reason === 'hlt')), timed: true, intervals: String(intervals), rows: String(rows), lost: 0 }
}

// Frames of stacks are written outermost first, as NAME or NAME@MODULE; brackets make a module the kernel's, - makes a frame inlined and ~ cut short. `labels`
// are by pid.
export function dataOf (samples, waits = [], looks = [], exits = [], { missed = [], labels = {} } = {}) {
  const [names, modules, processes] = [[], [''], []]
  const nodes = ['root']
  const nodeOf = stack => stack.split(' ').filter(Boolean).reduce((parent, text) => {
    const [, mark, frame] = /^([-~]?)(.*)$/.exec(text)
    const name = frame.includes('@') ? frame : `${frame}@`
    indexIn(modules, name.split('@')[1])
    return indexIn(nodes, `${parent} ${4 * indexIn(names, name) + { '': 0, '~': 1, '-': 2 }[mark]}`)
  }, 0)
  const rows = samples.map(({ stack, pid = 7, mode = 'user', bin = 0, vcpu = 0, ticks = 1 }) =>
    ({ bin, vcpu, mode: MODES.indexOf(mode), thread: indexIn(processes, pid), node: nodeOf(stack), ticks }))
  const waited = looks.length > 0 ? { waits: waitsOf(waits, looks, nodeOf) } : {}
  const exited = exits.length > 0 ? { exits: exitsOf(exits) } : {}
  rows.sort((a, b) => a.bin - b.bin || a.vcpu - b.vcpu || a.mode - b.mode || a.thread - b.thread || a.node - b.node)
  const packedNodes = new Packing().push(nodes.length)
  nodes.slice(1).forEach((node, index) => {
    const [parent, number] = node.split(' ').map(Number)
    packedNodes.push(index + 1 - parent).push(number)
  })
  const cells = new Packing().push(rows.length)
  let [bin, thread] = [0, 0]
  for (const row of rows) {
    cells.push(row.bin - bin).push(4 * row.vcpu + row.mode).pushDifference(thread, row.thread).push(1).push(row.node).push(row.ticks)
    ;[bin, thread] = [row.bin, row.thread]
  }
  const packedMissed = new Packing()
  for (const { bin, vcpu = 0, parts } of missed) [bin, vcpu, 0, ...parts].forEach(number => packedMissed.push(number))
  const labelled = Object.keys(labels).length > 0 ? { labels: processes.map(pid => labels[pid] ?? {}), labelled: processes.map((_, thread) => thread) } : {}
  const bins = Math.max(...rows.map(row => row.bin)) + 1
  return {
    begin: 0, width: 1e9, bins, length: 1e9 * bins - 1, lengths: [1e9 * bins - 1], times: [{ begin: null, end: null }], restarts: [], pauses: [], execs: [],
    comparison: false, files: [], naming: [], hz: 1, event: null, code: [], rare: -1,
    selection: { ...NO_CRITERIA, not: NO_CRITERIA, transforms: [] },
    processes: { recording: processes.map(() => 0), pid: processes, name: processes.map(pid => `p${pid}`) },
    threads: { recording: processes.map(() => 0), pid: processes, tid: processes, name: processes.map(pid => `p${pid}`) },
    modules: { name: modules, build: modules.map(() => '') },
    functions: {
      name: names.map(name => name.split('@')[0]),
      module: names.map(name => modules.indexOf(name.split('@')[1])),
      kernel: names.map(name => Number(name.includes('@['))),
      low: names.map(() => ''), span: names.map(() => ''), lines: names.map(() => '')
    },
    halted: { threads: [null], node: 0 },
    nodes: String(packedNodes), cells: String(cells), missed: String(packedMissed), ...waited, ...exited, ...labelled
  }
}

const SUM_UP = 'transformStacks(); sums = sumUp(); waited = hasWaits ? sumWaits() : null; exited = hasExits ? sumExits() : null;'

// Has a script read newer data, as a live page does, and returns what that says.
export function readNewer (script, data) {
  return script(`{ const isFine = readNewer(${JSON.stringify(JSON.stringify(data))}); ${SUM_UP} isFine }`)
}

// The script with this data, and with the address `hash`. Returns what evaluates an expression in it.
export function load (data, hash = '') {
  const elements = { data: { textContent: JSON.stringify(data) }, svg: {} }
  const context = vm.createContext({
    document: { getElementById: id => elements[id] }, location: { hash }, URLSearchParams, TextEncoder, atob
  })
  const files = FILES.map(name => fs.readFileSync(new URL(name, folder), 'utf8'))
  vm.runInContext(`"use strict";\n${files.join('\n')}\nlet sums = null; let waited = null; let exited = null;\n${SUM_UP}`, context)
  return expression => vm.runInContext(expression, context)
}
