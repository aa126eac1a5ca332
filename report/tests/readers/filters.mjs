// Filters, lanes and views, as people choose them. Each task returns what the page then shows.
import { drag, page, shown, state, table, text, until, untilState } from './browser.mjs'

const labels = async () => page.$$eval('#graph .frame', frames => frames.map(frame => frame.getAttribute('aria-label')))

// Chooses each process of the list by its name, and then each thread.
export async function ids () {
  const answer = {}
  for (const id of ['pid', 'tid']) {
    answer[id] = []
    const names = await page.$$eval(`#${id} option`, options => options.slice(1).map(option => option.label))
    for (const label of names) {
      await page.selectOption(`#${id}`, { label })
      await page.waitForFunction(id => state[id] !== '' && state[id] === document.getElementById(id).value, id)
      answer[id].push([label, await text('#total'), (await labels())[0]])
    }
    await page.selectOption(`#${id}`, '')
    await untilState(id, '')
  }
  return answer
}

// The lanes of each kind, and of each lane the bin with most ticks: what the pointer shows there, and how high its areas are.
export async function lanes () {
  const answer = {}
  for (const kind of ['vcpu', 'process', 'thread']) {
    await page.selectOption('#lanes', kind)
    await untilState('lanes', kind)
    const drawn = await page.$$eval('#lanesbox svg', boxes => boxes.map(box => box.getAttribute('aria-label')))
    const bins = await page.evaluate(() => lanes.boxes.map(({ row }) => {
      const ticks = row.bins.map(parts => (parts ?? []).reduce((sum, part) => sum + part, 0))
      return ticks.indexOf(Math.max(...ticks))
    }))
    const rows = []
    for (const [lane, bin] of bins.entries()) rows.push({ label: drawn[lane], ...await valuesAt(lane, bin, bins.length) })
    answer[kind] = { scale: await text('#scale'), rows }
  }
  return answer
}

async function valuesAt (lane, bin, lanes) {
  await page.locator('#lanesbox').scrollIntoViewIfNeeded()
  const box = await page.locator('#lanesbox').boundingBox()
  const [time, bins] = await page.evaluate(bin => [`${edgeTime(bin)}:${edgeTime(bin + 1)}`, data.bins], bin)
  await page.mouse.move(box.x + (bin + 0.5) / bins * box.width, box.y + (lane + 0.5) / lanes * box.height)
  const areas = await page.locator('#lanesbox svg').nth(lane).locator('path').evaluateAll((paths, bin) => paths.map(path => {
    const found = new RegExp(`M${bin} (-?[\\d.]+)h1V(-?[\\d.]+)h-1z`).exec(path.getAttribute('d'))
    return found && [path.getAttribute('class'), Number(found[2]) - Number(found[1])]
  }).filter(area => area !== null), bin)
  return { time, values: await text('#values'), areas }
}

// Filters, one after the other, each beside those before it; then those of a function's frame.
export async function combined () {
  const answer = {}
  const note = async name => { answer[name] = { ...await shown(), command: await text('#command') } }
  await page.selectOption('#vcpu', '1')
  await untilState('vcpu', '1')
  await note('vcpu')
  await page.selectOption('#mode', 'kernel')
  await untilState('mode', 'kernel')
  await note('mode')
  await page.check('#regex')
  await page.fill('#function', '^(copy|walk)_')
  await page.keyboard.press('Enter')
  await untilState('function', '^(copy|walk)_')
  await note('regex')
  for (const name of ['function', 'process', 'vcpu']) answer[`${name}s`] = await table(name)
  await page.click('#clear')
  await untilState('vcpu', '')
  await page.selectOption('#module', '[kernel]')
  await untilState('module', '[kernel]')
  await note('module')
  await page.selectOption('#module', '')
  await untilState('module', '')
  await page.click('#tab-function')
  await untilState('table', 'function')
  const choose = async name => page.click(`#table tbody th button:text-is("${name}")`)
  await choose('copy_page')
  await page.click('#details button:text-is("Only its module")')
  await untilState('module', '[kernel]')
  await note('itsModule')
  await page.click('#details button:text-is("Only with it")')
  await until(() => state.only.length === 1)
  await note('onlyWith')
  await choose('walk_tree')
  await page.click('#details button:text-is("Only with it")')
  await until(() => state.only.length === 2)
  await note('withBoth')
  answer.chips = await page.$$eval('#chips button', buttons => buttons.map(button => button.textContent))
  return answer
}

// Each label of the filter, all values as groups of the graph, and what the details of a group select.
export async function labelled () {
  const answer = { chosen: [] }
  const options = await page.$$eval('#label option', options => options.slice(1).map(option => option.value))
  for (const label of options) {
    await page.selectOption('#label', label)
    await untilState('label', label)
    answer.chosen.push([label, (await shown()).total, await text('#command')])
  }
  await page.click('#clear')
  await untilState('label', '')
  await page.selectOption('#group', 'label a key')
  await untilState('group', 'label a key')
  answer.groups = await page.$$eval('#graph .frame[aria-level="2"]', frames => frames.map(frame => frame.getAttribute('aria-label')))
  answer.threads = await table('thread')
  await page.click('#graph .frame[aria-label^="a key=0:"]')
  await page.click('#details button:text-is("Only this label")')
  await untilState('label', 'a key=0')
  answer.only = await shown()
  await page.click('#clear')
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
  answer.rows = await page.$$eval('#table tbody tr th', heads => heads.map(head => head.textContent))
  return answer
}

// A function that is typed, without Enter: what is selected then, what the lanes say of the bin that was looked at before, and one step back.
export async function typed () {
  const answer = { all: await text('#total') }
  await page.focus('#lanesbox')
  answer.before = await text('#values')
  await page.fill('#function', 'no such fun')
  await untilState('function', 'no such fun')
  await page.fill('#function', 'no such function')
  await untilState('function', 'no such function')
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
  for (const kind of ['process', 'thread', 'vcpu']) {
    await page.selectOption('#lanes', kind)
    await untilState('lanes', kind)
    answer[kind] = [await text('#scale'), await page.locator('#lanesbox svg').count()]
  }
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
  for (const key of ['End', 'ArrowDown', 'ArrowDown', 'ArrowLeft']) await page.keyboard.press(key)
  answer.last = await text('#values')
  answer.edges = await page.evaluate(() => [0, 1, data.bins - 2, data.bins - 1].map(shownTime))
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
  await page.click('#table tbody th button:text-is("operator||")')
  await page.click('#details button:text-is("Only with it")')
  await until(() => state.only.length === 1)
  answer.chip = await text('#chips button')
  answer.only = await text('#total')
  await page.click('#chips button')
  await until(() => state.only.length === 0)
  await page.evaluate(() => KINDS.module.choose({ key: '' }))
  await until(() => state.module !== '')
  answer.module = await text('#total')
  await page.click('#clear')
  await untilState('module', '')
  await page.check('#regex')
  answer.commands = []
  for (const pattern of ['^operator.+$', '^oper(?!x)', '(o)\\1']) {
    await page.fill('#function', pattern)
    await page.keyboard.press('Enter')
    await untilState('function', pattern)
    answer.commands.push(await text('#command'))
  }
  return answer
}

// Zooms in and out by clicks: where the frame that is clicked is in the window before and after, how high the graph is, and what is selected. Windows are shorter
// and longer than the page.
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
    step.chosen = await text('#details h3')
    answer.steps.push(step)
  }
  for (const height of [1000, 3000]) {
    await page.setViewportSize({ width: 1300, height })
    await click('0x402000')
    await click('all')
    await click('0x402000')
    await page.evaluate(() => scrollTo(0, 0))
    await click('all')
  }
  await page.fill('#search', '0x600')
  await untilState('search', '0x600')
  answer.found = await text('#found')
  const hits = async () => page.locator('#graph .frame.hit').count()
  answer.hits = await hits()
  await click('0x402000')
  answer.zoomedHits = await hits()
  await page.click('#whole')
  await untilState('zoom', '')
  await click('0x403010')
  answer.labels = await labels()
  answer.details = await text('#details dd')
  return answer
}
