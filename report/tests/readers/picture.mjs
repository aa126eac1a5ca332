// Makes the picture of the page that README.md shows, docs/page.png.
//
//     KVMPROF_TESTS_KEEP=DIR tests/run functions_of_interpreters
//     kvmprof html DIR/.../python3.11.kvmprof --title 'Threads of Python' --output PAGE.html
//     picture.mjs PICTURE.png PAGE.html FOLDER 'card (loom.py:14)' module:python3.11
//
// The last two are a function that took a part of the middle third, which is selected, and a transform, if any. Chromium keeps its files in FOLDER.
import { browser, complaints, drag, page, address, task } from './browser.mjs'

await page.setViewportSize({ width: 1440, height: 800 })
const [name, ...transforms] = process.argv.slice(5)
await page.goto(`${address}#${new URLSearchParams(transforms.map(one => ['transform', one]))}`)
// The middle third of the time.
await drag(...await page.evaluate(() => [1, 2].map(thirds => (data.begin + data.width * data.bins * thirds / 3) / 1e9)))
await page.mouse.move(700, 790)
// The widest one.
await page.$$eval('#graph .frame', (frames, name) => {
  const its = frames.filter(({ frame }) => frame.name === name)
  its.sort((a, b) => b.offsetWidth - a.offsetWidth)[0].focus({ preventScroll: true })
}, name)
await page.screenshot({ path: task })
await browser.close()
if (complaints.length > 0) throw new Error(complaints.join('\n'))
