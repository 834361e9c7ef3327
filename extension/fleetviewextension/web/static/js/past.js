// SPDX-License-Identifier: Apache-2.0

const VALUES = 4_000_000; // of all nodes together, 32 MB
const COLUMNS = 15; // about as many per node
const LEAST = 30;
const MOST = 600;

// Past keeps the nodes' reports of this session, a bounded number of points per
// node. A full node loses every second point, so the whole session stays: the longer
// it is, the coarser.
export class Past {
  #nodes = new Map();

  #limit() {
    return Math.min(MOST, Math.max(LEAST, Math.floor(VALUES / COLUMNS / Math.max(1, this.#nodes.size))));
  }

  // record adds what a node says at a time in ms.
  record(key, at, node) {
    let s = this.#nodes.get(key);
    if (!s) this.#nodes.set(key, s = { t: [], columns: {}, spacing: 0, last: {} });
    const v = { score: node.score, 'score:threshold': node.threshold, 'score:median': node.group_median };
    for (const x of node.signals ?? []) {
      v[x.signal] = x.value;
      v[`${x.signal}:median`] = x.median;
      v[`${x.signal}:scale`] = x.scale;
      v[`${x.signal}:threshold`] ??= x.threshold; // the score has its own
    }
    s.last = v;
    this.#add(s, at);
  }

  // again notes that a node still says the same.
  again(key, at) {
    const s = this.#nodes.get(key);
    if (s) this.#add(s, at);
  }

  #add(s, at) {
    const n = s.t.length;
    if (n && at - s.t[n - 1] < Math.max(1, s.spacing)) return;
    s.t.push(at);
    for (const name of Object.keys(s.last)) {
      if (s.last[name] !== undefined) s.columns[name] ??= new Array(n).fill(null);
    }
    for (const [name, c] of Object.entries(s.columns)) c.push(s.last[name] ?? null);
    if (s.t.length > this.#limit()) {
      const half = (list) => list.filter((_, i) => i % 2 === list.length % 2);
      s.t = half(s.t);
      for (const name of Object.keys(s.columns)) s.columns[name] = half(s.columns[name]);
      s.spacing = (s.t.at(-1) - s.t[0]) / s.t.length;
    }
  }

  of(key) {
    const s = this.#nodes.get(key);
    return s ? { t: s.t, columns: s.columns } : { t: [], columns: {} };
  }

  forget(key) { this.#nodes.delete(key); }
}

// merge puts recorded samples before those of this session: the last of them has what is
// newest of a step in which the session began. Both are {t: ms[], columns: {name: values[]}}.
export function merge(old, session) {
  if (old.t.length === 0) return session;
  const first = session.t[0] ?? Infinity;
  let n = 0;
  while (n < old.t.length && old.t[n] < first) n++;
  const t = old.t.slice(0, n);
  if (n < old.t.length) n = t.push(first - 1);
  const out = { t: [...t, ...session.t], columns: {} };
  for (const name of new Set([...Object.keys(old.columns), ...Object.keys(session.columns)])) {
    const before = old.columns[name]?.slice(0, n) ?? new Array(n).fill(null);
    out.columns[name] = [...before, ...(session.columns[name] ?? new Array(session.t.length).fill(null))];
  }
  return out;
}
