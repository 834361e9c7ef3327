// SPDX-License-Identifier: Apache-2.0

// The worker reads the live stream, so that parsing a fleet's state never holds
// up a frame of the page. It hands on what the map needs of each node, the past
// of this session on request, and the one node that is open in full.
import { HEALTH } from './colours.js';
import { keyOf, orderOf } from './fleet.js';
import { Past } from './past.js';

const GROUPS_EVERY = 5000; // ms
const SILENT_AFTER = 20_000; // ms without an event, then ask whether the server is there
const RETRY = [1000, 2000, 5000, 10_000]; // ms

const base = new URL('../', self.location);
const past = new Past();
const known = new Set();
let snapshot = null;
let open = '';
let source;
let failures = 0;
let last = 0;
let linked = false;

function link(live) {
  linked = live;
  postMessage({ type: 'link', live, last });
}

function brief(n) {
  const gpus = n.gpus ?? [];
  return {
    key: keyOf(n.cluster, n.node), cluster: n.cluster, node: n.node, order: orderOf(n.node), group: n.group ?? '', state: n.state ?? '',
    health: HEALTH.indexOf(n.health), straggler: n.straggler, suspicion: n.suspicion, rank: n.rank,
    score: n.score, threshold: n.threshold, celsius: n.max_temperature_celsius, seen: Date.parse(n.last_seen),
    gpuHealth: Uint8Array.from(gpus, (g) => (g.up === false ? 4 : HEALTH.indexOf(g.health))),
    gpuCelsius: Float32Array.from(gpus, (g) => g.temperature_celsius ?? NaN),
  };
}

function take(list, of) {
  if (!list?.length) return;
  const nodes = list.map((n) => {
    const b = brief(n);
    known.add(b.key);
    of?.add(b.key);
    past.record(b.key, b.seen, n);
    return b;
  });
  postMessage({ type: 'nodes', nodes });
  const mine = list.find((n) => keyOf(n.cluster, n.node) === open);
  if (mine) detail(mine);
}

function detail(node) {
  postMessage({ type: 'detail', key: open, node, past: past.of(open) });
}

function forget(keys) {
  if (!keys.length) return;
  for (const k of keys) {
    known.delete(k);
    past.forget(k);
  }
  postMessage({ type: 'removed', keys });
}

const on = {
  snapshot(e) {
    if (e.first) snapshot = new Set();
    take(e.nodes, snapshot);
    if (!e.last) return;
    // What is no longer there goes only now: a new connection does not blank the page.
    if (snapshot) forget([...known].filter((k) => !snapshot.has(k)));
    snapshot = null;
    postMessage({ type: 'complete' });
  },
  diff(e) {
    take(e.changed);
    if (e.seen?.length) {
      const seen = e.seen.map((s) => [keyOf(s.cluster, s.node), Date.parse(s.last_seen), s.state ?? '']);
      for (const [k, at] of seen) past.again(k, at);
      postMessage({ type: 'seen', seen });
      if (seen.some(([k]) => k === open)) detail(null);
    }
    if (e.removed) forget(e.removed.map((k) => keyOf(k.cluster, k.node)));
  },
  episodes(e) {
    postMessage({ type: 'episodes', episodes: e.episodes });
  },
};

function connect() {
  source?.close();
  source = new EventSource(new URL('api/v1/observe?gpus=true', base));
  for (const [name, handle] of Object.entries(on)) {
    source.addEventListener(name, (e) => {
      last = Date.now();
      failures = 0;
      handle(JSON.parse(e.data));
      if (!linked) link(true);
    });
  }
  source.onerror = () => {
    if (linked || failures === 0) link(false);
    // The browser comes back by itself only to servers that ended a stream;
    // not after a refusal, and not to some that went away.
    source.close();
    setTimeout(connect, RETRY[Math.min(failures++, RETRY.length - 1)] * (0.75 + Math.random() / 2));
  };
}

async function readGroups() {
  try {
    const r = await fetch(new URL('api/v1/groups?page_size=1000', base), { cache: 'no-store' });
    if (!r.ok) return;
    postMessage({ type: 'groups', groups: (await r.json()).groups });
  } catch {
    // The stream says whether the server is away.
  }
}

// A connection that died silently shows no error; then a question does.
async function watch() {
  if (!linked || Date.now() - last < SILENT_AFTER) return;
  try {
    const r = await fetch(new URL('api/v1/health', base), { cache: 'no-store', signal: AbortSignal.timeout(5000) });
    if (!r.ok) throw new Error(r.status);
    last = Date.now();
  } catch {
    link(false);
    connect();
  }
}

onmessage = ({ data }) => {
  open = data.open;
  if (open) detail(null);
};

connect();
readGroups();
setInterval(readGroups, GROUPS_EVERY);
setInterval(watch, 5000);
