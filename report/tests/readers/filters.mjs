// Filters, lanes and views, as people choose them. Each task returns what the page then shows.
import { choose, chooseFunctions, clear, drag, inFilters, page, shown, state, table, text, until, untilState, view } from './browser.mjs'

const labels = async () => page.$$eval('#graph .frame', frames => frames.map(frame => frame.getAttribute('aria-label')))

// Chooses each process of the list by its name, and then each thread.
export async function ids () {
  const answer = {}
  for (const id of ['pid', 'tid']) {
    answer[id] = []
    const names = await page.$$eval(`#${id} option`, options => options.slice(1).map(option => option.label))
    for (const label of names) {
      await choose(id, { label })
      answer[id].push([label, await text('#total'), (await labels())[0]])
    }
    await choose(id, '')
  }
  return answer
}

// The lanes, with the threads of all processes, and of each lane the bin with most ticks: what the pointer shows there, and how high its areas are.
export async function lanes () {
  for (let opened = 0; await page.locator('#names .fold[aria-expanded=false]').count() > 0; opened++) {
    await page.locator('#names .fold[aria-expanded=false]').first().click()
    await page.waitForFunction(opened => state.open.length > opened, opened)
  }
  const boxes = page.locator('#lanesbox svg')
  const drawn = await boxes.evaluateAll(boxes => boxes.map(box => [box.getAttribute('class'), box.getAttribute('aria-label')]))
  const bins = await page.evaluate(() => lanes.boxes.map(({ row }) => {
    const ticks = Array.from({ length: data.bins }, (_, bin) => partsOf(row, bin).reduce((sum, part) => sum + part))
    return ticks.indexOf(Math.max(...ticks))
  }))
  const rows = []
  for (const [lane, bin] of bins.entries()) rows.push({ kind: drawn[lane][0], label: drawn[lane][1], ...await valuesAt(boxes.nth(lane), bin) })
  return { scale: await text('#scale'), rows }
}

async function valuesAt (lane, bin) {
  await lane.scrollIntoViewIfNeeded()
  const box = await lane.boundingBox()
  const [time, bins] = await page.evaluate(bin => [`${edgeTime(bin)}:${edgeTime(bin + 1)}`, data.bins], bin)
  await page.mouse.move(box.x + (bin + 0.5) / bins * box.width, box.y + box.height / 2)
  const areas = await lane.locator('path').evaluateAll((paths, bin) => paths.map(path => {
    const found = new RegExp(`M${bin} (-?[\\d.]+)h1V(-?[\\d.]+)h-1z`).exec(path.getAttribute('d'))
    return found && [path.getAttribute('class'), Number(found[2]) - Number(found[1])]
  }).filter(area => area !== null), bin)
  return { time, values: await text('#values'), areas }
}

// Filters, one after the other, each beside those before it; then those of a function's frame.
export async function combined () {
  const answer = {}
  const note = async name => { answer[name] = { ...await shown(), command: await text('#command') } }
  await choose('vcpu', '1')
  await note('vcpu')
  await choose('mode', 'kernel')
  await note('mode')
  await chooseFunctions('^(copy|walk)_')
  await note('regex')
  for (const name of ['function', 'process', 'vcpu']) answer[`${name}s`] = await table(name)
  await clear()
  await untilState('vcpu', '')
  await choose('module', '[kernel]')
  await note('module')
  await choose('module', '')
  await view('function')
  const chooseRow = async name => page.click(`#table tbody th button:text-is("${name}")`)
  await chooseRow('copy_page')
  await page.click('#details button:text-is("Only its module")')
  await untilState('module', '[kernel]')
  await note('itsModule')
  await page.click('#details button:text-is("Only with it")')
  await until(() => state.only.length === 1)
  await note('onlyWith')
  await chooseRow('walk_tree')
  await page.click('#details button:text-is("Only with it")')
  await until(() => state.only.length === 2)
  await note('withBoth')
  answer.chips = await page.$$eval('#chips .chip > :first-child', names => names.map(name => name.textContent))
  await page.click('#chips .chip > :first-child:text-is("only copy_page")')
  await until(() => state.hide.length === 1)
  await note('withoutOne')
  return answer
}

// Each label of the filter, all values as groups of the graph, and what the details of a group select.
export async function labelled () {
  const answer = { chosen: [] }
  // Wide enough for the rarest label.
  await page.setViewportSize({ width: 2200, height: 1000 })
  const options = await page.$$eval('#label option', options => options.slice(1).map(option => option.value))
  for (const label of options) {
    await choose('label', label)
    answer.chosen.push([label, (await shown()).total, await text('#command')])
  }
  await clear()
  await untilState('label', '')
  await page.selectOption('#group', 'label a key')
  await untilState('group', 'label a key')
  answer.groups = await page.$$eval('#graph .frame[aria-level="2"]', frames => frames.map(frame => frame.getAttribute('aria-label')))
  answer.lanes = await page.$$eval('#lanesbox svg.label', boxes => boxes.map(box => box.getAttribute('aria-label')))
  answer.threads = await table('thread')
  await view('flame')
  await page.click('#graph .frame[aria-label^="a key=0:"]')
  await page.click('#details button:text-is("Only this label")')
  await untilState('label', 'a key=0')
  answer.only = await shown()
  await clear()
  await untilState('label', '')
  await page.click('#names .label .name:text-is("a key=0")')
  await untilState('label', 'a key=0')
  answer.byLane = await shown()
  await clear()
  await untilState('label', '')
  await page.click('#graph .frame[aria-label^="a key=[none]:"]')
  answer.ofNone = await page.locator('#details button:text-is("Only this label")').count()
  return answer
}

// The frames of each order and each view: labels, and where they are.
export async function views () {
  const answer = {}
  const places = async () => page.$$eval('#graph .frame', frames => frames.map(frame => {
    const { x, y } = frame.getBoundingClientRect()
    return [frame.getAttribute('aria-label'), Number(frame.getAttribute('aria-level')), Math.round(x), Math.round(y)]
  }))
  await page.selectOption('#view', 'flame')
  await untilState('view', 'flame')
  answer.flame = await places()
  for (const order of ['time', 'name']) {
    await page.selectOption('#order', order)
    await untilState('order', order)
    answer[order] = await places()
  }
  await page.selectOption('#view', 'icicle')
  await untilState('view', 'icicle')
  answer.icicle = await places()
  await page.selectOption('#group', 'thread')
  await untilState('group', 'thread')
  answer.thread = await places()
  return answer
}

// Two times of a recording: the command for all of them, and for a part.
export async function times () {
  const answer = { whole: await text('#total'), wholeCommand: await text('#command') }
  await drag(0.25, 0.75)
  answer.part = await text('#total')
  answer.partCommand = await text('#command')
  answer.time = state().time
  return answer
}

// What is typed into the search: whether it is searched for at once, how often, and what is computed anew.
export async function search () {
  const answer = await page.evaluate(() => {
    globalThis.before = sums
    globalThis.found = []
    new MutationObserver(() => found.push(element('found').textContent)).observe(element('found'), { childList: true })
    const input = element('search')
    for (const text of ['co', 'copy_', 'copy_page']) {
      input.value = text
      input.dispatchEvent(new Event('input'))
    }
    return { typed: state.search }
  })
  await untilState('search', 'copy_page')
  answer.found = await page.evaluate(() => found)
  answer.entered = await page.evaluate(() => {
    const input = element('search')
    input.value = 'walk_tree'
    input.dispatchEvent(new Event('input'))
    input.dispatchEvent(new Event('change'))
    return state.search
  })
  answer.isSame = await page.evaluate(() => sums === before)
  answer.hits = await page.locator('#graph .frame.hit').count()
  await view('function')
  answer.rows = await page.$$eval('#table tbody tr th', heads => heads.map(head => head.textContent))
  return answer
}

// A function that is typed, without Enter: what is selected then, what the lanes say of the bin that was looked at before, and one step back.
export async function typed () {
  const answer = { all: await text('#total') }
  await page.focus('#lanesbox')
  answer.before = await text('#values')
  await inFilters(async () => {
    await page.fill('#function', 'no such fun')
    await untilState('function', 'no such fun')
    await page.fill('#function', 'no such function')
    await untilState('function', 'no such function')
  })
  answer.total = await text('#total')
  answer.values = await text('#values')
  await page.goBack()
  await untilState('function', '')
  answer.back = await text('#total')
  answer.again = await text('#values')
  return answer
}

// More frames and lanes than are drawn.
export async function crowded () {
  const crowd = async () => await page.isVisible('#crowded') ? text('#crowded') : ''
  const answer = { whole: await crowd(), frames: await page.locator('#graph .frame').count() }
  const lanes = async () => [await text('#scale'), await page.locator('#lanesbox svg.process').count()]
  answer.few = await lanes()
  await page.click('#names button:text-is("48 more")')
  answer.more = await lanes()
  await page.click('#names button:text-is("12 more")')
  answer.all = await lanes()
  await page.click('#graph .frame[aria-level="2"]')
  await until(() => state.zoom !== '')
  answer.zoomed = await crowd()
  return answer
}

// What the keyboard reaches that pointers show: the values of lanes, and confidence intervals.
export async function reached () {
  const answer = {}
  await page.focus('#lanesbox')
  answer.first = await text('#values')
  for (const key of ['End', 'ArrowDown', 'ArrowLeft']) await page.keyboard.press(key)
  answer.last = await text('#values')
  answer.edges = await page.evaluate(() => [0, 1, data.bins - 2, data.bins - 1].map(shownTime))
  await view('function')
  answer.titles = await page.$$eval('#table tbody tr:nth-child(1) td', cells => cells.map(cell => [cell.textContent, cell.title]))
  await page.focus('#intervals')
  await page.keyboard.press('Space')
  await untilState('intervals', '1')
  answer.intervals = await page.$$eval('#table tbody tr:nth-child(1) td', cells => cells.map(cell => cell.textContent))
  return answer
}

// Functions with the page's own separator in their names, functions without a module, and patterns that only browsers know.
export async function odd () {
  const answer = {}
  await view('function')
  await page.click('#table tbody th button:text-is("operator||")')
  await page.click('#details button:text-is("Only with it")')
  await until(() => state.only.length === 1)
  answer.chip = await text('#chips .chip > :first-child')
  answer.only = await text('#total')
  await page.click('#chips button[aria-label$="remove this filter"]')
  await until(() => state.only.length === 0)
  await page.evaluate(() => KINDS.module.choose({ key: '' }))
  await until(() => state.module !== '')
  answer.module = await text('#total')
  await clear()
  await untilState('module', '')
  answer.commands = []
  for (const pattern of ['^operator.+$', '^oper(?!x)', '(o)\\1']) {
    await chooseFunctions(pattern)
    answer.commands.push(await text('#command'))
  }
  return answer
}

// Zooms in and out by clicks, in both shapes: where the frame that is clicked is in the window before and after, how high the graph is, and what is selected.
// Windows have more room than the graph and less.
export async function zoom () {
  const answer = { steps: [] }
  const click = async name => {
    const frame = page.locator(`#graph .frame[aria-label^="${name}:"]`)
    const rows = async () => page.evaluate(() => element('graph').offsetHeight / HEIGHT)
    await frame.scrollIntoViewIfNeeded()
    const { x, y, width, height } = await frame.boundingBox()
    const step = { name, before: y, width, rows: [await rows()] }
    const zoom = await page.evaluate(() => state.zoom)
    await page.mouse.click(x + width / 2, y + height / 2)
    await page.waitForFunction(zoom => state.zoom !== zoom, zoom)
    step.after = (await frame.boundingBox()).y
    step.rows.push(await rows())
    step.zoomed = await page.evaluate(() => views.graph.zoomed.name)
    step.chosen = await text('#details h2')
    answer.steps.push(step)
  }
  for (const shape of ['icicle', 'flame']) {
    await page.selectOption('#view', shape)
    await untilState('view', shape)
    for (const height of [640, 3000]) {
      await page.setViewportSize({ width: 1300, height })
      await click('0x402000')
      // The innermost frames, away from the outermost one.
      await page.evaluate(() => { element('flame').scrollTop = state.view === 'flame' ? 0 : 9999 })
      await click('0x600000')
      await click('0x402000')
      await click('all')
    }
  }
  await page.fill('#search', '0x600')
  await untilState('search', '0x600')
  answer.found = await text('#found')
  const hits = async () => page.locator('#graph .frame.hit').count()
  answer.hits = await hits()
  await click('0x402000')
  answer.zoomedHits = await hits()
  await click('all')
  await click('0x403010')
  answer.labels = await labels()
  answer.details = await text('#details dd')
  return answer
}
