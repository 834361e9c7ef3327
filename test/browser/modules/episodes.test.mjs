// SPDX-License-Identifier: Apache-2.0

// How the page names the smallest part of a node that is at fault.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';

const { culprit, episodeTitle } = await load('episodes.js');
const { holders } = await load('gpus.js');

test('a culprit is named as in the log', () => {
  for (const [c, want] of [
    [{ rank: 3, local_rank: 1, gpu: 'GPU-5a' }, 'rank 3 (GPU 5, local rank 1)'],
    [{ rank: 0 }, 'rank 0'],
    [{ local_rank: 0, gpu: 'GPU-5a' }, 'GPU 5 (local rank 0)'],
    [{ gpu: 'GPU-gone' }, 'a GPU'],
    [{}, undefined],
    [undefined, undefined],
  ]) assert.equal(culprit(c, [{ uuid: 'GPU-5a', index: 5 }]), want);
});

test('a GPU says who holds it', () => {
  assert.equal(holders([{ job: '1234' }, { pod: 'train-0', namespace: 'ml', container: 'main' }]), 'job 1234, ml/train-0');
  assert.equal(holders(undefined), '');
});

test('the title of an episode begins with its culprit', () => {
  const e = { subject: 'node', reason: 'hw_thermal', signal: 'throughput', gap: 0.1 };
  assert.equal(episodeTitle({ ...e, culprit: { rank: 3 } }), 'rank 3 · hw thermal · throughput −10 %');
  assert.equal(episodeTitle({ ...e, gpu: 'GPU-5a' }, [{ uuid: 'GPU-5a', index: 5 }]), 'GPU 5 · hw thermal · throughput −10 %');
  assert.equal(episodeTitle(e), 'hw thermal · throughput −10 %');
  assert.deepEqual(['group', 'missing', 'communicator', 'job'].map((subject) => episodeTitle({ subject })), ['whole group', 'missing nodes', 'slow communicator', 'the job stands still']);
});
