// Opens the page in Debian's Chromium as somebody would who has just made it, uses it, and prints as JSON what Chromium's own tracing says of it:
//
//     open.mjs PAGE.html
//
// - `usable`: ms from the start of the navigation to the end of the last task of 50 ms or more, or to the first picture if that comes later;
// - `heap`: bytes of the script's objects then; `peak`: bytes of memory that the page's process has had at most by then;
// - `interactions`: by name, for each time the ms from an input to the picture that shows what it did (`shown`), and the ms of processor time that the
//   page's main thread took for it (`computed`).
import fs from 'node:fs'
import { chromium } from 'playwright-core'
import { Trace } from './trace.mjs'

const [file] = process.argv.slice(2)
const TIMES = 12
const CATEGORIES = ['benchmark', 'blink.user_timing', 'devtools.timeline', 'disabled-by-default-devtools.timeline', 'loading']
// The container has neither a sandbox nor a graphics card.
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu', '--disable-quic'] })
const page = await browser.newPage({ viewport: { width: 1440, height: 900 } })
page.setDefaultTimeout(0)

// Does something to the page; its marks in the trace are around that, and around the pictures that it leads to.
const actions = []
async function interact (name, action) {
  const number = actions.push(name) - 1
  await page.evaluate(number => performance.mark(`begin ${number}`), number)
  await action()
  await page.evaluate(number => new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(() => setTimeout(() => {
    performance.mark(`end ${number}`)
    resolve()
  })))), number)
}

// The middles of the elements that a pointer comes to.
const places = async selector => page.$$eval(selector, elements => elements.map(element => {
  const { left, top, width, height } = element.getBoundingClientRect()
  return { element, x: left + width / 2, y: top + height / 2 }
}).filter(({ element, x, y }) => document.elementFromPoint(x, y) === element).map(({ x, y }) => ({ x, y })))
const key = async (name, pressed) => interact(name, async () => page.keyboard.press(pressed))
const click = async (name, { x, y }) => {
  await page.mouse.move(x, y)
  await interact(name, async () => page.mouse.click(x, y))
}

// Each of these is done and taken back.
const tasks = {
  async zoom (time) {
    const frames = await places('#graph .frame:not(.thin)')
    await click('zoom', frames[1 + time % (frames.length - 1)])
    const [root] = await places('#graph .frame')
    await click('zoom', root)
  },
  async search (time) {
    await page.focus('#search')
    await interact('search', async () => {
      await page.keyboard.insertText(`function_${time}`)
      await page.keyboard.press('Enter')
    })
    await interact('search', async () => {
      await page.keyboard.press('Control+a')
      await page.keyboard.press('Delete')
      await page.keyboard.press('Enter')
    })
    await page.keyboard.press('Escape')
  },
  async process (time) {
    const names = await places('#names .process .name')
    await click('filter by a process', names[time % names.length])
    const [remove] = await places('#chips button[aria-label$="remove this filter"]')
    await click('filter by a process', remove)
  },
  async tab (time) {
    await key('another tab', String(2 + time % 7))
    await key('another tab', '1')
  },
  async invert () {
    const [box] = await places('#inverted')
    await click('invert', box)
    await click('invert', box)
  },
  async hover (time) {
    const frames = await places('#graph .frame')
    const { x, y } = frames[7 * time % frames.length]
    await interact('hover', async () => page.mouse.move(x, y))
  },
  async time (time) {
    const { x, y, width } = await page.locator('#area').boundingBox()
    const from = x + width * (0.1 + 0.02 * time)
    await page.mouse.move(from, y + 10)
    await interact('select a time', async () => {
      await page.mouse.down()
      await page.mouse.move(from + width / 8, y + 12)
      await page.mouse.move(from + width / 4, y + 12)
      await page.mouse.up()
    })
    await key('select a time', 'Escape')
  }
}

try {
  await browser.startTracing(page, { categories: CATEGORIES })
  await page.goto(`file://${file}`)
  await page.waitForSelector('#graph .frame')
  const session = await page.context().newCDPSession(page)
  await session.send('Performance.enable')
  const { metrics } = await session.send('Performance.getMetrics')
  const heap = metrics.find(({ name }) => name === 'JSHeapUsedSize').value
  const used = await peak(await browser.newBrowserCDPSession())
  for (const task of Object.values(tasks)) for (let time = 0; time < TIMES; time++) await task(time)
  const trace = new Trace(await browser.stopTracing())
  const interactions = {}
  actions.forEach((name, number) => {
    const { shown, computed } = trace.interaction(`begin ${number}`, `end ${number}`)
    interactions[name] ??= { shown: [], computed: [] }
    interactions[name].shown.push(shown)
    interactions[name].computed.push(computed)
  })
  console.log(JSON.stringify({ usable: trace.usable('begin 0'), heap, peak: used, interactions }))
} finally {
  await browser.close()
}

// The most memory of a process that renders pages.
async function peak (session) {
  const { processInfo } = await session.send('SystemInfo.getProcessInfo')
  const peaks = processInfo.filter(({ type }) => type === 'renderer').map(({ id }) => {
    const status = fs.readFileSync(`/proc/${id}/status`, 'utf8')
    return 1024 * Number(/VmHWM:\s*(\d+)/.exec(status)[1])
  })
  return Math.max(...peaks)
}
