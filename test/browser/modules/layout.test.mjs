// SPDX-License-Identifier: Apache-2.0

// Where the map puts the nodes, and how a pointer and arrows find them.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';

const { at, beside, grid, layout } = await load('layout.js');

const clusters = (...sizes) => sizes.map((groups, c) => ({
  cluster: `c${c}`, groups: groups.map((n, g) => ({ cluster: `c${c}`, group: `g${g}`, keys: Array.from({ length: n }, (_, i) => `${c}/${g}/${i}`) })),
}));

test('every node has a place of its own within the map, and is found there', () => {
  for (const [fleet, width, height] of [[clusters([1]), 300, 200], [clusters([16, 3], [40]), 900, 600], [clusters(new Array(30).fill(64), [500]), 1300, 700], [clusters([5000]), 320, 400]]) {
    const l = layout(fleet, width, height);
    const keys = fleet.flatMap((c) => c.groups.flatMap((g) => g.keys));
    assert.deepEqual(l.keys, keys, 'in order');
    keys.forEach((key, i) => {
      assert.equal(l.index.get(key), i);
      assert.ok(l.x[i] >= 0 && l.x[i] + l.cw <= width && l.y[i] >= 0 && l.y[i] + l.ch <= l.height, `${key} at ${l.x[i]},${l.y[i]} of ${width}x${l.height}`);
      // One that overlaps another is not found at both of its corners.
      assert.equal(at(l, l.x[i], l.y[i]), i);
      assert.equal(at(l, l.x[i] + l.cw - 1, l.y[i] + l.ch - 1), i);
    });
    assert.equal(at(l, -1, -1), -1);
    assert.equal(at(l, l.x[0] - 1, l.y[0]), -1);
    assert.equal(l.groups.reduce((n, g) => n + g.count, 0), keys.length);
  }
});

test('cells are as large as fits', () => {
  const cell = (n, w, h) => layout(clusters([n]), w, h).cw;
  assert.ok(cell(10, 1300, 700) > cell(1000, 1300, 700));
  assert.ok(cell(1000, 1300, 700) > cell(5000, 1300, 700));
  assert.ok(layout(clusters([1000]), 1300, 700).height <= 700, 'without scrolling where that can be');
});

test('arrows lead along the order, and to the nearest cell above and below', () => {
  const l = { keys: ['a', 'b', 'c', 'd', 'e'], x: [0, 50, 100, 10, 90], y: [0, 0, 0, 30, 60] };
  assert.deepEqual([beside(l, 0, 1, 0), beside(l, 0, -1, 0), beside(l, 4, 1, 0)], [1, 0, 4], 'and no further than the ends');
  assert.deepEqual([beside(l, 2, 0, 1), beside(l, 3, 0, 1), beside(l, 4, 0, 1)], [3, 4, 4], 'down');
  assert.deepEqual([beside(l, 3, 0, -1), beside(l, 4, 0, -1), beside(l, 1, 0, -1)], [0, 3, 1], 'up');
});

test('the GPUs of a node fill its cell', () => {
  assert.deepEqual(grid(8, 148, 56), { cols: 4, rows: 2 });
  assert.deepEqual(grid(1, 148, 56), { cols: 1, rows: 1 });
  for (const n of [1, 2, 3, 4, 7, 8, 16, 72]) {
    const { cols, rows } = grid(n, 88, 38);
    assert.ok(cols * rows >= n && cols * (rows - 1) < n, `${n} in ${cols}x${rows}`);
  }
});
