// SPDX-License-Identifier: Apache-2.0

const MOST = 600; // points, more than an hour and a half with a report every 10 s

// Session keeps what one node reported while its panel is open: its last points. What is older
// has the gateway's history.
export class Session {
  t = [];
  columns = {};
  #last = {};

  // record adds what a node says.
  record(node) {
    const v = { score: node.score, 'score:threshold': node.agent_threshold, 'score:median': node.group_median };
    for (const x of node.signals ?? []) {
      v[x.signal] = x.value;
      v[`${x.signal}:median`] = x.median;
      v[`${x.signal}:scale`] = x.scale;
      v[`${x.signal}:threshold`] ??= x.threshold; // the score has its own
    }
    this.#last = v;
    this.again(Date.parse(node.last_seen));
  }

  // again notes that the node says the same at a time in ms.
  again(at) {
    const n = this.t.length;
    if (n && at <= this.t[n - 1]) return;
    this.t.push(at);
    for (const [name, x] of Object.entries(this.#last)) if (x !== undefined) this.columns[name] ??= new Array(n).fill(null);
    for (const [name, c] of Object.entries(this.columns)) c.push(this.#last[name] ?? null);
    if (n >= MOST) for (const list of [this.t, ...Object.values(this.columns)]) list.shift();
  }
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
