// SPDX-License-Identifier: Apache-2.0
import { getAttention } from './api.js';
import { $, el, fill, middle, setText } from './dom.js';
import { keyOf } from './fleet.js';
import { clock, duration, num, percent } from './format.js';

const EVERY = 3000; // ms
const ROWS = 100;
const MOST = 1000; // that the API lists
const SOME = 4;

export const LEVELS = ['minor', 'major', 'critical'];

// KINDS are the API's kinds of trouble, by the choice that shows only them: the kind, its
// name in the API's counts, what one is called, and several.
export const KINDS = {
  stragglers: ['straggler', 'stragglers', 'straggler', 'stragglers'],
  lost: ['lost_gpu', 'lost_gpus', 'lost GPU', 'lost GPUs'],
  sick: ['sick_gpu', 'sick_gpus', 'sick GPU', 'sick GPUs'],
  missing: ['missing_node', 'missing_nodes', 'missing node', 'missing nodes'],
  faults: ['group_fault', 'group_faults', 'group fault', 'group faults'],
};
const called = Object.fromEntries(Object.values(KINDS).map(([kind, , one]) => [kind, one]));

// part says which part of a node an item is about: its rank and GPU, or its GPUs. Of many
// nodes it says how many.
export const part = (i) => (i.part ? [i.part] : i.node ? (i.gpus ?? []).map((g) => (g.index === undefined ? g.uuid : `GPU ${g.index}`)) : [])
  .concat(i.node_count === 1 ? i.nodes : i.node_count ? [`${i.node_count} nodes`] : []).join(', ');

// cost says what an item takes from its job: GPU-hours in each hour, which are so many GPUs.
export const cost = (i) => (i.gpu_hours_lost_per_hour === undefined ? '' : `costs ${i.gpu_hours_lost_at_most ? 'up to ' : ''}${num(i.gpu_hours_lost_per_hour)} ${i.gpu_hours_lost_per_hour === 1 ? 'GPU' : 'GPUs'}`);

// sure says how sure a verdict is, and of when its figures are.
export const sure = (i) => [i.confidence !== undefined && `confidence ${percent(i.confidence)}`, i.updated && `as of ${clock(i.updated)}`].filter(Boolean).join(', ');

// since says when an item began, and how long that is.
export function since(i) {
  if (!i.since) return 'start not known';
  return `since ${clock(i.since)}${i.since_before ? ' or earlier' : ''} (${duration(i.duration_seconds)})`;
}

const nodesOf = (i) => (i.node ? [i.node] : i.nodes ?? []).map((n) => keyOf(i.cluster, n));

// tells reports whether an item is of a choice. A fault of many slow nodes tells of
// stragglers too: none of them has an item of its own.
const tells = (show, i, slow) => i.kind === KINDS[show][0] || (show === 'stragglers' && (i.straggler || (i.kind === 'group_fault' && nodesOf(i).some(slow))));

export const worst = (levels) => LEVELS[Math.max(-1, ...[...levels].map((level) => LEVELS.indexOf(level)))] ?? '';

// sorted says of each choice how bad the worst of its items is, and which nodes they are
// about, with a severity: those by name, and whole groups where an item names only some.
// slow says of a node whether it is a straggler.
export function sorted(items, slow) {
  return Object.fromEntries(Object.keys(KINDS).map((show) => {
    const of = items.filter((i) => tells(show, i, slow));
    const nodes = new Map();
    for (const i of of) {
      for (const key of nodesOf(i)) if (i.node || show !== 'stragglers' || slow(key)) nodes.set(key, worst([i.severity, nodes.get(key)]));
    }
    const whole = of.filter((i) => i.kind === KINDS[show][0] && i.group && i.node_count > (i.nodes ?? []).length);
    return [show, { named: of.filter((i) => i.gpus), level: worst(of.map((i) => i.severity)), nodes, groups: new Set(whole.map((i) => keyOf(i.cluster, i.group))) }];
  }));
}

// levelsOf returns the severity of each node that is named.
export function levelsOf(kinds) {
  const levels = new Map();
  for (const { nodes } of Object.values(kinds)) for (const [key, level] of nodes) levels.set(key, worst([level, levels.get(key)]));
  return levels;
}

// namedOf returns the GPUs that items name, with a severity each, for each node that has any:
// by index on the map, by UUID in its table.
export function namedOf(items, by = 'index') {
  const named = new Map();
  for (const i of items) {
    for (const g of (i.node && i.gpus) ?? []) {
      if (g[by] === undefined) continue;
      const key = keyOf(i.cluster, i.node);
      if (!named.has(key)) named.set(key, new Map());
      named.get(key).set(g[by], worst([i.severity, named.get(key).get(g[by])]));
    }
  }
  return named;
}

// redraw draws anew only what says something else: what somebody reads or selects stays.
function redraw(box, items, more, draw) {
  const says = JSON.stringify([items, more], (k, v) => (k === 'duration_seconds' ? undefined : v));
  if (box.says === says) box.querySelectorAll('.since').forEach((e, n) => setText(e, since(items[n])));
  else fill(box, draw());
  box.says = says;
}

const badge = (i) => el('span', { className: 'badge', 'data-level': i.severity }, i.severity);

// Attention is the list of what needs a person, and asks for it while the page is looked at.
export class Attention {
  #asking = false;
  #again = false;
  #of = ''; // the cluster and group that kinds is of
  #unheard; // the cluster that the gateway did not know
  list; // undefined until the gateway has answered
  kinds = {};

  // on has open, narrow, changed, live and waitsFor.
  constructor(fleet, on) {
    this.fleet = fleet;
    this.on = on;
    setInterval(() => this.ask(), EVERY);
    $('items').addEventListener('keydown', (e) => this.#key(e));
  }

  async ask() {
    if (!this.on.live() || document.hidden) return;
    this.#again = this.#asking;
    const known = this.fleet.filter.cluster !== this.#unheard || this.fleet.knows(this.#unheard);
    if (this.#asking || !known) return;
    this.#asking = true;
    this.#unheard = undefined;
    try {
      const { cluster, group, show } = this.fleet.filter;
      const asked = show === 'stragglers' ? [show, 'faults'] : Object.keys(KINDS).filter((k) => k === show);
      this.list = await getAttention({ cluster, group, kind: asked.map((k) => KINDS[k][0]).join(), limit: MOST });
      this.why = undefined;
      const kinds = sorted(this.list.items, this.#slow);
      const of = keyOf(cluster, group);
      // A list of one kind says nothing of the others.
      this.kinds = asked.length ? { ...(of === this.#of ? this.kinds : {}), ...Object.fromEntries(asked.map((k) => [k, kinds[k]])) } : kinds;
      this.#of = of;
      this.on.changed();
      this.draw();
    } catch (err) {
      // The line on top says where the gateway is away; the last list stays.
      if (err.status === 404) this.#unknown(err.message);
    }
    this.#asking = false;
    if (this.#again) this.ask();
  }

  #slow = (key) => this.fleet.nodes.get(key)?.straggler;

  // unknown says that the gateway does not know what is selected.
  #unknown(why) {
    [this.list, this.kinds, this.why, this.#unheard] = [undefined, {}, why, this.fleet.filter.cluster];
    this.on.changed();
    this.draw();
  }

  draw(selected = this.selected) {
    this.selected = selected;
    const box = $('items');
    const { cluster, group, search, show } = this.fleet.filter;
    if (!this.list) {
      const why = this.why ?? this.on.waitsFor();
      redraw(box, [], why, () => el('p', { className: 'none' }, why));
      return;
    }
    const found = this.list.items.filter((i) => (!KINDS[show] || tells(show, i, this.#slow)) && (!search || [i.node, ...(i.nodes ?? [])].some((n) => n?.toLowerCase().includes(search))));
    const items = found.slice(0, ROWS);
    const total = found.length + (search ? 0 : this.list.total - this.list.items.length);
    const { counts: { nodes }, waiting } = this.list;
    setText($('attention-count'), total ? String(total) : '');
    const nothing = cluster || group || search || show !== 'all' ? 'Nothing of what is selected needs attention.' : nodes ? 'Nothing needs attention.' : 'Nothing to watch yet.';
    const { several } = this.fleet;
    // Of an item of many nodes some have room.
    const names = items.map((i) => [this.fleet.short(i), ...(i.node_count > 1 ? i.nodes ?? [] : []).slice(0, SOME).map((node) => this.fleet.short({ cluster: i.cluster, node }))]);
    const focused = box.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    redraw(box, items, [nothing, names, total, waiting, selected, several], () => [
      items.length ? el('ol', {}, items.map((i, n) => this.#row(i, several, ...names[n]))) : el('p', { className: 'well' }, nothing),
      total > items.length && el('p', { className: 'none' }, `and ${total - items.length} more, which a filter shows`),
      waiting.length > 0 && el('section', { className: 'waits' }, el('h3', {}, nodes ? 'Not judged yet' : 'Waiting'), el('ul', {}, waiting.map((w) => el('li', {}, w)))),
    ]);
    // A list that is drawn anew under the keyboard keeps its focus.
    if (focused !== undefined && !box.contains(document.activeElement)) this.focus(focused);
  }

  // focus goes to the row of an item, and says whether there is one.
  focus(id) {
    const row = [...$('items').querySelectorAll('button')].find((b) => b.dataset.key === id);
    row?.focus({ preventScroll: true });
    return row !== undefined;
  }

  #row(i, several, name, ...some) {
    const key = i.node ? keyOf(i.cluster, i.node) : '';
    const whole = i.node || i.group || i.cluster || 'no cluster';
    const where = [several && whole !== i.cluster && i.cluster, part(i)].filter(Boolean).join(' · ');
    return el('li', {}, el('button', { type: 'button', className: 'row item', 'data-key': i.id, 'data-level': i.severity, 'data-kind': i.kind,
      'aria-current': key && key === this.selected ? 'true' : undefined, onclick: () => (key ? this.on.open(key, i.id) : this.on.narrow(i)) },
    el('span', { className: 'main' }, el('b', { className: 'who' }, middle(name || whole, whole), where && el('span', { className: 'part' }, ` ${where}`)), badge(i)),
    el('span', { className: 'what' }, el('span', { className: 'kind' }, `${called[i.kind]}: `), i.what),
    some.length > 0 && el('span', { className: 'why' }, `${some.join(', ')}${i.node_count > some.length ? ` and ${i.node_count - some.length} more` : ''}`),
    i.why && el('span', { className: 'why' }, i.why),
    el('span', { className: 'next' }, i.next),
    el('span', { className: 'sub main' }, el('span', { className: 'since' }, since(i)), el('span', { className: 'cost' }, cost(i)), sure(i) && el('span', {}, sure(i)))));
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

// cards shows the items of a node in its panel.
export function cards(box, items) {
  redraw(box, items, 'cards', () => (items.length === 0 ? el('p', { className: 'well' }, 'Nothing of this node needs attention.')
    : items.map((i) => el('section', { className: 'episode', 'data-open': 'true', 'data-level': i.severity },
      el('h4', {}, [called[i.kind], part(i)].filter(Boolean).join(' · '), badge(i)),
      el('dl', { className: 'facts' }, [['What', i.what], ['Why', i.why], ['Next', i.next]].filter(([, text]) => text)
        .map(([name, text]) => [el('dt', {}, name), el('dd', { className: name.toLowerCase() }, text)])),
      el('p', { className: 'sub' }, el('span', { className: 'since' }, since(i)), [cost(i), sure(i)].filter(Boolean).map((text) => ` · ${text}`))))));
}
