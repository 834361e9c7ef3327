// SPDX-License-Identifier: Apache-2.0

// The map's counts and colours.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './harness.mjs';

const { Fleet, keyOf } = await load('fleet.js');
const { markOf, marks } = await load('marks.js');
const { omit, shared } = await load('names.js');
const { TERMS } = await load('glossary.js');
const { HEALTH, modes } = await load('colours.js');
const { columns } = await load('gpus.js');
const { LEVELS } = await load('attention.js');
const { facts } = await load('panel.js');
const { inSteps, titles } = await load('titles.js');

const node = (name, more) => ({ key: keyOf('c', name), cluster: 'c', node: name, group: 'g', order: name, state: 'active', health: 1, gpuHealth: [1, 1], ...more });

test('a missing node is missing and nothing else', () => {
  const fleet = new Fleet();
  const gone = node('gone', { state: 'missing', straggler: true, health: 3, gpuHealth: [3, 4] });
  fleet.put([node('well'), node('slow', { straggler: true }), node('sick', { health: 2, gpuHealth: [2, 1] }), gone]);
  assert.deepEqual(fleet.figures(), { nodes: 4, gpus: 6, sick: 1, lost: 0, stragglers: 1, missing: 1 });
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

test('labels omit what names share, and a lone name keeps all of it', () => {
  for (const [names, want] of [
    [['node-001', 'node-002'], ['001', '002']],
    [['ip-10-0-1-17.ec2.internal', 'ip-10-0-2-9.ec2.internal'], ['1-17', '2-9']],
    [['gpu-a', 'host-b'], ['gpu-a', 'host-b']],
    [['rack7', 'rack7'], ['rack7', 'rack7']],
    [['n-1', 'n-1-1'], ['1', '1-1']],
    [['only-one'], ['only-one']],
  ]) {
    const s = shared(names);
    assert.deepEqual(names.map((n) => omit(n, s)), want);
  }
});

test('every word of the page is explained', () => {
  const words = new Set(Object.keys(TERMS).map((t) => t.toLowerCase()));
  const said = [
    ...Object.values(marks).map((m) => m.label), ...Object.values(modes).map((m) => m.label), ...columns.map(([name]) => name),
    ...Object.values(titles).map(([name]) => name), ...facts.map(([name]) => name), ...LEVELS, ...HEALTH.slice(1),
  ].filter((w) => w !== 'GPU' && w !== 'health');
  assert.deepEqual(said.filter((w) => !words.has(w.toLowerCase())), []);
});

test('a throughput of steps is shown as the seconds of a step, beside those of the peers', () => {
  const columns = { throughput: [2, 0, 4], 'throughput:median': [4, 5, null], 'throughput:scale': [0.1, 0.1, 0.1], cpu: [1, 1, 1] };
  const out = inSteps({ t: [1, 2, 3], columns }, 0.25);
  assert.deepEqual(out.columns, { step: [0.5, null, 0.25], 'step:median': [0.25, 0.2, null], 'step:scale': [0.1, 0.1, 0.1], cpu: [1, 1, 1] });
  // Tokens per second are no steps.
  assert.deepEqual(inSteps({ t: [1], columns: { throughput: [5000] } }, 0.25).columns, { throughput: [5000] });
  assert.deepEqual(inSteps({ t: [1], columns: { throughput: [4] } }, undefined).columns, { throughput: [4] });
});
