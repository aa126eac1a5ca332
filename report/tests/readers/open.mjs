// Opens the page in Debian's Chromium as somebody would who has just made it, uses it, and prints as JSON how long that takes and how much memory.
//
//     open.mjs PAGE.html
//
// - `drawn`: ms from the begin of the navigation to the first image with the page's frames;
// - `inverted`: ms that the change to the inverted graph takes, which has most to compute;
// - `interactions`: ms of each step of somebody who uses it, from the key or the click to the next image, as the browser's Event Timing has them; those of less
//   than 16 ms are 16;
// - `heap`: bytes of the script's objects after the first drawing; `peak`: bytes of memory that the page's process has had at most by then.
import fs from 'node:fs'
import { chromium } from 'playwright-core'

const [file] = process.argv.slice(2)
// The container has neither a sandbox nor a graphics card.
const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--disable-gpu', '--disable-quic'] })
try {
  const page = await browser.newPage({ viewport: { width: 1300, height: 1000 } })
  const session = await page.context().newCDPSession(page)
  await page.goto(`file://${file}`, { waitUntil: 'commit' })
  // The second image is made when the first one has been.
  const drawn = await page.waitForFunction(() => document.querySelector('#graph .frame') !== null &&
    new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(() => resolve(performance.now())))), undefined, { timeout: 0 })
  const answer = { drawn: await drawn.jsonValue() }
  await session.send('Performance.enable')
  const { metrics } = await session.send('Performance.getMetrics')
  answer.heap = metrics.find(({ name }) => name === 'JSHeapUsedSize').value
  answer.peak = await peak(await browser.newBrowserCDPSession())
  answer.inverted = await page.evaluate(() => {
    const begin = performance.now()
    state.inverted = '1'
    drawViews()
    return performance.now() - begin
  })
  await page.reload()
  await page.waitForFunction(() => document.querySelector('#graph .frame') !== null)
  answer.interactions = await interactions(page)
  console.log(JSON.stringify(answer))
} finally {
  await browser.close()
}

// What somebody does in each view, and how long it takes.
async function interactions (page) {
  await page.evaluate(() => {
    globalThis.timed = []
    // Undo is done by a later task than that of its key.
    for (const type of ['event', 'longtask']) {
      new PerformanceObserver(list => globalThis.timed.push(...list.getEntries())).observe({ type, durationThreshold: 16 })
    }
  })
  const times = []
  // Waits for an image after the step, and for another one, when its time is known.
  const step = async action => {
    await page.evaluate(() => { globalThis.timed = [] })
    await action()
    times.push(await page.evaluate(async () => {
      for (let image = 0; image < 3; image++) await new Promise(resolve => requestAnimationFrame(resolve))
      await new Promise(resolve => setTimeout(resolve))
      return Math.max(16, ...globalThis.timed.map(({ duration }) => duration))
    }))
  }
  const keys = async keys => { for (const key of keys) await step(async () => page.keyboard.press(key)) }
  const click = async selector => step(async () => page.click(selector))
  const area = await page.locator('#area').boundingBox()
  const drag = async (from, to) => {
    await page.mouse.move(area.x + from * area.width, area.y + 10)
    await page.mouse.down()
    await page.mouse.move(area.x + to * area.width, area.y + 10)
    await step(async () => page.mouse.up())
  }
  for (const tab of '2345678'.split('')) {
    await keys([tab])
    await drag(0.3, 0.5)
    await click('#names .process .name >> nth=0')
    await keys(['z', 'Escape'])
  }
  await keys(['1'])
  for (const frame of ['#graph .frame[aria-level="2"] >> nth=0', '#graph .frame[aria-level="3"] >> nth=0', '#graph .frame[aria-level="4"] >> nth=0']) {
    await click(frame)
    await keys(['Escape'])
    await page.focus(frame)
    await keys(['m', 'z', 'C', 'z', 'd', 'z', 'F', 'z', 'ArrowDown', 'ArrowUp'])
  }
  for (const box of ['#inverted', '#fold']) {
    await click(box)
    await click(box)
  }
  return times
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
