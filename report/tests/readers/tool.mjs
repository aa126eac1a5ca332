// The page as a tool: its window, the call tree, the timeline, chips, and what is found. Each task returns what the page then shows.
import { address, choose, clear, drag, page, shown, state, table, text, until, untilState, view, violations } from './browser.mjs'

export const SIZES = [[360, 740], [1280, 800], [1440, 900], [3840, 2160]]

// What is seen at first at several sizes, light and dark, and with idle ticks, which the address remembers.
export async function first () {
  const answer = { total: (await shown()).total, command: await text('#command'), windows: [] }
  for (const [width, height] of SIZES) {
    for (const colorScheme of ['light', 'dark']) {
      await page.setViewportSize({ width, height })
      await page.emulateMedia({ colorScheme })
      answer.windows.push({ size: [width, height], ...await page.evaluate(() => {
        const box = selector => document.querySelector(selector).getBoundingClientRect()
        const { scrollingElement: all } = document
        const [root, status] = [box('#graph .frame'), box('#status')]
        return {
          scrolls: all.scrollHeight > innerHeight || all.scrollWidth > innerWidth,
          bar: box('header').height,
          root: [root.top, root.bottom, root.width],
          pane: box('#flame').height,
          below: innerHeight - status.bottom,
          background: getComputedStyle(document.body).backgroundColor
        }
      }) })
    }
  }
  await page.setViewportSize({ width: 1300, height: 1000 })
  await page.check('#idle')
  await untilState('idle', '1')
  answer.all = (await shown()).total
  await page.reload()
  answer.kept = (await shown()).total
  return answer
}

// The call tree: its rows, the heaviest path, all rows, and the frame that is then selected in the graph; by mouse and by keys.
export async function callTree () {
  const rows = async () => page.$$eval('#tree tbody tr', rows => rows.map(row => [row.getAttribute('aria-level'), ...[...row.cells].map(cell => cell.textContent)]))
  const active = async () => page.evaluate(() => document.activeElement.getAttribute('aria-label'))
  const answer = {}
  await page.selectOption('#group', 'merged')
  await untilState('group', 'merged')
  await view('tree')
  await page.click('#expand')
  answer.all = await rows()
  await page.click('#tree tbody tr:first-child')
  await page.click('#heaviest')
  answer.heaviest = await active()
  await view('flame')
  answer.chosen = await page.$$eval('#graph .frame.chosen', frames => frames.map(frame => frame.getAttribute('aria-label')))
  answer.path = await page.evaluate(() => selection.frame.path)
  await view('tree')
  await page.focus('#tree tbody tr[tabindex="0"]')
  answer.kept = await active()
  await page.keyboard.press('Home')
  await page.keyboard.press('ArrowLeft')
  answer.closed = (await rows()).length
  await page.keyboard.press('ArrowRight')
  await page.keyboard.press('ArrowRight')
  answer.entered = await active()
  await page.hover('#tree tbody tr[aria-level="2"] >> nth=0')
  answer.tip = await page.$$eval('#tip > *', lines => lines.map(line => line.textContent))
  await page.check('#inverted')
  await untilState('inverted', '1')
  answer.inverted = await rows()
  return answer
}

// The timeline: a drag with its label, an edge that is moved, Escape, the wheel, keys, and a process with its threads.
export async function timeline () {
  const answer = {}
  const area = await page.locator('#area').boundingBox()
  const at = async part => page.mouse.move(area.x + part * area.width, area.y + 10)
  const bins = async () => page.evaluate(() => [selectedBins(), shownBins(), data.bins])
  await at(0.25)
  await page.mouse.down()
  await at(0.4)
  await at(0.5)
  answer.label = await text('#span')
  answer.marked = await page.evaluate(() => element('mark').offsetWidth / element('area').offsetWidth)
  await page.mouse.up()
  await until(() => state.time !== '')
  answer.dragged = await bins()
  await at(0.5)
  await page.mouse.down()
  await at(0.6)
  await at(0.75)
  await page.mouse.up()
  await page.waitForFunction(end => selectedBins()[1] !== end, answer.dragged[0][1])
  answer.moved = await bins()
  await page.keyboard.press('Escape')
  await untilState('time', '')
  answer.escaped = await bins()
  await at(0.5)
  await page.mouse.down()
  await at(0.7)
  await page.keyboard.press('Escape')
  await page.mouse.up()
  answer.given = (await bins())[0]
  await at(0.5)
  for (let turn = 0; turn < 6; turn++) await page.mouse.wheel(0, -100)
  await until(() => state.span !== '')
  answer.zoomed = (await bins())[1]
  answer.axis = await page.$$eval('#times span', marks => marks.map(mark => mark.textContent))
  answer.view = await page.getAttribute('#lanesbox svg', 'viewBox')
  answer.lanes = await page.$$eval('#lanesbox svg', boxes => boxes.length)
  await page.click('#names .fold[aria-expanded=false] >> nth=0')
  await until(() => state.open.length > 0)
  answer.opened = await page.$$eval('#lanesbox svg.thread', boxes => boxes.length)
  await page.hover('#lanesbox svg.process >> nth=0')
  answer.tip = await text('#tip strong')
  return answer
}

// The stack chart: its frames and the times that they stand for; of a part of the time; how a click and keys move in it; and its lanes by thread.
export async function chart () {
  const frames = async () => page.$$eval('#chart .frame', frames => frames.map(({ frame, offsetLeft, offsetWidth, parentElement }) =>
    [frame.name, frame.depth, frame.ticks, offsetLeft / parentElement.clientWidth, offsetWidth / parentElement.clientWidth]))
  await view('chart')
  const answer = { all: await frames() }
  await drag(...await page.evaluate(() => [0, 1].map(halves => (data.begin + data.width * data.bins * halves / 2) / 1e9)))
  answer.half = await frames()
  await page.keyboard.press('Escape')
  await untilState('time', '')
  await page.focus('#chart .frame[aria-level="2"]')
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('ArrowRight')
  answer.beside = await page.evaluate(() => document.activeElement.textContent)
  answer.details = await page.$$eval('#details dd', values => values.map(value => value.textContent))
  answer.columns = await page.getAttribute('#details svg', 'aria-label')
  await page.keyboard.press('Enter')
  await until(() => state.span !== '')
  answer.zoomed = await frames()
  const lanes = async () => page.$$eval('#chart .graph', boxes => boxes.map(box => [box.getAttribute('aria-label'), box.previousElementSibling.getAttribute('class')]))
  answer.vcpus = await lanes()
  answer.by = await page.$$eval('#group option:not([hidden])', options => options.map(option => option.textContent))
  await page.selectOption('#group', 'thread')
  await untilState('group', 'thread')
  answer.threads = await lanes()
  await page.click('#chart .frame[aria-level="1"]')
  answer.actions = await page.$$eval('#details .actions button', buttons => buttons.map(button => button.textContent))
  return answer
}

// Where the restarts of the guest are, in the whole time and in a part of it; what each lane has of pauses and other programs, and says of them, to a bin.
export async function marks () {
  const places = async () => page.$$eval('#restarts i', marks => marks.map(mark => {
    const [at, box] = [mark.getBoundingClientRect(), element('area').getBoundingClientRect()]
    return { time: data.begin + data.width * data.bins * (at.left - box.left) / box.width, height: at.height / box.height }
  }))
  const answer = { places: await places(), titles: await page.$$eval('#times .restart', marks => marks.map(mark => mark.title)) }
  answer.lanes = await page.evaluate(() => [...document.querySelectorAll('#lanesbox svg')].map((lane, index) => {
    const said = Array.from({ length: data.bins }, (_, bin) => {
      showValues(index, bin)
      return element('values').textContent
    })
    const paths = kind => (lane.querySelector(kind)?.getAttribute('d').match(/M/g) ?? []).length
    const bins = is => said.flatMap((_, bin) => is(bin) ? [data.begin + data.width * bin] : [])
    const isPaused = bin => said[bin]?.includes('the guest was paused') ?? false
    return {
      name: lanes.boxes[index].name, kind: lanes.boxes[index].row.kind, pauses: paths('.paused'), execs: paths('.exec'),
      paused: bins(bin => isPaused(bin) !== isPaused(bin - 1)), executed: bins(bin => said[bin].includes('executes /bin/<cat>'))
    }
  }))
  await page.evaluate(() => showSpan(0, data.bins / 3))
  answer.rest = (await places()).length
  return answer
}

// A filter by a lane's name, turned round by its chip, removed, and taken back; what is left out of modes is in the command.
export async function chips () {
  const answer = { all: (await shown()).total }
  const names = async () => page.$$eval('#chips .chip > :first-child', names => names.map(name => name.textContent))
  const note = async name => { answer[name] = { total: parseInt(await text('#total')), names: await names(), command: await text('#command') } }
  await page.click('#names .process .name >> nth=0')
  await until(() => state.pid !== '')
  answer.pid = state().pid
  await note('only')
  await page.click('#chips .chip button >> nth=0')
  await until(() => state.pid === '' && state.not.length === 1)
  await note('without')
  await page.click('#undo')
  await until(() => state.pid !== '')
  await note('undone')
  await clear()
  await untilState('pid', '')
  await choose('mode', 'kernel')
  await page.click('#chips .chip button >> nth=0')
  await until(() => state.not.length === 1)
  await note('mode')
  await page.keyboard.press('z')
  await untilState('mode', 'kernel')
  await clear()
  await untilState('mode', '')
  await page.click('#details button:text-is("kernel")')
  await untilState('mode', 'kernel')
  await clear()
  await untilState('mode', '')
  await choose('module', '[kernel]')
  await note('module')
  await page.click('#chips .chip button >> nth=0')
  await until(() => state.not.length === 1)
  await note('notModule')
  return answer
}

// Transforms by keys and by a button, their chips, and what is taken back; the functions that are then shown.
export async function transforms () {
  const note = async () => {
    await view('function')
    const functions = await table('function')
    await view('flame')
    return { total: (await shown()).total, functions, command: await text('#command'), chips: await page.$$eval('#chips .chip > :first-child', names => names.map(name => name.textContent)) }
  }
  const press = async (name, key) => {
    await page.focus(`#graph .frame[aria-label^="${name}:"]`)
    const before = page.url()
    await page.keyboard.press(key)
    await page.waitForFunction(before => location.href !== before && JSON.stringify(state) === JSON.stringify(readState()), before)
  }
  const answer = { all: await note() }
  await press('copy_page', 'm')
  answer.merged = await note()
  await page.reload()
  answer.reloaded = await note()
  answer.frames = await page.locator('#graph .frame[aria-label^="copy_page:"]').count()
  while (await page.isEnabled('#undo') && await page.evaluate(() => state.transform.length > 0)) {
    const before = page.url()
    await page.click('#undo')
    await page.waitForFunction(before => location.href !== before && JSON.stringify(state) === JSON.stringify(readState()), before)
  }
  answer.undone = await note()
  await page.focus('#graph .frame[aria-label^="copy_page:"]')
  await page.click('#details button:text-is("Focus on it")')
  await until(() => state.transform.length === 1)
  answer.focused = await note()
  answer.outermost = await page.$$eval('#graph .frame[aria-level="3"]', frames => frames.map(frame => frame.frame.name))
  await page.click('#chips button[aria-label$="remove this filter"]')
  await until(() => state.transform.length === 0)
  await press('copy_page', 'd')
  answer.dropped = await note()
  await clear()
  await until(() => state.hide.length === 0)
  answer.frame = await page.getAttribute('#graph .frame[aria-label^="copy_page:"]', 'aria-label')
  await press('copy_page', 't')
  answer.subtree = await note()
  await clear()
  await until(() => state.transform.length === 0)
  for (const [key, step] of [['c', 'callees'], ['g', 'within']]) {
    await press('copy_page', key)
    answer[step] = await note()
    await clear()
    await until(() => state.transform.length === 0)
  }
  await press('copy_page', 'C')
  answer.collapsed = await note()
  await page.focus('#graph .frame[aria-label^="[kernel]:"]')
  answer.violations = await violations()
  return answer
}

// The waits of all of a recording.
export async function waiting () {
  return { waits: await table('wait') }
}

// Waits of all processes, of a time, and of a process besides; a function of the graph.
export async function waits () {
  const note = async () => ({ rows: await table('wait'), note: await text('#waited'), command: await text('#command'),
    frames: await page.$$eval('#waitgraph .frame', frames => frames.map(frame => frame.getAttribute('aria-label'))) })
  const answer = { all: await note() }
  await page.focus('#waitgraph .frame[aria-label^="vfs_read:"]')
  answer.details = await page.$$eval('#details dd', values => values.map(value => value.textContent))
  answer.violations = await violations()
  await page.keyboard.press('Enter')
  await until(() => state.zoom !== '')
  answer.zoomed = await text('#waitgraph .frame:not(.above)')
  await page.keyboard.press('m')
  await until(() => state.transform.length === 1)
  answer.merged = await note()
  await clear()
  await until(() => state.transform.length === 0)
  await drag(...await page.evaluate(() => [0, 1].map(halves => (data.begin + data.width * data.bins * halves / 2) / 1e9)))
  answer.time = { state: state().time, ...await note() }
  await choose('pid', { label: 'disk 9' })
  answer.process = await note()
  await choose('mode', 'user')
  answer.mode = await note()
  return answer
}

// Exits of all of the time and vCPUs, of a time, and of a vCPU besides; the histogram of a reason.
export async function exits () {
  const note = async () => ({
    rows: await page.evaluate(() => exited.rows.map(row => [reasonName(row.reason), row.count, row.time, percentileOf(row, 50), percentileOf(row, 99), row.longest, row.left])),
    table: await table('exit'), note: await text('#exited'), command: await text('#command'), reason: await text('#exitreason'),
    bars: await page.$$eval('#exithistogram title', titles => titles.map(title => title.textContent))
  })
  const answer = { all: await note(), frames: await page.$$eval('#exitgraph .frame', frames => frames.map(frame => frame.getAttribute('aria-label'))) }
  answer.violations = await violations()
  answer.areas = await page.locator('#exitchart path').count()
  await page.click('#table button:text-is("hlt")')
  await untilState('exit', 'hlt')
  answer.halts = await note()
  await drag(...await page.evaluate(() => [0, 1].map(halves => (data.begin + data.width * data.bins * halves / 2) / 1e9)))
  answer.time = { state: state().time, ...await note() }
  await choose('vcpu', '1')
  answer.vcpu = await note()
  return answer
}

// A search: what it dims, and how Enter goes from one frame to the next.
export async function hits () {
  const answer = {}
  await page.uncheck('#idle')
  await untilState('idle', '')
  await page.keyboard.press('/')
  await page.keyboard.type('copy_')
  await untilState('search', 'copy_')
  answer.found = await text('#found')
  answer.hits = await page.locator('#graph .frame.hit').count()
  answer.colours = await page.evaluate(() => [...new Set([...document.querySelectorAll('#graph .frame:not(.hit)')].map(frame => getComputedStyle(frame).backgroundColor))].length)
  const gone = []
  for (const key of ['Enter', 'Enter', 'Shift+Enter', 'Shift+Enter']) {
    await page.keyboard.press(key)
    gone.push((await text('#found')).split(',')[0])
  }
  answer.gone = gone
  answer.details = await text('#details h2')
  await page.keyboard.press('Control+Enter')
  await untilState('function', 'copy_')
  answer.filtered = (await shown()).total
  return answer
}

// What the pointer shows beside it, and keys that open panels and views.
export async function tips () {
  const answer = {}
  const frame = page.locator('#graph .frame[aria-level="3"]').first()
  await frame.hover()
  answer.label = await frame.getAttribute('aria-label')
  answer.tip = await page.$$eval('#tip > *', lines => lines.map(line => line.textContent))
  await page.mouse.move(5, 5)
  answer.hidden = await page.isHidden('#tip')
  await page.setViewportSize({ width: 360, height: 740 })
  await page.locator('#graph .frame').first().hover({ position: { x: 340, y: 5 } })
  answer.inside = await page.evaluate(() => {
    const { left, right, top, bottom } = element('tip').getBoundingClientRect()
    return left >= 0 && right <= innerWidth && top >= 0 && bottom <= innerHeight
  })
  await page.setViewportSize({ width: 1300, height: 1000 })
  await page.mouse.click(700, 980)
  await page.keyboard.press('?')
  answer.help = await page.isVisible('#help')
  await page.keyboard.press('Escape')
  answer.closed = await page.isHidden('#help')
  answer.tabs = []
  for (const key of '12345678') {
    await page.keyboard.press(key)
    answer.tabs.push(await page.textContent('[role=tab][aria-selected=true]'))
  }
  await page.keyboard.press('s')
  await untilState('side', 'hidden')
  answer.side = await page.isVisible('#details')
  await page.keyboard.press('f')
  answer.focused = await page.evaluate(() => document.activeElement.id)
  return answer
}
