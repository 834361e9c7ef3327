// SPDX-License-Identifier: Apache-2.0

// What the page asks the gateway, and what it keeps and sorts of the answers.
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { load } from './load.mjs';

const auth = await load('auth.js');
const api = await load('api.js');
const { Fleet, keyOf, orderOf } = await load('fleet.js');
const { merge, Session } = await load('past.js');

test('credentials are as the RFCs have them', () => {
  assert.equal(auth.bearer(' Bearer s3cr3t/+==\n'), 'Bearer s3cr3t/+==');
  for (const t of ['', 'a token', 'tökén', 'a\nb']) assert.equal(auth.bearer(t), '', t);
  assert.equal(auth.basic('anna', 'pä:ss'), `Basic ${Buffer.from('anna:pä:ss').toString('base64')}`);
  assert.deepEqual(auth.schemes('Basic realm="Bearer", charset="UTF-8"'), { bearer: false, basic: true });
  assert.deepEqual(auth.schemes('basic realm="x", BEARER'), { bearer: true, basic: true });
  assert.deepEqual([auth.schemes(null), auth.headers('')], [{ bearer: false, basic: false }, {}]);
});

test('what is asked is escaped, has the credential, and a refusal is told', async () => {
  const asked = [];
  let answer = { ok: true, json: async () => ({ episodes: ['e'] }) };
  globalThis.fetch = async (url, options) => { asked.push([url, options.headers]); return answer; };
  auth.keep('Bearer x');
  assert.deepEqual(await api.getEpisodes({ cluster: 'a,b\\', node: 'n 1' }), ['e']);
  await api.getNode({ cluster: '', node: 'a/b' });
  await api.getAttention({ cluster: 'a,b', kind: 'lost_gpu', group: '', limit: 1000 });
  await api.getPast({ cluster: 'c', node: 'n/1' }, { since: '24h' });
  const read = asked.map(([url]) => { const u = new URL(url, 'http://g/'); return [u.pathname, Object.fromEntries(u.searchParams)]; });
  assert.deepEqual(read, [
    ['/api/v1/episodes', { cluster: 'a\\,b\\\\', node: 'n 1', limit: '20' }], ['/api/v1/nodes/a%2Fb', {}],
    ['/api/v1/attention', { cluster: 'a\\,b', kind: 'lost_gpu', limit: '1000' }], ['/api/v1/nodes/n%2F1/past', { cluster: 'c', since: '24h' }],
  ]);
  assert.ok(asked.every(([, h]) => h.Authorization === 'Bearer x'));
  assert.deepEqual(await api.everyPage('groups', async (after) => ({ groups: [`${after}x`], next: after === 'nn' ? undefined : `${after}n` })), ['x', 'nx', 'nnx']);
  const refused = [];
  Object.assign(globalThis, { CustomEvent: class { constructor(type, { detail }) { Object.assign(this, { type, detail }); } }, dispatchEvent: (e) => refused.push([e.type, e.detail]) });
  answer = { ok: false, status: 401, statusText: 'Unauthorized', headers: new Map([['WWW-Authenticate', 'Basic']]), json: async () => { throw new Error('no JSON'); } };
  await assert.rejects(api.getHealth(), { message: '401 Unauthorized', status: 401 });
  assert.deepEqual(refused, [['refused', { challenge: 'Basic', tried: 'Bearer x' }]]);
});

test('a refusal that comes after a newer login is asked again', async () => {
  auth.keep('Bearer x');
  let times = 0;
  globalThis.fetch = async () => {
    if (times++ === 0) auth.keep('Bearer x');
    return times > 1 ? { ok: true, json: async () => 'well' } : { ok: false, status: 401, headers: new Map(), json: async () => ({}) };
  };
  globalThis.dispatchEvent = () => assert.fail('nobody is asked for a login');
  assert.equal(await api.getHealth(), 'well');
});

test('nodes are sorted where people count, and filtered', () => {
  const fleet = new Fleet();
  fleet.put(['node-10', 'node-9', 'Other-1'].map((node) => ({ key: keyOf('c', node), cluster: 'c', node, group: node[0], order: orderOf(node), state: 'active', health: 1, gpuHealth: [] })));
  const shown = () => fleet.clusters().map((c) => c.groups.map((g) => [g.group, g.keys.map((k) => fleet.nodes.get(k).node)]));
  assert.deepEqual(shown(), [[['O', ['Other-1']], ['n', ['node-9', 'node-10']]]]);
  fleet.setFilter({ search: 'other' });
  assert.deepEqual(shown(), [[['O', ['Other-1']]]]);
  fleet.setFilter({ search: '', group: 'n' });
  assert.deepEqual(shown(), [[['n', ['node-9', 'node-10']]]]);
  assert.deepEqual(fleet.names(), { clusters: ['c'], groups: ['O', 'n'] });
  assert.deepEqual([fleet.several, fleet.knows('c'), fleet.knows('d')], [false, true, false]);
  // The map shows what the list names, and is laid out anew only when that changes.
  fleet.setFilter({ group: '', show: 'missing' });
  const named = (...keys) => ({ missing: { nodes: new Map(keys.map((k) => [k, 'major'])), groups: new Set() } });
  assert.deepEqual(shown(), []);
  const { members } = fleet;
  fleet.attend(named(keyOf('c', 'node-9')), new Map());
  fleet.attend(named(keyOf('c', 'node-9')), new Map());
  assert.deepEqual([fleet.members, shown()], [members + 1, [[['n', ['node-9']]]]]);
  fleet.attend({ missing: { nodes: new Map(), groups: new Set([keyOf('c', 'n')]) } }, new Map());
  assert.deepEqual(shown(), [[['n', ['node-9', 'node-10']]]]);
  fleet.seen([[keyOf('c', 'node-9'), 1, 'missing'], [keyOf('c', 'nobody'), 1, 'missing']]);
  fleet.remove([keyOf('c', 'node-10'), 'nobody']);
  assert.deepEqual([fleet.figures().nodes, shown()], [2, [[['n', ['node-9']]]]]);
});

test('a session keeps the last points of a node', () => {
  const at = (s) => new Date(s * 1000).toISOString();
  const session = new Session();
  session.record({ last_seen: at(1), score: 1, agent_threshold: 0.9, signals: [{ signal: 'power', value: 500, median: 600 }] });
  session.again(2000);
  session.again(2000);
  session.record({ last_seen: at(3), score: 0.8, signals: [{ signal: 'cpu', value: 1 }] });
  const { t, columns } = session;
  assert.deepEqual(t, [1000, 2000, 3000]);
  assert.deepEqual([columns.score, columns['score:threshold'], columns.power, columns.cpu], [[1, 1, 0.8], [0.9, 0.9, null], [500, 500, null], [null, null, 1]]);
  for (let i = 4; i <= 5000; i++) session.record({ last_seen: at(i), score: i });
  assert.deepEqual([t.length, t[0], t.at(-1)], [600, 4_401_000, 5_000_000]);
  assert.ok(Object.values(columns).every((c) => c.length === t.length));
});

test('what was recorded stays until the session begins, with the step in which it does', () => {
  const old = { t: [10, 20, 30], columns: { cpu: [1, 2, 3] } };
  assert.deepEqual(merge(old, { t: [15, 40], columns: { cpu: [5, 6] } }), { t: [10, 14, 15, 40], columns: { cpu: [1, 2, 5, 6] } });
  assert.deepEqual(merge(old, { t: [], columns: {} }), old);
});
