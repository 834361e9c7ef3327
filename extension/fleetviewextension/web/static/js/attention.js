// SPDX-License-Identifier: Apache-2.0
import { getAttention } from './api.js';
import { $, el, fill } from './dom.js';
import { keyOf } from './fleet.js';
import { clock, duration, num } from './format.js';
import { middle } from './names.js';

const EVERY = 3000; // ms

// KINDS are the kinds of the API by the choice of the tools that selects them.
export const KINDS = { stragglers: 'straggler', lost: 'lost_gpu', sick: 'sick_gpu', missing: 'missing_node', faults: 'group_fault' };
const KIND_WORDS = { straggler: 'straggler', lost_gpu: 'lost GPU', sick_gpu: 'sick GPU', missing_node: 'missing node', group_fault: 'group fault' };
export const LEVELS = ['minor', 'major', 'critical'];

// cost says what an item takes from its job.
export function cost(i) {
  const parts = [];
  if (i.gpu_hours_lost_per_hour !== undefined) parts.push(`${i.gpu_hours_lost_at_most ? 'up to ' : ''}${num(i.gpu_hours_lost_per_hour)} GPU-h/h`);
  if (i.gpu_hours_lost >= 0.01) parts.push(`${num(i.gpu_hours_lost)} GPU-h so far`);
  return parts.join(', ');
}

// since says when an item began, and how long that is.
export function since(i) {
  if (!i.since) return 'start not known';
  return `since ${clock(i.since)}${i.since_before ? ' or earlier' : ''} (${duration(i.duration_seconds)})`;
}

// hush says by whom an item is silenced, and until when.
export const hush = (i) => i.silenced && `Silenced until ${clock(i.silenced.until)} by ${i.silenced.by}: ${i.silenced.reason}`;

const who = (i) => i.node || (i.group ? i.group : i.cluster || 'no cluster');

function row(i, { open, narrow, selected, ends }) {
  const key = i.node ? keyOf(i.cluster, i.node) : '';
  const b = el('button', { type: 'button', className: 'row item', 'data-level': i.severity, 'data-kind': i.kind, 'data-silenced': i.silenced ? 'true' : undefined,
    'aria-current': key && key === selected ? 'true' : undefined, onclick: () => (key ? open(key) : narrow(i)) },
  el('span', { className: 'main' }, el('b', { className: 'who' }, middle(i.node ? ends(i) : who(i), who(i)), i.part && el('span', { className: 'part' }, ` ${i.part}`), !i.node && i.node_count && el('span', { className: 'part' }, ` ${i.node_count} nodes`)),
    el('span', { className: 'badge', 'data-level': i.severity }, i.severity)),
  el('span', { className: 'what' }, el('span', { className: 'kind' }, `${KIND_WORDS[i.kind]}: `), i.text),
  el('span', { className: 'todo' }, i.advice),
  i.silenced && el('span', { className: 'hush' }, hush(i)),
  el('span', { className: 'sub main' }, el('span', {}, since(i)), el('span', { className: 'cost' }, cost(i))));
  b.dataset.key = i.id;
  return el('li', {}, b);
}

// matches reports whether an item is of what the search asks for.
const matches = (i, search) => !search || [i.node, ...(i.nodes ?? [])].some((n) => n?.toLowerCase().includes(search));

// Attention is the list of what needs a person, and asks for it while the page is looked at.
export class Attention {
  #asking = false;
  #again = false;
  list; // undefined until the gateway has answered

  // on has open, narrow, changed, live and complete.
  constructor(fleet, on) {
    this.fleet = fleet;
    this.on = on;
    setInterval(() => this.ask(), EVERY);
    $('items').addEventListener('keydown', (e) => this.#key(e));
  }

  async ask() {
    if (!this.on.live() || document.hidden) return;
    if (this.#asking) { this.#again = true; return; }
    this.#asking = true;
    try {
      const f = this.fleet.filter;
      this.list = await getAttention({ cluster: f.cluster, group: f.group, kind: KINDS[f.show] });
      this.on.changed(this.list);
      this.draw();
    } catch {
      // The line on top says that the server is away; the last list stays.
    }
    this.#asking = false;
    if (this.#again) { this.#again = false; this.ask(); }
  }

  // ends leaves out the domain that all nodes of the cluster share.
  #ends = (i) => {
    const s = this.fleet.shared.get(i.cluster);
    return s?.tail ? i.node.slice(0, i.node.length - s.tail) : i.node;
  };

  // worst returns the severity of each node that the list names.
  worst() {
    const levels = new Map();
    for (const i of this.list?.items ?? []) {
      for (const n of i.node ? [i.node] : i.nodes ?? []) {
        const key = keyOf(i.cluster, n);
        if (LEVELS.indexOf(i.severity) > LEVELS.indexOf(levels.get(key) ?? '')) levels.set(key, i.severity);
      }
    }
    return levels;
  }

  draw(selected = this.selected) {
    this.selected = selected;
    const box = $('items');
    const f = this.fleet.filter;
    const filtered = f.cluster || f.group || f.show !== 'all' || f.search;
    if (!this.list) {
      fill(box, el('p', { className: 'none' }, this.on.waitsFor()));
      return;
    }
    const items = this.list.items.filter((i) => matches(i, f.search));
    // A list that is rebuilt under the keyboard keeps its focus.
    const focused = box.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    const more = this.list.total - this.list.items.length;
    $('attention-count').textContent = items.length ? `${items.length + (f.search ? 0 : more)}` : '';
    fill(box,
      items.length ? el('ol', { className: 'rows' }, items.map((i) => row(i, { ...this.on, selected, ends: this.#ends })))
        : el('p', { className: 'well' }, filtered ? 'Nothing of what is selected needs attention.' : this.list.counts.nodes ? 'Nothing needs attention.' : 'Nothing to watch yet.'),
      more > 0 && el('p', { className: 'none' }, `and ${more} more: filter, or ask api/v1/attention`),
      this.list.waiting.length > 0 && el('section', { className: 'waits' }, el('h3', {}, this.list.counts.nodes ? 'Not judged' : 'Waiting'),
        el('ul', {}, this.list.waiting.map((w) => el('li', {}, w)))));
    if (focused !== undefined) [...box.querySelectorAll('button')].find((b) => b.dataset.key === focused)?.focus({ preventScroll: true });
  }

  // Up and down lead from row to row.
  #key(e) {
    const by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
    if (!by || e.altKey || e.ctrlKey || e.metaKey) return;
    const rows = [...$('items').querySelectorAll('button')];
    const at = rows.indexOf(document.activeElement);
    if (at < 0) return;
    e.preventDefault();
    rows[Math.min(rows.length - 1, Math.max(0, at + by))].focus();
  }
}

// card shows an item in a node's panel.
export function card(i) {
  return el('section', { className: 'episode', 'data-open': 'true', 'data-level': i.severity },
    el('h4', {}, [KIND_WORDS[i.kind], i.part].filter(Boolean).join(' · '), el('span', { className: 'badge', 'data-level': i.severity }, i.severity)),
    el('p', {}, i.text),
    el('p', { className: 'todo' }, i.advice),
    i.silenced && el('p', { className: 'hush' }, hush(i)),
    el('p', { className: 'sub' }, [since(i), cost(i)].filter(Boolean).join(' · ')));
}
