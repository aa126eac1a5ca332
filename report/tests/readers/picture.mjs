// Makes the picture of the page that README.md shows, docs/page.png.
//
//     picture.mjs PICTURE.png PAGE.html FOLDER FUNCTION
//
// PAGE.html is of a recording of some seconds, FUNCTION one that took a part of its middle third. Chromium keeps its files in FOLDER.
import { browser, complaints, drag, page, address, task } from './browser.mjs'

await page.setViewportSize({ width: 1440, height: 640 })
await page.goto(address)
// The middle third of the time.
await drag(...await page.evaluate(() => [1, 2].map(thirds => (data.begin + data.width * data.bins * thirds / 3) / 1e9)))
await page.mouse.move(700, 630)
// The widest one.
await page.$$eval('#graph .frame', (frames, name) => {
  const its = frames.filter(({ frame }) => frame.name === name)
  its.sort((a, b) => b.offsetWidth - a.offsetWidth)[0].focus()
}, process.argv[5])
await page.screenshot({ path: task })
await browser.close()
if (complaints.length > 0) throw new Error(complaints.join('\n'))
