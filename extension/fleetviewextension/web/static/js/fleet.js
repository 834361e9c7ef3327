// SPDX-License-Identifier: Apache-2.0
import { omit, PATH, shared } from './names.js';

// keyOf is one text for two; the length keeps any two pairs apart.
export const keyOf = (cluster, name) => `${cluster.length} ${cluster} ${name}`;

// orderOf makes names that are ordered as text where people count: node-9, node-10.
export const orderOf = (name) => name.replace(/\d+/g, (digits) => digits.padStart(12, '0'));

const by = (f) => (a, b) => { const [x, y] = [f(a), f(b)]; return x < y ? -1 : x > y ? 1 : 0; };
const byName = by(orderOf);

// A missing node is that and nothing else, as in the API's summary: the rest is
// of before.
const missing = (n) => n.state === 'missing';

// SHOW are the choices of what to look at.
export const SHOW = {
  all: ['all nodes', () => true],
  stragglers: ['stragglers', (n) => n.straggler && !missing(n)],
  lost: ['lost GPUs', (n) => n.gpuHealth.includes(4) && !missing(n)],
  sick: ['sick GPUs', (n) => n.health >= 2 && !missing(n)],
  missing: ['missing', missing],
  faults: ['group faults', (n, fleet) => fleet.faulty.has(n.key)],
};

// Fleet holds the newest brief view of each node, and what of it is shown.
export class Fleet {
  nodes = new Map();
  groups = new Map();
  levels = new Map(); // the severity of each node that needs attention
  shared = new Map(); // what the names of each cluster's nodes have in common
  faulty = new Set(); // nodes of group faults
  filter = { cluster: '', group: '', show: 'all', search: '' };
  // members changes with which nodes there are, in which groups.
  members = 0;

  put(list) {
    for (const n of list) {
      const old = this.nodes.get(n.key);
      // A filter by what changes must look again at what changed.
      if (!old || old.group !== n.group || (this.filter.show !== 'all' && this.shows(old) !== this.shows(n))) this.members++;
      this.nodes.set(n.key, n);
    }
  }

  seen(list) {
    for (const [key, at, state] of list) {
      const n = this.nodes.get(key);
      if (!n) continue;
      const shown = this.filter.show !== 'all' && this.shows(n);
      n.seen = at;
      n.state = state;
      if (this.filter.show !== 'all' && this.shows(n) !== shown) this.members++;
    }
  }

  remove(keys) {
    for (const k of keys) if (this.nodes.delete(k)) this.members++;
  }

  // attend takes the list of what needs attention.
  attend(items, levels) {
    this.levels = levels;
    // Under a filter of another kind the list has none of them.
    if (!['all', 'faults'].includes(this.filter.show)) return;
    const faulty = new Set(items.filter((i) => i.kind === 'group_fault').flatMap((i) => (i.nodes ?? []).map((n) => keyOf(i.cluster, n))));
    const same = faulty.size === this.faulty.size && [...faulty].every((k) => this.faulty.has(k));
    this.faulty = faulty;
    if (!same && this.filter.show === 'faults') this.members++;
  }

  setFilter(change) {
    Object.assign(this.filter, change);
    this.members++;
  }

  shows(n) {
    const f = this.filter;
    return (!f.cluster || n.cluster === f.cluster) && (!f.group || n.group === f.group) &&
      SHOW[f.show][1](n, this) && (!f.search || n.node.toLowerCase().includes(f.search));
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
    return inOrder(clusters).map(([, cluster, groups]) => {
      const [nodeNames, groupNames] = names.get(cluster).map((set, i) => shared([...set].filter(Boolean), i ? PATH : undefined));
      this.shared.set(cluster, nodeNames);
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
    const f = { nodes: this.nodes.size, gpus: 0, sick: 0, lost: 0, stragglers: 0, missing: 0 };
    for (const n of this.nodes.values()) {
      if (missing(n)) {
        f.missing++;
        continue;
      }
      f.gpus += n.gpuHealth.length;
      if (n.straggler) f.stragglers++;
      for (const h of n.gpuHealth) {
        if (h === 4) f.lost++;
        else if (h >= 2) f.sick++;
      }
    }
    return f;
  }
}
