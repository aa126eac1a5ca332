// Makes the picture of the page that docs/recording.md shows, docs/page.png.
//
//     picture.mjs PICTURE.png PAGE.html FOLDER FUNCTION
//
// PAGE.html is of a recording of some seconds, FUNCTION one that took a part of its middle third. Chromium keeps its files in FOLDER.
import { browser, complaints, drag, page, address, task, untilState } from './browser.mjs'

await page.setViewportSize({ width: 1200, height: 1560 })
await page.goto(address)
// The middle third of the time.
await drag(...await page.evaluate(() => [1, 2].map(thirds => (data.begin + data.width * data.bins * thirds / 3) / 1e9)))
for (const [option, value] of [['lanes', 'process'], ['view', 'icicle']]) {
  await page.selectOption(`#${option}`, value)
  await untilState(option, value)
}
const name = process.argv[5]
await page.fill('#search', name)
await untilState('search', name)
await page.evaluate(() => window.scrollTo(0, 0))
await page.screenshot({ path: task })
await browser.close()
if (complaints.length > 0) throw new Error(complaints.join('\n'))
