// SPDX-License-Identifier: Apache-2.0

// The map's counts and labels, and the words of list, panel and plots.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';

const { compact, Fleet, keyOf } = await load('fleet.js');
const { markOf, marks } = await load('marks.js');
const { brief, omit, shared, sharedOf } = await load('names.js');
const { TERMS } = await load('glossary.js');
const { HEALTH, modes } = await load('colours.js');
const { columns } = await load('gpus.js');
const { cost, KINDS, LEVELS, levelsOf, namedOf, part, since, sorted, sure } = await load('attention.js');
const { facts } = await load('panel.js');
const { inSteps, titles } = await load('titles.js');

const node = (name, more) => ({ key: keyOf('c', name), cluster: 'c', node: name, group: 'g', order: name, state: 'active', health: 1, gpuHealth: [1, 1], ...more });

test('the GPUs of a missing node are not counted, and a node has the mark of its worst trouble', () => {
  const fleet = new Fleet();
  const gone = node('gone', { state: 'missing', straggler: true, health: 3, gpuHealth: [3, 4] });
  const lost = node('lost', { straggler: true, health: 3, gpuHealth: [1, 4] });
  const well = compact({ cluster: 'c', node: 'well', last_seen: '2026-01-01T00:00:00Z', gpus: [[0, 1, 40], [null, 2, null], [7, 4, 50]] });
  assert.deepEqual([well.health, well.celsius, [...well.gpuIndex], [...well.gpuHealth], [...well.gpuCelsius]], [2, 50, [0, -1, 7], [1, 2, 4], [40, NaN, 50]]);
  assert.deepEqual([compact({ cluster: 'c', node: 'bare', last_seen: '' })].map(({ health, celsius }) => [health, celsius]), [[0, undefined]]);
  fleet.put([{ ...well, gpuHealth: [1, 1] }, lost, gone]);
  assert.deepEqual(fleet.figures(), { nodes: 3, gpus: 4 });
  assert.deepEqual([gone, lost, node('slow', { straggler: true, health: 2 }), node('sick', { health: 2 }), node('well')].map(markOf), ['missing', 'lost', 'straggler', 'sick', '']);
});

test('a GPU that does not answer shows no readings, and when it was last seen', () => {
  const lost = { uuid: 'GPU-0', index: 3, health: 'healthy', up: false, up_reason: 'lost', down_since: '2026-01-01T00:00:00Z', power_limit_watts: 700, memory_limit_bytes: 8e10 };
  const row = Object.fromEntries(columns.map(([name, f]) => [name, f(lost)]));
  assert.match(row.health, /^down: lost, last seen 2026-01-01 /);
  assert.deepEqual([row['power W'], row['memory GiB'], row.temp], ['–', '–', '–']);
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

test('a label that has no room keeps what tells it apart, and a lone group needs no model', () => {
  for (const [names, want] of [
    [['rack1-node1', 'rack4-node12'], ['r1-n1', 'r4-n12']],
    [['alpha-node1', 'apple-node1'], ['alpha', 'apple']],
    [['only-one'], ['only-one']],
  ]) assert.deepEqual(names.map((n) => brief(omit(n, shared(names)), shared(names))), want);
  const groups = ['finetune-1//NVIDIA-H100', 'llama/stage-0/NVIDIA-H100', 'llama/stage-0', '//NVIDIA-H100'];
  assert.deepEqual(groups.map((g) => omit(g, sharedOf([g]))), ['finetune-1', 'llama/stage-0', 'llama/stage-0', '//NVIDIA-H100']);
});

test('at most 40 words of the page are explained, those of marks, kinds and levels among them', () => {
  const words = Object.keys(TERMS).map((t) => t.toLowerCase());
  assert.ok(words.length <= 40);
  const needed = [...Object.values(marks).map((m) => m.label), ...LEVELS, ...Object.values(KINDS).map(([, , one]) => one)];
  assert.deepEqual(needed.filter((w) => !words.some((x) => x.startsWith(w.toLowerCase()))), []);
});

test('a throughput of steps is shown as the seconds of a step, beside those of the peers', () => {
  const columns = { throughput: [2, 0, 4], 'throughput:median': [4, 5, null], 'throughput:scale': [0.1, 0.1, 0.1], cpu: [1, 1, 1] };
  const out = inSteps({ t: [1, 2, 3], columns }, '{step}/s');
  assert.deepEqual(out.columns, { step: [0.5, null, 0.25], 'step:median': [0.25, 0.2, null], 'step:scale': [0.1, 0.1, 0.1], cpu: [1, 1, 1] });
  // Tokens per second are no steps.
  assert.deepEqual(inSteps({ t: [1], columns: { throughput: [5000] } }, '1').columns, { throughput: [5000] });
});

test('an item says where it is, since when, and what it costs', () => {
  assert.deepEqual([{ node: 'n', part: 'rank 3 (GPU 5)', gpus: [{ uuid: 'a', index: 5 }] }, { node: 'n', gpus: [{ uuid: 'a', index: 5 }, { uuid: 'GPU-b' }] }, { node_count: 7 }, { nodes: ['n'], node_count: 1 }].map(part), ['rank 3 (GPU 5)', 'GPU 5, GPU-b', '7 nodes', 'n']);
  assert.match(sure({ confidence: 0.67, updated: new Date().toISOString() }), /^confidence 67 %, as of \d\d:\d\d:\d\d$/);
  assert.equal(sure({}), '');
  assert.equal(cost({ gpu_hours_lost_per_hour: 8, gpu_hours_lost_at_most: true }), 'costs up to 8 GPUs');
  assert.equal(cost({ gpu_hours_lost_per_hour: 1 }), 'costs 1 GPU');
  assert.equal(cost({}), '');
  assert.match(since({ since: new Date().toISOString(), since_before: true, duration_seconds: 61.2 }), /^since [\d:]+ or earlier \(1 min 1 s\)$/);
  assert.equal(since({}), 'start not known');
});

test('the list says of each count how bad it is, and which nodes it means', () => {
  const kinds = sorted([
    { kind: 'sick_gpu', severity: 'critical', cluster: 'c', node: 'a' }, { kind: 'sick_gpu', severity: 'minor', cluster: 'c', node: 'b' }, { kind: 'sick_gpu', severity: 'minor', cluster: 'c', node: 'a' },
    { kind: 'group_fault', severity: 'major', cluster: 'c', group: 'g', nodes: ['b', 'd'], node_count: 200 },
  ], (key) => key === keyOf('c', 'd'));
  assert.deepEqual(Object.entries(kinds).map(([show, { level, nodes }]) => [show, level, ...nodes.keys()]),
    [['stragglers', 'major', keyOf('c', 'd')], ['lost', ''], ['sick', 'critical', keyOf('c', 'a'), keyOf('c', 'b')], ['missing', ''], ['faults', 'major', keyOf('c', 'b'), keyOf('c', 'd')]]);
  assert.deepEqual([...kinds.faults.groups], [keyOf('c', 'g')], 'an item that names only some of its nodes means the group');
  const gpus = [{ uuid: 'GPU-a', index: 5 }, { uuid: 'GPU-b' }];
  const named = (by) => [...namedOf([{ severity: 'minor', cluster: 'c', node: 'a', gpus }, { severity: 'major', cluster: 'c', node: 'a', gpus: gpus.slice(0, 1) }, { severity: 'major', cluster: 'c', nodes: ['a'] }], by)]
    .map(([key, of]) => [key, ...of]);
  assert.deepEqual([named(), named('uuid')], [[[keyOf('c', 'a'), [5, 'major']]], [[keyOf('c', 'a'), ['GPU-a', 'major'], ['GPU-b', 'minor']]]]);
  assert.deepEqual([...levelsOf(kinds)], [[keyOf('c', 'd'), 'major'], [keyOf('c', 'a'), 'critical'], [keyOf('c', 'b'), 'major']]);
});
