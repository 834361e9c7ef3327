// SPDX-License-Identifier: Apache-2.0

// The stream as the page reads it, wherever the network cuts it.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';

const { Events } = await load('sse.js');

function read(...parts) {
  const got = [];
  const events = new Events((name, data) => got.push([name, data]));
  for (const p of parts) events.push(p);
  return got;
}

const text = ': alive\n\nevent: diff\ndata: {"a":\ndata: 1}\nid: 7\n\nevent: nothing\n\ndata:x\r\nretry: 5\r\n\r\ndata\n\nevent: cut\ndata: off\n';
const want = [['diff', '{"a":\n1}'], ['message', 'x'], ['message', '']];

test('events are read wherever the stream is cut', () => {
  assert.deepEqual(read(text), want);
  assert.deepEqual(read(...text), want);
  for (let i = 1; i < text.length; i++) assert.deepEqual(read(text.slice(0, i), text.slice(i)), want, `cut at ${i}`);
});

test('a long event in many pieces costs no more than its length', () => {
  const piece = 'x'.repeat(1000);
  const got = read('data: ', ...new Array(20_000).fill(piece), '\n\n');
  assert.equal(got[0][1].length, 20_000_000);
});
