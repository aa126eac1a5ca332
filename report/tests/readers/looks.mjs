// Compares what the page looks like, at several sizes, light and dark, with the pictures in a folder. The pictures are small: a pixel is the mean colour of a
// square. Prints as JSON for each pane how much it differs, as a part of how much it would if it weren't there: mean colours of some squares hardly depend on
// a machine's fonts.
//
//     looks.mjs EXPECTED PAGE.html FOLDER
//
// With KVMPROF_BLESS the pictures in the folder EXPECTED are renewed first. FOLDER also gets those that were found.
import fs from 'node:fs'
import { address, browser, complaints, folder, page, task as expected } from './browser.mjs'
import { SIZES } from './tool.mjs'

const PANES = ['header', '#time', '#bench', '#pane', '#details']
const BLOCK = 4 // squares on each side of what is compared
const blank = await browser.newPage()

// The mean colours of a picture's squares, and a picture of them.
const squares = async (png, side) => blank.evaluate(async ([png, side]) => {
  const image = new Image()
  image.src = `data:image/png;base64,${png}`
  await image.decode()
  const [columns, rows] = [Math.ceil(image.width / side), Math.ceil(image.height / side)]
  const paper = (width, height) => Object.assign(document.createElement('canvas'), { width, height }).getContext('2d')
  const whole = paper(image.width, image.height)
  whole.drawImage(image, 0, 0)
  const { data } = whole.getImageData(0, 0, image.width, image.height)
  const [sums, counts] = [new Float64Array(columns * rows * 3), new Float64Array(columns * rows)]
  for (let pixel = 0; pixel < image.width * image.height; pixel++) {
    const square = Math.floor(Math.floor(pixel / image.width) / side) * columns + Math.floor(pixel % image.width / side)
    counts[square]++
    for (let part = 0; part < 3; part++) sums[3 * square + part] += data[4 * pixel + part]
  }
  // Fewer colours make the picture smaller.
  const colours = [...sums].map((sum, index) => Math.min(Math.round(sum / counts[Math.floor(index / 3)] / 4) * 4, 255))
  const small = paper(columns, rows)
  const picture = small.createImageData(columns, rows)
  colours.forEach((colour, index) => { picture.data[4 * Math.floor(index / 3) + index % 3] = colour })
  for (let square = 0; square < columns * rows; square++) picture.data[4 * square + 3] = 255
  small.putImageData(picture, 0, 0)
  return { colours, columns, png: small.canvas.toDataURL('image/png').split(',')[1] }
}, [png.toString('base64'), side])

// How much the blocks of two pictures differ within a part of them, as [left, top, right, bottom] in squares.
function difference (one, other, [left, top, right, bottom]) {
  if (one.colours.length !== other.colours.length) return Infinity
  const sum = ({ colours, columns }, column, row, part) => {
    let sum = 0
    for (let y = row; y < Math.min(row + BLOCK, bottom); y++) {
      for (let x = column; x < Math.min(column + BLOCK, right); x++) sum += colours[3 * (y * columns + x) + part]
    }
    return sum
  }
  let all = 0
  for (let row = top; row < bottom; row += BLOCK) {
    for (let column = left; column < right; column += BLOCK) {
      for (const part of [0, 1, 2]) all += Math.abs(sum(one, column, row, part) - sum(other, column, row, part))
    }
  }
  return all
}

const looks = []
try {
  await page.goto(address)
  for (const [width, height] of SIZES) {
    for (const colorScheme of ['light', 'dark']) {
      await page.setViewportSize({ width, height })
      await page.emulateMedia({ colorScheme })
      const side = width > 2000 ? 16 : 8
      const found = async () => squares(await page.screenshot(), side)
      const [name, usual] = [`${width}-${colorScheme}.png`, await found()]
      fs.writeFileSync(`${folder}/${name}`, Buffer.from(usual.png, 'base64'))
      if (process.env.KVMPROF_BLESS) fs.copyFileSync(`${folder}/${name}`, `${expected}/${name}`)
      const kept = await squares(fs.readFileSync(`${expected}/${name}`), 1)
      const look = { name, panes: {} }
      for (const pane of PANES) {
        if (!await page.isVisible(pane)) continue
        const { x, y, width, height } = await page.locator(pane).boundingBox()
        const part = [x, y, x + width, y + height].map(edge => Math.floor(edge / side))
        await page.$eval(pane, element => { element.style.visibility = 'hidden' })
        look.panes[pane] = difference(usual, kept, part) / difference(await found(), kept, part)
        await page.$eval(pane, element => { element.style.visibility = '' })
      }
      looks.push(look)
    }
  }
  console.log(JSON.stringify({ looks, complaints }))
} catch (error) {
  console.error(error.stack, complaints)
  process.exitCode = 1
} finally {
  await browser.close()
}
