// Uses the page as people do, in Debian's Chromium, and prints what it shows as JSON.
//
//     page.mjs TASK PAGE.html FOLDER
import { address, browser, choose, chooseFunctions, complaints, drag, folder, page, shown, state, table, task, text, until, untilState, view, violations } from './browser.mjs'
import * as filters from './filters.mjs'
import { guide } from './guide.mjs'
import * as tool from './tool.mjs'

// The totals of one second, a process and a search, in the usual view and in the inverted one.
async function totals () {
  const answer = { whole: await shown() }
  await drag(1, 2)
  answer.time = state().time
  answer.second = await shown()
  await choose('pid', '32')
  answer.process = await shown()
  for (const name of ['function', 'module', 'process', 'vcpu']) answer[`${name}s`] = await table(name)
  answer.command = await text('#command')
  await view('flame')
  await page.check('#inverted')
  await untilState('inverted', '1')
  answer.inverted = await shown()
  answer.innermost = await page.$$eval('#graph .frame[aria-level="3"]', frames => frames.map(frame => frame.getAttribute('aria-label')))
  answer.searched = answer.functions[0][0]
  await page.fill('#search', answer.searched)
  await untilState('search', answer.searched)
  answer.found = await text('#found')
  answer.hits = await page.locator('#graph .frame.hit').count()
  return answer
}

// The totals of the middle half of the time, and of the process that has most of it, of whatever recording; and how the page says to print them.
async function part () {
  const answer = { whole: await shown() }
  await drag(...await page.evaluate(() => [1, 3].map(quarters => (data.begin + data.width * data.bins * quarters / 4) / 1e9)))
  answer.time = state().time
  answer.half = await shown()
  answer.halfCommand = await text('#command')
  answer.process = { total: 0 }
  const pids = await page.$$eval('#pid option', options => options.map(option => option.value).filter(pid => pid > 0))
  for (const pid of pids) {
    await choose('pid', pid)
    // Of some there is nothing in that time, and no frame.
    const total = parseInt(await text('#total'))
    if (total > answer.process.total) answer.process = { total, pid }
  }
  await choose('pid', answer.process.pid)
  answer.command = await text('#command')
  for (const name of ['function', 'module', 'process', 'vcpu']) answer[`${name}s`] = await table(name)
  return answer
}

// Steps, and back again.
async function back () {
  const answer = { before: await shown(), steps: [] }
  await choose('mode', 'kernel')
  answer.kernel = await shown()
  await page.click('#graph .frame[aria-level="2"]')
  await until(() => state.zoom !== '')
  await page.click('#details button:text-is("Only this process")')
  await until(() => state.pid !== '')
  for (let step = 0; step < 3; step++) {
    await page.goBack()
    await page.waitForFunction(() => JSON.stringify(state) === JSON.stringify(readState()))
    answer.steps.push({ ...state(), ...await shown() })
  }
  await page.goForward()
  await untilState('mode', 'kernel')
  await page.reload()
  answer.reloaded = await shown()
  return answer
}

// All by keys: frames, zoom, details, filters of a function, time.
async function keys () {
  const answer = {}
  const active = () => page.evaluate(() => document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent)
  await page.focus('#graph .frame')
  await page.keyboard.press('ArrowDown')
  answer.process = await active()
  await page.keyboard.press('ArrowDown')
  answer.outermost = await active()
  await page.keyboard.press('Enter')
  await until(() => state.zoom !== '')
  answer.zoom = state().zoom
  await page.keyboard.press('Escape')
  await page.waitForFunction(zoom => state.zoom !== zoom, answer.zoom)
  await page.keyboard.press('Escape')
  await untilState('zoom', '')
  answer.still = await active()
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('ArrowDown')
  await page.keyboard.press('ContextMenu')
  answer.details = await active()
  for (let press = 0; await active() !== 'Without it' && press < 9; press++) await page.keyboard.press('Tab')
  await page.keyboard.press('Enter')
  await until(() => state.hide.length === 1)
  answer.hidden = state().hide
  answer.without = await shown()
  await page.focus('#chips button[aria-label$="remove this filter"]')
  await page.keyboard.press('Enter')
  await until(() => state.hide.length === 0)
  await page.focus('#lanesbox')
  for (let press = 0; press < 5; press++) await page.keyboard.press('ArrowRight')
  await page.keyboard.press('Shift+End')
  await until(() => selectedBins()[0] === 5)
  answer.time = state().time
  await page.keyboard.press('Escape')
  await untilState('time', '')
  await page.keyboard.press('/')
  answer.search = await page.evaluate(() => document.activeElement.id)
  return answer
}

// A function with its callers and callees, by process and merged; regular expressions; recursion; the copied stack.
async function sandwich () {
  const answer = {}
  await page.focus('#graph .frame[aria-level="2"]')
  await view('function')
  await page.click('#table tbody tr:nth-child(1) th button')
  await until(() => state.about !== '')
  answer.about = await text('#of')
  const labels = async id => page.$$eval(`#${id} .frame`, frames => frames.map(frame => frame.getAttribute('aria-label')))
  answer.callers = (await labels('callers'))[0]
  answer.callees = (await labels('callees'))[0]
  answer.total = await page.locator('#details dt:text-is("total") + dd').textContent()
  await view('flame')
  await page.selectOption('#group', 'merged')
  await untilState('group', 'merged')
  const frames = async () => page.locator('#graph .frame').count()
  answer.frames = await frames()
  answer.cut = await page.locator('#graph .frame.cut').count()
  await page.check('#fold')
  await untilState('fold', '1')
  answer.folded = await frames()
  await chooseFunctions('^(copy|walk)_')
  answer.matched = await shown()
  await page.click('#graph .frame[aria-level="3"]')
  await page.click('#details button:text-is("Copy stack")')
  await until(() => [...document.querySelectorAll('button')].some(button => button.textContent === 'Copied'))
  answer.copied = await page.evaluate(() => navigator.clipboard.readText())
  answer.calledBy = await page.$$eval('#details .callers button', names => names.map(name => name.textContent))
  return answer
}

// The changes from one recording to another: both totals, the functions, a process and a time, and how frames are coloured.
async function compare () {
  const answer = { total: await text('#total'), command: await text('#command') }
  answer.lanes = await page.evaluate(() => lanes.boxes.slice(0, 2).map(({ name, row }) =>
    [name, row.parts.reduce((sum, ticks, part) => part % PARTS.length < MODES.length ? sum + ticks : sum, 0)]))
  answer.lengths = await page.$$eval('#names .recording .share', lengths => lengths.map(length => length.textContent))
  answer.functions = await table('function')
  answer.titles = await page.$$eval('#table tbody tr', rows => rows.map(row => row.cells[1].title))
  await view('flame')
  const labels = async () => page.$$eval('#graph .frame', frames => frames.map(frame => [frame.getAttribute('aria-label'), frame.className, frame.offsetWidth]))
  answer.frames = await labels()
  await page.selectOption('#group', 'merged')
  await untilState('group', 'merged')
  answer.merged = await labels()
  await choose('mode', 'kernel')
  answer.kernel = await text('#total')
  answer.kernelCommand = await text('#command')
  answer.processes = await table('process')
  await view('function')
  answer.about = await text('#of')
  answer.violations = await violations()
  await page.emulateMedia({ colorScheme: 'dark' })
  await view('flame')
  answer.violations.push(...await violations())
  await page.click('#ask')
  answer.legend = await page.$$eval('.legend.of-changes span', spans => spans.filter(span => span.getClientRects().length > 0).length)
  return answer
}

// A page of two recordings: totals of the whole and of a process of the second one.
async function merged () {
  const answer = { whole: await shown(), processes: await table('process') }
  await choose('pid', '2:32')
  answer.process = await shown()
  answer.command = await text('#command')
  await choose('tid', '2:232')
  answer.thread = await shown()
  return answer
}

// What axe finds in light and dark, and on a phone, in each view and in what opens above it; and whether anything but panes has to be scrolled.
async function access () {
  const answer = { violations: [], wide: [] }
  for (const [name, width, height, colorScheme] of [
    ['light', 1300, 1000, 'light'], ['dark', 1300, 1000, 'dark'], ['phone', 360, 740, 'light']
  ]) {
    await page.setViewportSize({ width, height })
    await page.emulateMedia({ colorScheme })
    for (const [view, part, panel] of [['flame', '#graph .frame', '#add'], ['tree', '#tree tbody tr', '#ask'], ['chart', '#chart .frame[aria-level="2"]', '#ask'], ['function', '#callees .frame', '#quality']]) {
      await page.goto(`${address}#tab=${view}&search=copy&mode=kernel&not=vcpu:1`)
      await page.reload()
      await page.click(part)
      const note = async what => { for (const found of await violations()) answer.violations.push(`${name}, ${what}: ${found}`) }
      await note(view)
      await page.click(panel)
      await note(panel)
      if (await page.evaluate(() => document.documentElement.scrollWidth > innerWidth || document.documentElement.scrollHeight > innerHeight)) answer.wide.push(`${name}, ${view}`)
    }
    await page.screenshot({ path: `${folder}/${name}.png` })
  }
  return answer
}

// The code of the innermost frame, which is inlined.
async function code () {
  const answer = {}
  await page.focus('#graph .frame[aria-label^="inner:"]')
  await page.click('#details button:text-is("Code")')
  await untilState('tab', 'code')
  answer.note = await text('#code > .note')
  for (const [index, name] of ['source', 'instructions'].entries()) {
    const list = page.locator('#code section').nth(index)
    answer[name] = await list.locator('tbody tr').evaluateAll(rows => rows.map(row => [...row.cells].map(cell => cell.textContent)))
  }
  answer.violations = await violations()
  await view('flame')
  await page.focus('#graph .frame[aria-label^="outer:"]')
  answer.details = await page.$$eval('#details dl dt', terms => terms.map(term => [term.textContent, term.nextElementSibling.textContent]))
  return answer
}

// The frames of stacks that were cut short at times, as labels and whether they are torn, and what the details say of one.
async function cut () {
  const frames = async id => page.$$eval(`#${id} .frame`, frames => frames.map(frame => [frame.getAttribute('aria-label'), frame.classList.contains('cut')]))
  const answer = { flame: await frames('graph') }
  await page.focus('#graph .frame[aria-label^="0x401000:"]')
  answer.details = await page.locator('#details dt:text-is("callers") + dd').textContent()
  await page.check('#inverted')
  await untilState('inverted', '1')
  answer.inverted = await frames('graph')
  await view('function')
  await page.click('#table tbody th button:text-is("0x401234")')
  await until(() => state.about !== '')
  answer.callers = await frames('callers')
  return answer
}

// What is marked as selected: the rows of a table, and the frames of the graph.
async function marked (table = 'function') {
  await view(table)
  const rows = await page.$$eval('#table tbody tr.chosen[aria-current=true]', rows => rows.map(row => row.cells[0].textContent))
  const visible = await page.evaluate(() => {
    const [row, box] = [document.querySelector('#table tr.chosen'), document.querySelector('#rows')].map(found => found?.getBoundingClientRect())
    return row !== undefined && row.top >= box.top && row.bottom <= box.bottom + 1
  })
  await view('flame')
  return { rows, visible, frames: await page.$$eval('#graph .frame.chosen', frames => frames.map(frame => frame.getAttribute('aria-label'))) }
}

// A function chosen by its row, by its frame, and by a frame whose row isn't shown; a process; after a filter, and inverted.
async function linked () {
  const answer = { none: await marked() }
  await view('function')
  await page.click('#table tbody th button:text-is("0x401000")')
  answer.byRow = await marked()
  await page.focus('#graph .frame[aria-label^="0x401234:"]')
  answer.byFrame = await marked()
  await page.focus('#graph .frame[aria-label^="0x500630:"]')
  answer.beyond = await marked()
  await page.focus('#graph .frame[aria-label^="other 8:"]')
  answer.process = await marked('process')
  await page.focus('#graph .frame[aria-label^="0x401234:"]')
  answer.module = await marked('module')
  await choose('pid', '7')
  answer.filtered = await marked()
  await page.check('#inverted')
  await untilState('inverted', '1')
  await view('function')
  await page.click('#table tbody th button:text-is("0x401234")')
  answer.inverted = await marked()
  await view('function')
  answer.sandwich = await page.$$eval('#sandwich .frame.chosen', frames => frames.map(frame => frame.getAttribute('aria-label')))
  return answer
}

// With fingers: a tap on a frame, on a row and on a button; a time by a finger that moves over the timeline; two that pinch.
async function touch () {
  const answer = { touches: await page.evaluate(() => navigator.maxTouchPoints), before: await shown() }
  await page.tap('#graph .frame[aria-label^="worker 7:"]')
  await until(() => state.zoom !== '')
  answer.zoom = state().zoom
  answer.details = await text('#details h2')
  await page.tap('#graph .frame')
  await untilState('zoom', '')
  await page.tap('#tab-function')
  await untilState('tab', 'function')
  await page.tap('#table tbody th button:text-is("0x401000")')
  answer.byRow = await marked()
  await page.tap('#names .process .name')
  await until(() => state.pid !== '')
  answer.process = state().pid
  await page.tap('#chips button[aria-label$="remove this filter"]')
  await untilState('pid', '')
  await page.locator('#area').scrollIntoViewIfNeeded()
  const box = await page.locator('#area').boundingBox()
  const session = await browser.newCDPSession(page)
  const fingers = async (type, ...parts) => session.send('Input.dispatchTouchEvent',
    { type, touchPoints: parts.map((part, id) => ({ x: box.x + part * box.width, y: box.y + box.height / 2, id })) })
  await fingers('touchStart', 0.25)
  await fingers('touchMove', 0.5)
  await fingers('touchMove', 0.75)
  await fingers('touchEnd')
  await until(() => state.time !== '')
  answer.bins = await page.evaluate(() => [...selectedBins(), data.bins])
  answer.second = await shown()
  await fingers('touchStart', 0.4)
  await fingers('touchStart', 0.4, 0.6)
  await fingers('touchMove', 0.3, 0.7)
  await fingers('touchMove', 0.2, 0.8)
  await fingers('touchEnd')
  await until(() => state.span !== '')
  answer.pinched = await page.evaluate(() => ({ shown: shownBins(), selected: selectedBins() }))
  return answer
}

const tasks = { ...filters, ...tool, guide, part, cut, linked, touch, code, totals, compare, merged, back, keys, sandwich, access }
try {
  // All ticks, as reports have them; what is shown first is of those that aren't idle.
  await page.goto(task.startsWith('first') ? address : `${address}#idle=1`)
  const answer = await tasks[task]()
  console.log(JSON.stringify({ ...answer, complaints }))
} catch (error) {
  console.error(error.stack, complaints)
  process.exitCode = 1
} finally {
  await browser.close()
}
