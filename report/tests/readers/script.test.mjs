// Tests of the page's script without a browser: transforms, filters and totals.
import assert from 'node:assert/strict'
import fs from 'node:fs'
import { test } from 'node:test'
import { MODES, dataOf, load, readNewer } from './loaded.mjs'

const hashOf = words => `#${new URLSearchParams(words)}`

// All stacks that are shown, as they are written in tables, with their ticks.
const shown = script => JSON.parse(script(`JSON.stringify(sums.stacks.map(({ node, ticks }) => {
  const frames = []
  for (let at = node; at > 0; at = nodes.parent[at]) frames.unshift(['', '~', '-', '~-'][nodes.flags[at]] + functions.name[nodes.fn[at]])
  return frames.join(' ') + ' ' + ticks
}).sort())`))

// Those that the program's transforms have, too: functions are written by their names alone there.
const { stacks, cases } = JSON.parse(fs.readFileSync(new URL('../data/transforms.json', import.meta.url)))
const STACKS = stacks.map(([stack, ticks]) => ({ stack, ticks }))

// A transform as the page has it.
function onPage (text, script) {
  const [kind, value] = text.split(/=(.*)/)
  const numberOf = name => script('functions.name').indexOf(name)
  if (kind === 'subtree') return `${kind}:${value.split(';').map(numberOf).join('.')}`
  if (kind.endsWith('-module')) return `${kind}:${value}`
  return `${kind}:${numberOf(value) < 0 ? `${value}|app|u` : script(`keyOf(${numberOf(value)})`)}`
}

for (const { name, of = STACKS, transforms, expected } of cases) {
  test(`Transform, ${name}`, () => {
    const data = dataOf(of === STACKS ? of : of.map(([stack, ticks]) => ({ stack, ticks })))
    const page = transforms.map(one => onPage(one, load(data)))
    const script = load(data, hashOf(page.map(one => ['transform', one])))
    assert.deepEqual(shown(script), expected)
    assert.equal(script('sums.total'), expected.reduce((sum, stack) => sum + Number(stack.split(' ').at(-1)), 0))
  })
}

test('Transform, what there is none of, and what is called as a module that has become a function', () => {
  const all = shown(load(dataOf(STACKS)))
  const of = transforms => shown(load(dataOf(STACKS), hashOf(transforms.map(one => ['transform', one]))))
  assert.deepEqual(of(['merge:other|app|u', 'collapse:other|app|u', 'recursion:x|y|k', 'collapse-module:other', 'no such:main|app|u', 'merge']), all)
  assert.deepEqual(of(['collapse-module:libc', 'focus:libc|libc|u']), ['libc 4', 'libc enter 3'])
  assert.deepEqual(of(['subtree:']), [])
})

test('Transform, the command has what it knows by name', () => {
  const data = dataOf([...STACKS, { stack: 'same@app one@libc' }, { stack: 'same@libc' }])
  const options = transforms => load(data, hashOf(transforms.map(one => ['transform', one])))('(({ options, others }) => [...options, others])(optionsOfFilters(data.selection, []))')
  const known = ['merge:eval|app|u', 'subtree:0.1', 'focus-module:libc', 'collapse-module:[kernel]', 'recursion:main|app|u', 'collapse:read|libc|u', 'focus:copy|[kernel]|k']
  for (const one of known.slice(0, 6)) assert.equal(options([one]).at(-1), false, one)
  assert.deepEqual([...options(known.slice(0, 4))],
    ['--transform merge=eval', "--transform 'subtree=main;eval'", '--transform focus-module=libc', "--transform 'collapse-module=[kernel]'", false])
  for (const one of ['merge:same|app|u', 'merge:other|app|u', 'no such:main|app|u', 'collapse-module:[none]', 'subtree:']) assert.deepEqual([...options([one])], [true], one)
})

test('Transform, all trees and tables have all ticks', () => {
  for (const transform of ['merge:main|app|u', 'merge:eval|app|u', 'collapse:main|app|u', 'recursion:eval|app|u', 'collapse-module:libc']) {
    const script = load(dataOf(STACKS), hashOf({ transform }))
    for (const tree of ['callTree', 'invertedTree']) assert.equal(script(`${tree}(sums).ticks`), 10, `${transform} ${tree}`)
    const own = script('sumFunctions(sums.stacks, fn => fn).reduce((sum, row) => sum + row.own, 0)')
    // Those of the outermost function are nobody's when it is merged.
    const merged = script('sums.stacks.reduce((sum, { node, ticks }) => sum + (node === 0 ? ticks : 0), 0)')
    assert.equal(own + merged, 10, transform)
  }
})

const TICKS = [
  { stack: 'main@app read@libc', pid: 7, mode: 'user', bin: 0, vcpu: 0, ticks: 5 },
  { stack: 'main@app read@libc copy@[kernel]', pid: 7, mode: 'kernel', bin: 1, vcpu: 1, ticks: 3 },
  { stack: 'main@app walk@app', pid: 8, mode: 'user', bin: 2, vcpu: 1, ticks: 2 },
  { stack: 'halt@[kernel]', pid: 0, mode: 'idle', bin: 3, vcpu: 0, ticks: 9 }
]

for (const [words, total] of [
  [{}, 10], [{ idle: '1' }, 19], [{ mode: 'idle' }, 9], [{ not: 'mode:user', idle: '1' }, 12], [{ pid: '7' }, 8], [{ not: 'pid:7' }, 2],
  [{ vcpu: '1' }, 5], [{ module: 'libc' }, 8], [{ not: 'module:libc' }, 2], [{ function: 'READ' }, 8], [{ function: '^re', regex: '1' }, 8],
  [{ function: '(', regex: '1' }, 10], [{ only: 'walk|app|u' }, 2], [{ hide: 'walk|app|u' }, 8], [{ time: '1:' }, 5], [{ time: ':2' }, 8],
  [{ time: '1:2', pid: '8' }, 0], [{ time: 'x' }, 10], [{ hide: 'walk|app|u', transform: 'merge:walk|app|u' }, 8]
]) {
  test(`Filter, ${JSON.stringify(words)}`, () => {
    const script = load(dataOf(TICKS), hashOf(words))
    assert.equal(script('sums.total'), total)
    for (const rows of ['process', 'thread', 'vcpu']) assert.equal(script(`sums.${rows}.sorted().reduce((sum, row) => sum + row.ticks, 0)`), total, rows)
    assert.equal(script('sums.mode.reduce((sum, ticks) => sum + ticks, 0)'), total)
  })
}

// Ten looks, one in each half of a bin.
const LOOKS = [0, 0, 1, 1, 2, 2, 3, 3, 3, 3]
const WAITS = [
  { pid: 7, state: 1, stack: 'enter@[kernel] read@[kernel] pipe@[kernel]', runs: [[0, 4], [6, 8]], longest: 5e9 },
  { pid: 7, state: 2, stack: 'enter@[kernel] read@[kernel] disk@[ext4]', runs: [[4, 6]] },
  { pid: 9, state: 1, stack: 'start@[kernel] pipe@[kernel]', runs: [[0, 10]], longest: 9e9 },
  { pid: 9, state: 0, stack: '', runs: [[3, 4]] }
]

for (const [words, expected] of [
  [{}, ['R (unknown) 1 1', 'D disk 2 1', 'S pipe 16 2']], [{ pid: '7' }, ['D disk 2 1', 'S pipe 6 1']], [{ not: 'pid:7' }, ['R (unknown) 1 1', 'S pipe 10 1']],
  [{ time: '2:3' }, ['D disk 2 1', 'S pipe 2 1']], [{ time: ':2', pid: '9' }, ['R (unknown) 1 1', 'S pipe 4 1']], [{ module: '[ext4]' }, ['D disk 2 1']],
  [{ function: 'read' }, ['D disk 2 1', 'S pipe 6 1']], [{ hide: 'read|[kernel]|k' }, ['R (unknown) 1 1', 'S pipe 10 1']], [{ vcpu: '5', mode: 'idle', label: 'no=label' }, ['R (unknown) 1 1', 'D disk 2 1', 'S pipe 16 2']],
  [{ transform: 'merge:pipe|[kernel]|k', pid: '7' }, ['D disk 2 1', 'S read 6 1']], [{ transform: 'focus:read|[kernel]|k' }, ['D disk 2 1', 'S pipe 6 1']]
]) {
  test(`Waits, ${JSON.stringify(words)}`, () => {
    const script = load(dataOf(TICKS, WAITS, LOOKS), hashOf(words))
    const rows = JSON.parse(script('JSON.stringify([...waited.rows.values()].map(({ fn, state, seen, tasks }) => [data.waits.states[state].at(-2), functions.name[fn] ?? "(unknown)", seen, tasks.size].join(" ")))'))
    const order = (a, b) => a.split(' ')[1].localeCompare(b.split(' ')[1])
    assert.deepEqual(rows.sort(order), expected.sort(order))
    const total = expected.reduce((sum, row) => sum + Number(row.split(' ')[2]), 0)
    assert.equal(script('waited.total'), total)
    assert.equal(script('waitTree(waited).ticks'), total)
  })
}

test('Waits, looks of a time, and processes that only wait', () => {
  const script = load(dataOf(TICKS, WAITS, LOOKS), hashOf({ time: '3:' }))
  assert.equal(script('waited.looks'), 4)
  assert.equal(script('processName(processOf[waiters[1]])'), 'w9 9')
  assert.deepEqual(JSON.parse(script('JSON.stringify(waitTree(waited).calls.map(frame => [frame.name, frame.calls.map(state => state.name)]))')), [['w9 9', ['sleeping (S)']], ['p7 7', ['sleeping (S)']]])
})

const EXITS = [
  { bin: 0, reason: 'hlt', time: 9e8, classes: { 200: 2 } },
  { bin: 0, reason: 'npf', time: 5000, left: 1, longest: 3000, classes: { 9: 98, 16: 1, 19: 1 } },
  { bin: 2, reason: 'npf', vcpu: 1, time: 700, longest: 700, classes: { 9: 4 } },
  { bin: 2, reason: 'io', vcpu: 1, time: 6000, left: 3, longest: 2500, classes: { 72: 3 } }
]

for (const [words, expected] of [
  [{}, ['io 3 6000 3 2500', 'npf 104 5700 1 3000', 'hlt 2 900000000 0 900000000']], [{ time: '1:3' }, ['io 3 6000 3 2500', 'npf 4 700 0 700']], [{ time: '1:2' }, []],
  [{ vcpu: '0' }, ['npf 100 5000 1 3000', 'hlt 2 900000000 0 900000000']], [{ not: 'vcpu:1', time: '2:' }, []], [{ pid: '8', mode: 'user' }, ['io 3 6000 3 2500', 'npf 104 5700 1 3000', 'hlt 2 900000000 0 900000000']]
]) {
  test(`Exits, ${JSON.stringify(words)}`, () => {
    const script = load(dataOf(TICKS, [], [], EXITS), hashOf(words))
    const rows = JSON.parse(script('JSON.stringify(exited.rows.map(row => [reasonName(row.reason), row.count, row.time, row.left, row.longest].join(" ")))'))
    assert.deepEqual(rows, expected)
    assert.equal(script('exited.total'), expected.reduce((sum, row) => sum + Number(row.split(' ')[1]), 0))
  })
}

test('Exits, percentiles are those of the classes of histograms', () => {
  const script = load(dataOf(TICKS, [], [], EXITS), hashOf({ vcpu: '0' }))
  assert.deepEqual(JSON.parse(script('JSON.stringify([0, 8, 16, 19, 20, 304].map(classBegin))')), [0, 8, 16, 22, 24, 2 ** 40])
  assert.deepEqual(JSON.parse(script('JSON.stringify([50, 99, 100].map(percent => percentileOf(exited.rows[0], percent)))')), [9, 17, 23])
})

test('Exits, samples of exits have the mean time of their reason', () => {
  const samples = [{ stack: 'npf@[host:exit] main@app read@libc', ticks: 3 }, { stack: 'io@[host:exit] main@app', ticks: 2 }, { stack: 'cpuid@[host:exit] main@app', ticks: 7 }, { stack: 'main@app', ticks: 9 }]
  const script = load(dataOf(samples, [], [], EXITS.filter(({ bin }) => bin === 2).map(exit => ({ ...exit, bin: 0 }))))
  const frames = JSON.parse(script('JSON.stringify(exitTree(sums, exited).calls.map(frame => [frame.name, frame.ticks, frame.calls[0].name]))'))
  assert.deepEqual(frames, [['io', 4000, 'main'], ['npf', 525, 'main']])
})

test('Totals, by function each tick counts once', () => {
  const rows = JSON.parse(load(dataOf(STACKS))('JSON.stringify(sumFunctions(sums.stacks, fn => fn).map(({ key, own, total }) => [functions.name[key], own, total]))'))
  assert.deepEqual(rows.sort(), [['copy', 0, 3], ['enter', 3, 3], ['eval', 3, 7], ['main', 0, 10], ['parse', 0, 2], ['read', 4, 7]])
})

// Of the same guest some time later: there are more processes, modules and functions, and the older ones have other numbers.
const LATER = [
  { stack: 'start@boot busiest@[kernel]', pid: 3, mode: 'kernel', bin: 0, vcpu: 1, ticks: 90 },
  ...TICKS, { stack: 'main@app read@libc copy@[kernel]', pid: 7, mode: 'kernel', bin: 5, vcpu: 2, ticks: 4 }
]

for (const words of [{}, { transform: 'collapse-module:libc' }, { transform: 'merge:read|libc|u' }, { only: 'copy|[kernel]|k' }, { pid: '7' }, { not: 'module:app', idle: '1' }]) {
  test(`Newer data, ${JSON.stringify(words)}: the sums are theirs, and what there was keeps its numbers`, () => {
    const [script, other] = [load(dataOf(TICKS, WAITS, LOOKS), hashOf(words)), load(dataOf(LATER, WAITS, LOOKS), hashOf(words))]
    const numbers = 'JSON.stringify([functions.name, modules.name, processes.pid, threads.tid, [...moduleFunctions]])'
    const before = JSON.parse(script(numbers))
    assert.equal(readNewer(script, dataOf(LATER, WAITS, LOOKS)), true)
    JSON.parse(script(numbers)).forEach((now, table) => assert.deepEqual(now.slice(0, before[table].length), before[table]))
    assert.deepEqual(shown(script), shown(other))
    for (const sum of ['sums.total', 'waited.total', 'JSON.stringify(sums.mode)', 'JSON.stringify(vcpus)', 'data.bins']) assert.equal(script(sum), other(sum), sum)
    const byProcess = 'JSON.stringify(sums.process.sorted().map(row => [processName(row.key), row.ticks]).sort())'
    assert.equal(script(byProcess), other(byProcess))
    assert.equal(script('callTree(sums).ticks'), other('callTree(sums).ticks'))
  })
}

test('Newer data, names that come and go forever are noticed', () => {
  const script = load(dataOf(TICKS))
  const names = turn => dataOf(Array.from({ length: 300 }, (_, index) => ({ stack: `f${turn}-${index}@app` })))
  const said = Array.from({ length: 12 }, (_, turn) => readNewer(script, names(turn)))
  assert.deepEqual([said[0], said.at(-1)], [true, false])
})

test('A function, wherever it was called', () => {
  const script = load(dataOf(STACKS))
  const sum = name => JSON.parse(script(`(() => {
    const { frame, own, callers } = sumFunction(sums, functions.name.indexOf('${name}'))
    return JSON.stringify([frame.ticks, own, callers.map(([fn, ticks]) => [functions.name[fn], ticks])])
  })()`))
  assert.deepEqual(sum('eval'), [7, 3, [['main', 7]]])
  assert.deepEqual(sum('read'), [7, 4, [['eval', 4], ['main', 3]]])
  assert.deepEqual(sum('main'), [10, 0, []])
})

// The lanes of the stack chart: of each its name, and the bin, the kind and the number of its ticks; and in how many runs it is.
const charted = (script, kind) => JSON.parse(script(`JSON.stringify(chartRuns(chartKeys('${kind}'), '${kind}', selectedBins()).map(({ row, byBin }) =>
  [LANE_NAMES[row.kind](row.key), ...Array.from(row.parts, (ticks, at) => [Math.floor(at / PARTS.length), PARTS[at % PARTS.length], ticks]).filter(([, , ticks]) => ticks > 0)
    .map(part => part.join(' ')), [...byBin.values()].flat().length]))`))
const MISSED = [{ bin: 1, vcpu: 0, parts: [2, 1, 0] }, { bin: 3, vcpu: 1, parts: [0, 0, 4] }]
const TIMED = [['vCPU 0', '0 user 5', '1 stolen 2', '1 lost 1', '3 idle 9'], ['vCPU 1', '1 kernel 3', '2 user 2', '3 others 4']]

for (const [words, kind, expected] of [
  [{}, 'vcpu', [[...TIMED[0], 1], [...TIMED[1], 2]]], [{ idle: '1' }, 'vcpu', [[...TIMED[0], 2], [...TIMED[1], 2]]],
  [{ vcpu: '1', mode: 'user' }, 'vcpu', [['vCPU 1', '2 user 2', '3 others 4', 1]]], [{ time: '1:3' }, 'vcpu', [['vCPU 0', '1 stolen 2', '1 lost 1', 0], ['vCPU 1', '1 kernel 3', '2 user 2', 2]]],
  [{ idle: '1' }, 'thread', [['p7 7', '0 user 5', '1 kernel 3', 2], ['p8 8', '2 user 2', 1], ['p0 0', '3 idle 9', 1]]], [{ time: '2:' }, 'thread', [['p8 8', '2 user 2', 1]]]
]) {
  test(`Stack chart, ${kind} lanes, ${JSON.stringify(words)}`, () => {
    assert.deepEqual(charted(load(dataOf(TICKS, [], [], [], { missed: MISSED }), hashOf(words)), kind), expected)
  })
}

// Selects each frame of a tree, and returns those whose ticks over time aren't theirs.
const FRAMES = `const wrong = []
const visit = (frame, flames) => {
  selection = { fn: frame.fn, frame, flames }
  const { ticks } = columnsOf(selection)
  if (ticks.reduce((sum, count) => sum + count, 0) !== frame.ticks) wrong.push([stackOf(frame, false).join(' '), frame.ticks, ...ticks].join(' '))
  frame.calls.forEach(call => visit(call, flames))
}`

for (const words of [
  { group: 'merged' }, { fold: '1' }, { group: 'thread', inverted: '1' }, { inverted: '1', fold: '1' }, { transform: 'merge:eval|app|u' }, { transform: 'focus:eval|app|u', inverted: '1' },
  { transform: 'collapse-module:app', not: 'pid:8' }, { function: 'read', time: '1:' }, { vcpu: '1', hide: 'parse|app|u' }
]) {
  test(`Ticks over time, of all frames, ${JSON.stringify(words)}`, () => {
    const stacks = STACKS.flatMap((sample, index) => [{ ...sample, bin: index }, { ...sample, pid: 8, vcpu: 1, bin: 3 - index }])
    const wrong = JSON.parse(load(dataOf(stacks), hashOf(words))(`{ ${FRAMES}
      visit((state.inverted !== '' ? invertedTree : callTree)(sums), null)
      for (const [fn] of functions.name.entries()) {
        Object.assign(views, { callers: {}, callees: Object.assign(Object.create(Flames.prototype), { isUpright: true }) })
        for (const [name, tree] of Object.entries(sandwichTrees(sums, fn))) visit(tree, views[name])
      }
      JSON.stringify(wrong) }`))
    assert.deepEqual(wrong, [])
  })
}

test('Ticks over time, of a function and of the time of a column', () => {
  const script = load(dataOf([...STACKS.map((sample, index) => ({ ...sample, bin: 70 * index })), { stack: 'other@app', bin: 249 }]), hashOf({ time: '30:' }))
  const [ticks, edges] = JSON.parse(script("{ const { ticks, edges } = columnsOf({ fn: functions.name.indexOf('eval'), frame: null, flames: null }); JSON.stringify([[...ticks], edges]) }"))
  assert.deepEqual([ticks.length, edges.slice(0, 2), edges.slice(-2)], [74, [30, 33], [249, 250]])
  assert.deepEqual(ticks.flatMap((count, column) => count > 0 ? [[edges[column], count]] : []), [[69, 2], [210, 1]])
})

for (const [words, expected] of [
  [{}, []], [{ group: 'label room', idle: '1' }, ['room=blue 8', 'room=[none] 2']], [{ group: 'label room', not: 'label:room=blue' }, ['room=[none] 2']], [{ group: 'label room', time: '1:2' }, ['room=blue 3', 'room=[none] 0']]
]) {
  test(`Lanes of labels, ${JSON.stringify(words)}`, () => {
    const script = load(dataOf(TICKS, [], [], [], { labels: { 7: { room: 'blue' } } }), hashOf(words))
    const rows = script('JSON.stringify(laneRows(LANES).rows.map(row => [row.kind, `${LANE_NAMES[row.kind](row.key)} ${selectedTicks(row)}`]))')
    assert.deepEqual(JSON.parse(rows).filter(([kind]) => kind === 'label').map(([, lane]) => lane), expected)
    const kinds = JSON.parse(rows).map(([kind]) => kind)
    assert.deepEqual(kinds, [...kinds].sort((a, b) => ['vcpu', 'label', 'process'].indexOf(a) - ['vcpu', 'label', 'process'].indexOf(b)))
  })
}

test('Lanes, marks of other times are outside', () => {
  const data = { ...dataOf(TICKS), begin: 2e9, pauses: [{ recording: 0, begin: 1e9, end: 3e9 }, { recording: 0, begin: 4e9, end: null }],
    execs: [{ process: 0, time: 1e9, program: 'a' }, { process: 1, time: 3e9, program: 'b' }] }
  const marks = JSON.parse(load(data)("JSON.stringify([['process', 0], ['process', 1], ['vcpu', 0]].map(([kind, key]) => marksOf({ kind, key })))"))
  const paused = `M-1 0H1V100H-1zM2 0H${data.bins}V100H2z`
  assert.deepEqual(marks, ['M-1 0V100', 'M1 0V100', ''].map(exec => ({ paused, exec })))
})

test('Transform, the subtree of each frame has its ticks', () => {
  const data = dataOf(STACKS.flatMap(sample => [sample, { ...sample, pid: 8 }]))
  const ways = JSON.parse(load(data, '#group=thread')(`{
    const ways = []
    const visit = frame => {
      selection = { fn: frame.fn, frame, flames: null }
      if (transformsOf(selection).includes('subtree')) ways.push([wayOf(frame).join('.'), frame.ticks])
      frame.calls.forEach(visit)
    }
    visit(callTree(sums))
    JSON.stringify(ways) }`))
  assert.equal(ways.length, 18)
  for (const [way, ticks] of ways) assert.equal(load(data, hashOf({ transform: `subtree:${way}` }))('sums.total'), 2 * ticks, way)
  for (const words of [{ inverted: '1' }, { fold: '1' }]) {
    assert.equal(load(data, hashOf(words))("transformsOf({ fn: 0, frame: callTree(sums).calls[0], flames: null }).includes('subtree')"), false)
  }
})

test('Totals, by mode', () => {
  assert.deepEqual(JSON.parse(load(dataOf(TICKS), '#idle=1')('JSON.stringify(sums.mode)')), MODES.map(mode => ({ user: 7, kernel: 3, interrupt: 0, idle: 9 })[mode]))
})
