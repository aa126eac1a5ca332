// The page in Debian's Chromium, and what tasks have in common.
//
//     ... TASK PAGE.html FOLDER
import axe from 'axe-core'
import { chromium } from 'playwright-core'

export const [task, file, folder] = process.argv.slice(2)
export const address = `file://${file}`
export const complaints = []

// The container has neither a sandbox nor a graphics card.
export const browser = await chromium.launchPersistentContext(folder, {
  executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu', '--disable-quic'],
  viewport: { width: 1300, height: 1000 }, permissions: ['clipboard-read', 'clipboard-write'], hasTouch: task === 'touch'
})
export const page = browser.pages()[0]
page.on('console', message => complaints.push(message.text()))
page.on('pageerror', error => complaints.push(error.stack))
page.on('request', request => { if (!request.url().startsWith(address)) complaints.push(request.url()) })

export const state = () => Object.fromEntries(new URLSearchParams(new URL(page.url()).hash.slice(1)))
// Clicks and keys change the address, and that the page, each a moment later.
export const until = async test => page.waitForFunction(test)
export const untilState = async (name, value) => page.waitForFunction(([name, value]) =>
  (new URLSearchParams(location.hash.slice(1)).get(name) ?? DEFAULTS[name]) === value && state[name] === value, [name, value])
export const text = async selector => (await page.textContent(selector)).trim()

// Shows one of the views.
export async function view (name) {
  await page.click(`#tab-${name}`)
  await untilState('tab', name)
}

// Does something with the filters, which are there while their panel is open.
export async function inFilters (action) {
  await page.click('#add')
  await action()
  // Where a text is typed, Escape deletes it.
  await page.focus('#regex')
  await page.keyboard.press('Escape')
  await page.waitForFunction(() => document.querySelector(':popover-open') === null)
}

// Chooses a value of a filter.
export async function choose (name, value) {
  await inFilters(async () => {
    await page.selectOption(`#${name}`, value)
    await page.waitForFunction(name => state[name] === document.getElementById(name).value, name)
  })
}

// Selects stacks with functions that a regular expression means.
export const chooseFunctions = async pattern => inFilters(async () => {
  await page.check('#regex')
  await page.fill('#function', pattern)
  await page.keyboard.press('Enter')
  await untilState('function', pattern)
})

export const clear = async () => inFilters(async () => page.click('#clear'))

// What axe finds.
export async function violations () {
  await page.evaluate(axe.source)
  const found = await page.evaluate(() => globalThis.axe.run())
  return found.violations.map(({ id, nodes }) => `${id}: ${nodes[0].html} ${nodes[0].failureSummary}`)
}

// Drags over the timeline from one time to another, in seconds.
export async function drag (from, to) {
  await page.locator('#area').scrollIntoViewIfNeeded()
  const box = await page.locator('#area').boundingBox()
  const place = await page.evaluate(times => times.map(time => (time * 1e9 - data.begin) / (data.width * data.bins)), [from, to])
  const [x1, x2] = place.map(part => box.x + part * box.width)
  await page.mouse.move(x1, box.y + box.height / 2)
  await page.mouse.down()
  await page.mouse.move((x1 + x2) / 2, box.y + box.height / 2)
  await page.mouse.move(x2, box.y + box.height / 2)
  await page.mouse.up()
  await until(() => state.time !== '')
}

// All rows of a table, as lists of texts.
export async function table (name) {
  await view(name)
  while (await page.isVisible('#more')) await page.click('#more')
  return page.$$eval('#table tbody tr', rows => rows.map(row => [...row.cells].map(cell => cell.textContent)))
}

export const shown = async () => ({
  total: parseInt(await text('#total')), graph: await page.getAttribute('#graph .frame', 'aria-label')
})
