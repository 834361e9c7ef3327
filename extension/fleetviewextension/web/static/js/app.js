// SPDX-License-Identifier: Apache-2.0
import { Attention, KINDS, levelsOf, namedOf } from './attention.js';
import { modes } from './colours.js';
import { $, el, setText } from './dom.js';
import { Fleet, keyOf } from './fleet.js';
import { heardAt, NONE } from './format.js';
import { startHelp } from './glossary.js';
import { startKeys } from './keys.js';
import { drawLegend } from './legend.js';
import { Live } from './live.js';
import { startLogin } from './login.js';
import { FleetMap } from './map.js';
import { Panel } from './panel.js';
import { startTheme } from './theme.js';

const fleet = new Fleet();
const view = { mode: 'score', open: '' };
// SHOWS are the choices of what to look at.
const SHOWS = { all: 'all nodes', ...Object.fromEntries(Object.entries(KINDS).map(([name, [, , , many]]) => [name, many])) };
let complete = false;
let pending = null; // the node that the address names, until it is known
let opener; // the item whose row opened the panel
let leaving = false; // the page goes back by itself

const map = new FleetMap(fleet, view, (key) => open(key));
const panel = new Panel(() => {
  view.open = '';
  // The browser's way back would lead to the node once more: it is taken.
  leaving = history.state?.step === 'node';
  if (leaving) history.back();
  else remember();
  map.draw();
  attention.draw('');
  if (!attention.focus(opener)) $('scroll').focus({ preventScroll: true });
});

function open(key, push = true, item = undefined) {
  const n = fleet.nodes.get(key);
  if (!n || view.open === key) return;
  const beside = view.open !== '';
  view.open = key;
  opener = item;
  panel.open(n);
  map.select(key);
  remember(push && !beside ? 'node' : '');
  map.draw();
  attention.draw(key);
}

// narrow shows the nodes of an item that is about many.
function narrow(item) {
  const [only] = Object.entries(KINDS).find(([, [kind]]) => kind === item.kind);
  show({ cluster: item.cluster, group: item.group ?? '', show: only });
}

// The address keeps what is looked at, so that it can be sent to somebody. A node that is
// opened, and a count that is pressed, are steps that the browser's way back undoes.
function remember(step = '') {
  const q = new URLSearchParams();
  if (view.mode !== 'score') q.set('colour', view.mode);
  for (const [k, v] of Object.entries(fleet.filter)) if (v && v !== 'all') q.set(k, v);
  const n = fleet.nodes.get(view.open);
  if (n) { q.set('in', n.cluster); q.set('node', n.node); }
  const to = q.size ? `#${q}` : location.pathname + location.search;
  if (step) history.pushState({ step }, '', to);
  else history.replaceState(history.state, '', to);
}

function recall() {
  const q = new URLSearchParams(location.hash.slice(1));
  const one = (of, name, otherwise) => (Object.hasOwn(of, name) ? name : otherwise);
  view.mode = one(modes, q.get('colour'), 'score');
  const show = one(SHOWS, q.get('show'), 'all');
  fleet.setFilter({ cluster: q.get('cluster') ?? '', group: q.get('group') ?? '', search: q.get('search') ?? '', show });
  const [cluster, node] = [q.get('in') ?? '', q.get('node')];
  pending = node ? { key: keyOf(cluster, node), cluster, node } : null;
}

// openPending opens the node of the address; the API answers for an unknown node.
function openPending() {
  if (pending && fleet.nodes.has(pending.key)) open(pending.key, false);
  else if (pending) panel.open(pending);
  pending = null;
}

// Somebody went back, or followed a link to another view of the same page.
addEventListener('popstate', () => {
  if (leaving) {
    leaving = false;
    remember();
    return;
  }
  recall();
  showTools();
  drawLegend($('legend'), view.mode);
  if (pending?.key !== view.open) {
    if (view.open || panel.key) panel.close(false);
    view.open = '';
    } else pending = null;
  if (complete) openPending();
  attention.draw(view.open);
  changed();
  attention.ask();
});

// The stream may bring much at once: lists and figures follow at their own pace.
let lists = 0;
function changed() {
  // Until all of it is there, layout after layout would be done for nothing.
  if (!complete && map.layout.keys.length > 0) return;
  map.draw();
  lists ||= setTimeout(() => {
    lists = 0;
    drawTools();
    drawFigures();
  }, complete ? 250 : 0);
}

// The counts are buttons that show only what they count.
function drawFigures() {
  const f = fleet.figures();
  const counts = attention.list?.counts;
  const list = [['', 'node', 'nodes', f.nodes], ['', 'GPU', 'GPUs', f.gpus], ...Object.entries(KINDS).map(([show, [, count, one, many]]) => [show, one, many, counts?.[count]])];
  const box = $('figures');
  if (box.children.length === 0) {
    box.append(...list.map(([only, , many]) => {
      const parts = [el('b', {}), ' ', el('span', {}, many)];
      return only ? el('button', { type: 'button', className: 'figure', 'data-show': only, title: `Only ${many}; once more for all`,
        onclick: () => show({ show: fleet.filter.show === only ? 'all' : only }) }, parts) : el('span', { className: 'figure' }, parts);
    }));
  }
  list.forEach(([only, one, many, n], i) => {
    const item = box.children[i];
    setText(item.lastChild, n === 1 ? one : many);
    setText(item.firstChild, complete && n !== undefined ? n.toLocaleString('en') : NONE);
    if (!only) return;
    item.setAttribute('aria-pressed', String(fleet.filter.show === only));
    item.dataset.level = n > 0 ? attention.kinds[only]?.level ?? '' : '';
  });
}

// show selects by a press of a button.
function show(filter) {
  fleet.setFilter(filter);
  showTools();
  filtered('view');
}

// filtered follows a change of what is selected.
function filtered(step) {
  drawLegend($('legend'), view.mode);
  drawFigures();
  remember(step);
  changed();
  attention.draw();
  attention.ask();
}

function choices(select, all, list, value) {
  const values = [['', all], ...list.map((v) => [v, v])];
  if (value && !list.includes(value)) values.push([value, value]);
  const text = values.join('\n');
  if (select.dataset.list !== text) {
    select.dataset.list = text;
    select.replaceChildren(...values.map(([v, label]) => el('option', { value: v }, label)));
  }
  if (select.value !== value) select.value = value;
}

function drawTools() {
  const { clusters, groups } = fleet.names();
  choices($('cluster'), 'all', clusters, fleet.filter.cluster);
  choices($('group'), 'all', groups, fleet.filter.group);
}

// showTools sets the tools to what is looked at.
function showTools() {
  $('show').value = fleet.filter.show;
  $('search').value = fleet.filter.search;
  for (const radio of $('colour').querySelectorAll('input')) radio.checked = radio.value === view.mode;
  drawTools();
}

function startTools() {
  $('show').append(...Object.entries(SHOWS).map(([v, label]) => el('option', { value: v }, label)));
  $('colour').append(...Object.entries(modes).map(([v, m]) => el('label', {},
    el('input', { type: 'radio', name: 'colour', value: v, }), el('span', {}, m.label))));
  showTools();
  $('tools').addEventListener('submit', (e) => e.preventDefault());
  $('tools').addEventListener('input', () => {
    const cluster = $('cluster').value;
    fleet.setFilter({
      cluster, group: cluster === fleet.filter.cluster ? $('group').value : '',
      show: $('show').value, search: $('search').value.trim().toLowerCase(),
    });
    view.mode = $('colour').querySelector(':checked').value;
    filtered();
  });
}

map.onLayout = (l) => {
  const all = fleet.nodes.size;
  setText($('shown'), l.keys.length === all ? '' : `${l.keys.length.toLocaleString('en')} of ${all.toLocaleString('en')} nodes`);
  drawEmpty();
};

const waitsFor = (what) => ($('link').dataset.state === 'stale' ? $('link-text').textContent : `Waiting for the gateway’s ${what} …`);

// An empty map says why it is empty.
function drawEmpty() {
  const none = map.layout.keys.length === 0;
  $('empty').hidden = !none;
  if (!none) return;
  const asked = fleet.filter.show === 'all' || attention.list;
  if (!complete || !asked) setText($('empty'), waitsFor(complete ? 'list of what needs attention' : 'list of nodes'));
  else setText($('empty'), fleet.nodes.size ? 'No node is as asked for.' : `No node has reported to this gateway yet. An agent needs the gateway’s address, such as GPU_COLLECTOR_GATEWAY=${location.hostname}:4317.`);
}

map.onPaint = () => {
  if (!complete) return;
  performance.mark('fleet-painted');
  // Plots come when the rest is there, and before they are needed: the gateway may be away by then.
  import('./signals.js').catch(() => {});
  map.onPaint = undefined;
};

const attention = new Attention(fleet, {
  open: (key, item) => open(key, true, item),
  narrow,
  live: () => $('link').dataset.state === 'live',
  waitsFor: () => waitsFor('first answer'),
  changed() {
    fleet.attend(attention.kinds, levelsOf(attention.kinds), namedOf(Object.values(attention.kinds).flatMap((k) => k.named)));
    panel.attend().catch(() => {});
    drawFigures();
    map.draw();
  },
});

recall();
startTools();
startTheme(() => {
  drawLegend($('legend'), view.mode);
  map.draw();
  panel.theme();
});

const login = startLogin((credential) => live.authorize(credential));
addEventListener('refused', (e) => login.needed(e.detail.challenge, e.detail.tried));

const live = new Live({
  link(live) {
    drawEmpty();
    attention.draw();
    if (!live) return;
    login.accepted();
    panel.retry();
    attention.ask();
  },
  login: ({ challenge, tried }) => login.needed(challenge, tried),
  nodes({ nodes }) {
    fleet.put(nodes);
    if (nodes.some((n) => n.key === panel.key)) panel.refresh();
    changed();
  },
  seen({ seen }) {
    fleet.seen(seen);
    const mine = seen.find(([key]) => key === panel.key);
    if (mine) panel.seen(mine[1], mine[2]);
    changed();
  },
  removed({ keys }) {
    fleet.remove(keys);
    if (keys.includes(panel.key)) panel.gone();
    changed();
  },
  complete() {
    complete = true;
    openPending();
    fleet.members++;
    drawFigures();
    changed();
  },
  episodes() {
    panel.refreshEpisodes().catch(() => {});
    attention.ask();
  },
  groups({ groups }) {
    fleet.groups = new Map(groups.map((g) => [keyOf(g.cluster, g.group), g]));
    map.draw();
  },
  clock: ({ at, first }) => heardAt(at, first),
});
startKeys({ close: () => panel.close(), help: startHelp() });
drawEmpty();
drawFigures();
attention.draw();
