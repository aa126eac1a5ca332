// What a trace of Chromium (Trace Event Format) says of a page that was used.

const LONG = 50e3 // us of a task that a user notices

export class Trace {
  constructor (text) {
    const { traceEvents } = JSON.parse(text)
    const mark = traceEvents.find(({ name }) => name === 'begin 0')
    this.events = traceEvents.filter(({ pid }) => pid === mark.pid)
    // Tasks of the page's main thread.
    this.tasks = this.events.filter(({ name, tid }) => name === 'RunTask' && tid === mark.tid)
  }

  time (name) {
    return this.events.find(event => event.name === name).ts
  }

  // Ms from the start of the last navigation to the end of its last long task, or to its first picture, as far as these are before a mark.
  usable (mark) {
    const until = this.time(mark)
    const begin = this.events.findLast(({ name, ts }) => name === 'navigationStart' && ts < until).ts
    const painted = this.time('firstContentfulPaint')
    const busy = this.tasks.filter(({ ts, dur }) => ts >= begin && ts < until && dur >= LONG).map(({ ts, dur }) => ts + dur)
    return (Math.max(painted, ...busy) - begin) / 1e3
  }

  // Ms from the slowest input between two marks to its picture, and the main thread's processor time from the first input to the last picture.
  interaction (begin, end) {
    const [from, to] = [this.time(begin), this.time(end)]
    const inputs = this.spans.filter(span => span.from >= from && span.from < to)
    const [first, last] = [Math.min(...inputs.map(span => span.from)), Math.max(...inputs.map(span => span.to))]
    const computed = this.tasks.filter(({ ts }) => ts >= first && ts < last).reduce((sum, { tdur }) => sum + tdur, 0)
    return { shown: Math.max(...inputs.map(span => span.to - span.from)) / 1e3, computed: computed / 1e3 }
  }

  // From inputs to the pictures that show what they did.
  get spans () {
    const begun = new Map()
    const spans = []
    for (const { name, ph, ts, id, id2, args } of this.events) {
      if (name !== 'EventLatency' && name !== 'EventTiming') continue
      const key = `${name} ${id ?? id2.local}`
      if (ph === 'b') begun.set(key, ts)
      if (ph === 'e') spans.push({ from: begun.get(key), to: ts })
    }
    Object.defineProperty(this, 'spans', { value: spans })
    return spans
  }
}
