// SPDX-License-Identifier: Apache-2.0
import { modes } from './colours.js';
import { $, el, setText } from './dom.js';
import { Fleet, keyOf, SHOW } from './fleet.js';
import { heardAt, NONE } from './format.js';
import { startKeys } from './keys.js';
import { drawLegend } from './legend.js';
import { drawEpisodes, startRank } from './lists.js';
import { Live } from './live.js';
import { startLogin } from './login.js';
import { FleetMap } from './map.js';
import { Panel } from './panel.js';
import { startTheme } from './theme.js';

const fleet = new Fleet();
const view = { mode: 'score', open: '' };
let complete = false;
let pending = null; // the node that the address names, until it is known

const map = new FleetMap(fleet, view, open);
const panel = new Panel(() => {
  view.open = '';
  live.watch('');
  remember();
  map.draw();
  $('scroll').focus();
  askRank();
});

function open(key) {
  const n = fleet.nodes.get(key);
  if (!n || view.open === key) return;
  view.open = key;
  live.watch(key);
  panel.open(n);
  map.select(key);
  remember();
  map.draw();
}

// The address keeps what is looked at, so that it can be sent to somebody.
function remember() {
  const q = new URLSearchParams();
  if (view.mode !== 'score') q.set('colour', view.mode);
  for (const [k, v] of Object.entries(fleet.filter)) if (v && v !== 'all') q.set(k, v);
  const n = fleet.nodes.get(view.open);
  if (n) { q.set('in', n.cluster); q.set('node', n.node); }
  history.replaceState(null, '', q.size ? `#${q}` : location.pathname + location.search);
}

function recall() {
  const q = new URLSearchParams(location.hash.slice(1));
  const one = (of, name, otherwise) => (Object.hasOwn(of, name) ? name : otherwise);
  view.mode = one(modes, q.get('colour'), 'score');
  const show = one(SHOW, q.get('show'), 'all');
  fleet.setFilter({ cluster: q.get('cluster') ?? '', group: q.get('group') ?? '', search: q.get('search') ?? '', show });
  const [cluster, node] = [q.get('in') ?? '', q.get('node')];
  pending = node ? { key: keyOf(cluster, node), cluster, node } : null;
}

// openPending opens the node of the address; the API answers for an unknown node.
function openPending() {
  if (pending && fleet.nodes.has(pending.key)) open(pending.key);
  else if (pending) panel.open(pending);
  pending = null;
}

// Somebody followed a link to another view of the same page.
addEventListener('hashchange', () => {
  recall();
  showTools();
  drawLegend($('legend'), view.mode);
  if (!pending) panel.close();
  if (complete) openPending();
  changed();
  askRank();
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
    drawEpisodes(fleet, open);
  }, complete ? 250 : 0);
}

function drawFigures() {
  const f = fleet.figures();
  const list = [['nodes', f.nodes], ['GPUs', f.gpus], ['stragglers', f.stragglers], ['sick GPUs', f.sick], ['missing', f.missing], ['open episodes', f.episodes]];
  const box = $('figures');
  if (box.children.length === 0) box.append(...list.map(([name]) => el('div', {}, el('dt', {}, name), el('dd', {}))));
  list.forEach(([name, n], i) => {
    const item = box.children[i];
    setText(item.lastChild, complete ? n.toLocaleString('en') : NONE);
    item.dataset.bad = complete && n > 0 && !['nodes', 'GPUs'].includes(name);
  });
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
  $('show').append(...Object.entries(SHOW).map(([v, [label]]) => el('option', { value: v }, label)));
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
    drawLegend($('legend'), view.mode);
    remember();
    changed();
    askRank();
  });
}

map.onLayout = (l) => {
  const all = fleet.nodes.size;
  setText($('shown'), l.keys.length === all ? '' : `${l.keys.length.toLocaleString('en')} of ${all.toLocaleString('en')} nodes`);
  drawEmpty();
};

// An empty map says why it is empty.
function drawEmpty() {
  const none = map.layout.keys.length === 0 && (complete || $('link').dataset.state === 'stale');
  $('empty').hidden = !none;
  if (!none) return;
  if (!complete) setText($('empty'), $('link-text').textContent);
  else setText($('empty'), fleet.nodes.size ? 'No node is as asked for.' : 'No node has reported to this gateway yet.');
}

map.onPaint = () => {
  if (!complete) return;
  performance.mark('fleet-painted');
  // Plots come when the rest is there, and before they are needed: the gateway may be away by then.
  import('./signals.js').catch(() => {});
  map.onPaint = undefined;
};

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
    if (!live) return;
    login.accepted();
    panel.retry();
    askRank();
  },
  login: ({ challenge, tried }) => login.needed(challenge, tried),
  nodes({ nodes }) {
    fleet.put(nodes);
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
  episodes({ episodes }) {
    fleet.episodes = episodes;
    panel.refreshEpisodes().catch(() => {});
    changed();
  },
  groups({ groups }) {
    fleet.groups = new Map(groups.map((g) => [keyOf(g.cluster, g.group), g]));
    map.draw();
  },
  clock: ({ at, first }) => heardAt(at, first),
  detail: (d) => panel.detail(d),
});
const askRank = startRank(fleet, open, () => $('link').dataset.state === 'live');
startKeys({ close: () => panel.close() });
drawFigures();
