// SPDX-License-Identifier: Apache-2.0

// The worker reads the live stream, so that parsing a fleet's state never holds
// up a frame of the page. It hands on what the map needs of each node.
import { everyPage } from './api.js';
import { headers, schemes } from './auth.js';
import { compact, keyOf } from './fleet.js';
import { Events } from './sse.js';

const GROUPS_EVERY = 5000; // ms
// The server breaks its silence after 15 s, if by a comment.
const SILENT_AFTER = 25_000; // ms
const RETRY = [1000, 2000, 5000, 10_000]; // ms

const base = new URL('../', self.location);
const known = new Set();
let snapshot = null;
let authorization = '';
let credentials = 'omit'; // see auth.js
let connection; // the one under way, to end it
let retry = 0;
let failures = 0;
let last = 0; // when the server was last heard
let linked = false;

function link(live, why = '') {
  linked = live;
  postMessage({ type: 'link', live, last, why, credentials });
}

function take(list, of) {
  if (!list?.length) return;
  const nodes = list.map(compact);
  for (const { key } of nodes) {
    known.add(key);
    of?.add(key);
  }
  postMessage({ type: 'nodes', nodes });
}

function forget(keys) {
  if (!keys.length) return;
  for (const k of keys) known.delete(k);
  postMessage({ type: 'removed', keys });
}

const on = {
  snapshot(e) {
    if (e.first) snapshot = new Set();
    take(e.brief, snapshot);
    if (!e.last) return;
    // Lost nodes go only now: a new connection does not blank the page.
    if (snapshot) forget([...known].filter((k) => !snapshot.has(k)));
    snapshot = null;
    postMessage({ type: 'complete' });
  },
  diff(e) {
    take(e.brief);
    if (e.seen?.length) {
      const seen = e.seen.map((s) => [keyOf(s.cluster, s.node), Date.parse(s.last_seen), s.state ?? '']);
      postMessage({ type: 'seen', seen });
    }
    if (e.removed) forget(e.removed.map((k) => keyOf(k.cluster, k.node)));
  },
  episodes(e) {
    postMessage({ type: 'episodes', episodes: e.episodes });
  },
};

// ask gets a path of the API.
function ask(path, more, signal) {
  // A proxy whose session is over leads to its login, which is no answer.
  return fetch(new URL(path, base), { headers: { ...headers(authorization), ...more }, cache: 'no-store', redirect: 'manual', credentials, signal });
}

const REFUSALS = { 401: 'login needed', 403: 'not allowed', 429: 'the stream has too many clients', 502: 'no gateway behind the proxy', 503: 'no gateway behind the proxy' };

// read takes the stream until it ends.
async function read(signal) {
  const r = await ask('api/v1/observe?brief=true', { Accept: 'text/event-stream' }, signal);
  const challenge = r.headers.get('WWW-Authenticate') ?? '';
  if (!r.ok && credentials === 'omit' && !schemes(challenge).basic) {
    credentials = 'same-origin';
    return read(signal);
  }
  if (r.status === 401) postMessage({ type: 'login', challenge, tried: authorization });
  if (r.type === 'opaqueredirect') throw Object.assign(new Error('the proxy asks for a login: load the page anew'), { told: true });
  if (!r.ok) throw Object.assign(new Error(REFUSALS[r.status] ?? `status ${r.status}`), { told: true, wait: r.status === 401 });
  if (!r.headers.get('Content-Type')?.startsWith('text/event-stream')) {
    throw Object.assign(new Error('the answer is no event stream'), { told: true });
  }
  const events = new Events((name, data) => {
    failures = 0;
    const e = JSON.parse(data);
    if (e.at) postMessage({ type: 'clock', at: Date.parse(e.at), first: !linked });
    on[name]?.(e);
    if (linked) return;
    link(true);
    readGroups();
  });
  const reader = r.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let part; !(part = await reader.read()).done;) {
    if (signal.aborted) return;
    last = Date.now();
    events.push(part.value);
  }
}

async function connect() {
  clearTimeout(retry);
  connection?.abort();
  connection = new AbortController();
  const { signal } = connection;
  let why = '';
  let wait = false;
  try {
    await read(signal);
  } catch (err) {
    if (err.told) ({ message: why, wait = false } = err);
  }
  if (signal.aborted) return;
  connection.abort(); // what failed may still be sending
  if (linked || why || failures === 0) link(false, why);
  // Without another credential the answer would be the same.
  if (!wait) retry = setTimeout(connect, RETRY[Math.min(failures++, RETRY.length - 1)] * (0.75 + Math.random() / 2));
}

async function readGroups() {
  if (!linked) return;
  try {
    const groups = await everyPage('groups', async (after) => {
      const r = await ask(`api/v1/groups?limit=1000&after=${after}`);
      if (!r.ok) throw new Error(`status ${r.status}`);
      return r.json();
    });
    postMessage({ type: 'groups', groups });
  } catch {
    // The next time is soon. The stream says whether the server is away.
  }
}

// A connection that died silently shows no error, only no sign of life.
function watch() {
  if (!linked || Date.now() - last < SILENT_AFTER) return;
  link(false);
  connect();
}

// The page's first message is the credential; nothing is asked before.
onmessage = ({ data }) => {
  authorization = data.authorization;
  credentials = 'omit';
  linked = false;
  failures = 0;
  connect();
};

setInterval(readGroups, GROUPS_EVERY);
setInterval(watch, 5000);
