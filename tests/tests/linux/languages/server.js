'use strict';
// A web server in each of eight workers, with a client of its own. V8 notes which functions are called.

const fs = require('fs');
const http = require('http');
const { Session } = require('inspector/promises');
const { Worker, isMainThread, parentPort } = require('worker_threads');

const WORKERS = 8;
const BUSY = 3; // answers of each worker, from which on it is said to work

function* cells(number) {
  for (let cell = 0; cell < 5; cell++) yield number * cell;
}

function row(number) {
  const shown = [];
  for (const cell of cells(number)) shown.push(String(cell));
  return `${shown.join(', ')}\n`;
}

function page() {
  const rows = [];
  for (let number = 0; number < 50; number++) rows.push(row(number));
  return rows.sort((one, other) => other.length - one.length).join('');
}

function answer(request, response) {
  const body = page();
  response.setHeader('Content-Length', Buffer.byteLength(body));
  response.end(body);
}

const session = new Session();

// The text of a script, if the debugger knows it: not that of all of Node's own ones.
const sourceOf = (scriptId) => session.post('Debugger.getScriptSource', { scriptId }).then(({ scriptSource }) => scriptSource, () => null);

// The functions that were called: their names, and where they begin, without the line if that isn't known.
async function called() {
  const { result } = await session.post('Profiler.takePreciseCoverage');
  await session.post('Debugger.enable');
  const lines = [];
  for (const { scriptId, url, functions } of result) {
    const source = await sourceOf(scriptId);
    for (const { functionName, ranges: [{ startOffset, count }] } of functions) {
      const line = source === null ? '' : `:${source.slice(0, startOffset).split('\n').length}`;
      if (count > 0) lines.push(`called\t${functionName || '(anonymous)'} (${url.split('/').at(-1)}${line})`);
    }
  }
  return lines;
}

function browse(port, agent, served) {
  http.get({ host: '127.0.0.1', port, agent }, (response) => {
    response.on('end', async () => {
      if (served === BUSY) parentPort.postMessage(null);
      if (!fs.existsSync('/stop')) return browse(port, agent, served + 1);
      parentPort.postMessage(await called());
      process.exit();
    });
    response.resume();
  });
}

async function note() {
  session.connect();
  await session.post('Profiler.enable');
  await session.post('Profiler.startPreciseCoverage', { callCount: false, detailed: false });
}

function work() {
  const server = http.createServer(answer);
  // On a busy host it would close a connection that its client then uses.
  Object.assign(server, { keepAliveTimeout: 0, headersTimeout: 0, requestTimeout: 0 });
  server.listen(0, '127.0.0.1', () => browse(server.address().port, new http.Agent({ keepAlive: true }), 0));
}

function wait() {
  const all = new Set();
  let [busy, ended] = [0, 0];
  const hear = async (lines) => {
    if (lines === null) {
      if (++busy === WORKERS) console.log('workload running');
      return;
    }
    for (const line of lines) all.add(line);
    if (++ended < WORKERS) return;
    for (const line of [...all, ...await called()]) console.log(line);
    console.log(`served by ${WORKERS}`);
  };
  for (let worker = 0; worker < WORKERS; worker++) new Worker(__filename).on('message', hear);
}

note().then(isMainThread ? wait : work);
