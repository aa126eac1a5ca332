// Opens the page in Debian's Chromium as somebody would who has just made it, and prints as JSON how long that takes and how much memory.
//
//     open.mjs PAGE.html
//
// - `drawn`: ms from the begin of the navigation to the first image with the page's frames;
// - `inverted`: ms that the change to the inverted graph takes, which has most to compute;
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
  console.log(JSON.stringify(answer))
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
