// The tasks of docs/contributing/page-tasks.md, each on the page as it opens: how many steps it takes, and what is shown then.
import { address, page, state, until } from './browser.mjs'

let steps = 0
const click = async selector => {
  steps++
  await page.click(selector)
}
const press = async key => {
  steps++
  await page.keyboard.press(key)
}
const type = async text => {
  steps++
  await page.keyboard.insertText(text)
}
const dragOver = async (from, to) => {
  steps++
  const { x, y, width } = await page.locator('#area').boundingBox()
  await page.mouse.move(x + from * width, y + 10)
  await page.mouse.down()
  await page.mouse.move(x + to * width, y + 10, { steps: 3 })
  await page.mouse.up()
}
// A frame of the function, and a key that does something with that.
const transform = key => async () => {
  await click('#graph .frame[aria-label^="copy_page:"] >> nth=0')
  await press(key)
}

const tasks = {
  'Search filter': async () => {
    await press('f')
    await type('copy_page')
  },
  'Implementation filter': transform('g'),
  'Invert call stack': async () => click('#inverted'),
  Merge: transform('m'),
  Focus: transform('F'),
  'Focus on category': transform('g'),
  Collapse: transform('C'),
  Drop: transform('d'),
  'Range selection': async () => dragOver(0.25, 0.5),
  'Thread selection': async () => click('#names .thread .name >> nth=0')
}

// By task: the address, the ticks, and the stacks that are shown, with the ticks of each, in the order in which the graph has their frames.
export async function guide () {
  const answer = {}
  for (const [name, task] of Object.entries(tasks)) {
    await page.goto('about:blank')
    await page.goto(`${address}#idle=1`)
    steps = 0
    await task()
    await until(() => Object.keys(state).some(name => !['idle', 'zoom'].includes(name) && String(state[name]) !== String(DEFAULTS[name] ?? '')))
    answer[name] = { steps, state: state(), ...await page.evaluate(() => ({ total: sums.total, stacks: sums.stacks.map(({ node, ticks }) => {
      const names = []
      for (let at = node; at > 0; at = nodes.parent[at]) names.unshift(functions.name[nodes.fn[at]])
      return { names: state.inverted !== '' ? names.reverse() : names, ticks }
    }) })) }
  }
  return answer
}
