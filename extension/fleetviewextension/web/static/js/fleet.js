// SPDX-License-Identifier: Apache-2.0
import { DOWN } from './colours.js';
import { omit, shared, sharedOf } from './names.js';

// keyOf is one text for two; the length keeps any two pairs apart.
export const keyOf = (cluster, name) => `${cluster.length} ${cluster} ${name}`;

// orderOf makes names that are ordered as text where people count: node-9, node-10.
export const orderOf = (name) => name.replace(/\d+/g, (digits) => digits.padStart(12, '0'));

// compact is what the map needs of a node, from the stream's brief form. A node is as warm and
// as ill as the worst of its GPUs.
export function compact(n) {
  const gpus = n.gpus ?? [];
  const column = (i) => gpus.map((g) => g[i]);
  const health = column(1);
  const celsius = column(2).filter((c) => c !== null);
  return {
    key: keyOf(n.cluster, n.node), cluster: n.cluster, node: n.node, order: orderOf(n.node), group: n.group ?? '', state: n.state ?? '',
    health: Math.max(0, ...health.filter((h) => h < DOWN)), straggler: n.straggler === true, suspicion: n.suspicion,
    score: n.score, celsius: celsius.length ? Math.max(...celsius) : undefined, seen: Date.parse(n.last_seen),
    gpuIndex: Int16Array.from(column(0), (i) => i ?? -1),
    gpuHealth: Uint8Array.from(health),
    gpuCelsius: Float32Array.from(column(2), (c) => c ?? NaN),
  };
}

const by = (f) => (a, b) => { const [x, y] = [f(a), f(b)]; return x < y ? -1 : x > y ? 1 : 0; };
const byName = by(orderOf);

// Fleet holds the newest brief view of each node, and what of it is shown.
export class Fleet {
  nodes = new Map();
  groups = new Map();
  kinds = {}; // what the list of what needs attention says, see sorted of attention.js
  levels = new Map(); // the severity of each node that needs attention
  named = new Map(); // and of its GPUs that are named, by index
  #shared = new Map(); // what the names of each cluster's nodes, and of its groups, have in common
  filter = { cluster: '', group: '', show: 'all', search: '' };
  // members changes with which nodes there are, in which groups.
  members = 0;

  put(list) {
    for (const n of list) {
      const old = this.nodes.get(n.key);
      if (!old || old.group !== n.group) this.members++;
      this.nodes.set(n.key, n);
    }
  }

  seen(list) {
    for (const [key, at, state] of list) {
      const n = this.nodes.get(key);
      if (n) [n.seen, n.state] = [at, state];
    }
  }

  remove(keys) {
    for (const k of keys) if (this.nodes.delete(k)) this.members++;
  }

  // attend takes what the list of what needs attention says: the map shows and marks what
  // the list names, and judges nobody itself.
  attend(kinds, levels, named = new Map()) {
    const says = (of) => of && [...of.nodes.keys(), ...of.groups].sort().join('\n');
    if (says(this.kinds[this.filter.show]) !== says(kinds[this.filter.show])) this.members++;
    [this.kinds, this.levels, this.named] = [kinds, levels, named];
  }

  setFilter(change) {
    Object.assign(this.filter, change);
    this.members++;
  }

  shows(n) {
    const f = this.filter;
    return (!f.cluster || n.cluster === f.cluster) && (!f.group || n.group === f.group) &&
      (f.show === 'all' || this.#named(n, this.kinds[f.show])) && (!f.search || n.node.toLowerCase().includes(f.search));
  }

  #named = (n, of) => of?.nodes.has(n.key) || of?.groups.has(keyOf(n.cluster, n.group));

  // knows reports whether a cluster has nodes; several, whether more than one has.
  knows = (cluster) => this.#shared.has(cluster);
  get several() { return this.#shared.size > 1; }

  // short is the name of an item's node, without how all names of its cluster end, or that of its group.
  short({ cluster, node, group }) {
    const [nodes, groups] = this.#shared.get(cluster) ?? [];
    return node ? node.slice(0, node.length - (nodes?.tail ?? 0)) : group && omit(group, groups);
  }

  // clusters returns [{cluster, groups: [{group, nodes}]}] of what is shown, by name.
  clusters() {
    const clusters = new Map();
    const names = new Map(); // of all nodes: a label does not change with what is shown
    for (const n of this.nodes.values()) {
      if (!names.has(n.cluster)) names.set(n.cluster, [new Set(), new Set()]);
      names.get(n.cluster)[0].add(n.node);
      names.get(n.cluster)[1].add(n.group);
      if (!this.shows(n)) continue;
      let groups = clusters.get(n.cluster);
      if (!groups) clusters.set(n.cluster, groups = new Map());
      const list = groups.get(n.group);
      if (list) list.push(n);
      else groups.set(n.group, [n]);
    }
    const inOrder = (map) => [...map].map(([name, v]) => [orderOf(name), name, v]).sort(by((x) => x[0]));
    this.#shared = new Map([...names].map(([cluster, [nodes, groups]]) => [cluster, [shared([...nodes]), sharedOf([...groups].filter(Boolean))]]));
    return inOrder(clusters).map(([, cluster, groups]) => {
      const [nodeNames, groupNames] = this.#shared.get(cluster);
      return {
        cluster, names: nodeNames,
        groups: inOrder(groups).map(([, group, nodes]) => ({
          cluster, group, names: nodeNames, title: group && omit(group, groupNames), keys: nodes.sort(by((n) => n.order)).map((n) => n.key),
        })),
      };
    });
  }

  // names returns the clusters and the groups of the chosen cluster.
  names() {
    const clusters = new Set();
    const groups = new Set();
    for (const n of this.nodes.values()) {
      clusters.add(n.cluster);
      if (n.group && (!this.filter.cluster || n.cluster === this.filter.cluster)) groups.add(n.group);
    }
    return { clusters: [...clusters].sort(byName), groups: [...groups].sort(byName) };
  }

  figures() {
    const f = { nodes: this.nodes.size, gpus: 0 };
    for (const n of this.nodes.values()) if (n.state !== 'missing') f.gpus += n.gpuHealth.length;
    return f;
  }
}
