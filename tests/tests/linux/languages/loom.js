'use strict';
// Five functions of known shares, which are called through C++ and built-in functions, in two threads. Each measures its own time, from when the guest is told to begin.

const fs = require('fs');
const { Worker, isMainThread } = require('worker_threads');

const spent = new Map();
let begun = false;

// Milliseconds. Threads can't measure the time of their processors.
function account(name, begin) {
  spent.set(name, (spent.get(name) ?? 0) + performance.now() - begin);
}

function card(number) {
  const begin = performance.now();
  do {
    for (let step = 0; step < 1000; step++) number += step * step;
  } while (performance.now() - begin < 30);
  account('card', begin);
  return number;
}

function comb(key, number) {
  const begin = performance.now();
  do {
    for (let step = 0; step < 1000; step++) number += step * step;
  } while (performance.now() - begin < 25);
  account('comb', begin);
  return number;
}

function* weave(number) {
  const begin = performance.now();
  do {
    for (let step = 0; step < 1000; step++) number += step * step;
  } while (performance.now() - begin < 20);
  account('weave', begin);
  yield number;
}

class Dyer {
  dye(number) {
    const begin = performance.now();
    do {
      for (let step = 0; step < 1000; step++) number += step * step;
    } while (performance.now() - begin < 15);
    account('dye', begin);
    return number;
  }
}

function press() {
  const begin = performance.now();
  let number = 0;
  do {
    for (let step = 0; step < 1000; step++) number += step * step;
  } while (performance.now() - begin < 10);
  account('press', begin);
  return number;
}

function sortThreads(number) {
  return [number, 2].sort(card);
}

function goesOn() {
  if (!begun && fs.existsSync('/begin')) {
    begun = true;
    spent.clear();
    fs.writeSync(1, 'begun\n');
  }
  return !fs.existsSync('/stop');
}

function firstRoom() {
  while (goesOn()) {
    sortThreads(1);
    Array.from(weave(1));
  }
}

function secondRoom() {
  const dyer = new Dyer();
  while (goesOn()) {
    JSON.parse('1', comb);
    'x'.replace('x', () => dyer.dye(1));
    JSON.stringify({ toJSON: press });
  }
}

if (isMainThread) {
  const worker = new Worker(__filename);
  fs.writeSync(1, 'workload running\n');
  firstRoom();
  worker.on('exit', () => fs.writeSync(1, 'spent all\n'));
} else {
  secondRoom();
}
for (const [name, time] of spent) {
  fs.writeSync(1, `spent ${name} ${Math.round(time * 1e6)}\n`);
}
