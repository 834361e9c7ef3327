// SPDX-License-Identifier: Apache-2.0

// The map's counts and colours.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';

const { Fleet, keyOf } = await load('fleet.js');
const { markOf } = await load('marks.js');

const node = (name, more) => ({ key: keyOf('c', name), cluster: 'c', node: name, group: 'g', order: name, state: 'active', health: 1, gpuHealth: [1, 1], ...more });

test('a missing node is missing and nothing else', () => {
  const fleet = new Fleet();
  const gone = node('gone', { state: 'missing', straggler: true, health: 3, gpuHealth: [3, 4] });
  fleet.put([node('well'), node('slow', { straggler: true }), node('sick', { health: 2, gpuHealth: [2, 1] }), gone]);
  assert.deepEqual(fleet.figures(), { nodes: 4, gpus: 6, sick: 1, stragglers: 1, missing: 1, episodes: 0 });
  assert.equal(markOf(gone), 'missing');
  const shown = (show) => {
    fleet.setFilter({ show });
    return fleet.clusters().flatMap((c) => c.groups.flatMap((g) => g.keys)).map((k) => fleet.nodes.get(k).node);
  };
  assert.deepEqual(shown('stragglers'), ['slow']);
  assert.deepEqual(shown('sick'), ['sick']);
  assert.deepEqual(shown('missing'), ['gone']);
  fleet.setFilter({ show: 'all' });
  assert.equal(shown('all').length, 4);
});

test('two pairs of names are never one', () => {
  const pairs = [['a', 'b c'], ['a b', 'c'], ['', 'a b c'], ['a\nb', 'c'], ['1 a', 'b']];
  assert.equal(new Set(pairs.map((p) => keyOf(...p))).size, pairs.length);
});
