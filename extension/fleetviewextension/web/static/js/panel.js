// SPDX-License-Identifier: Apache-2.0
import { getAttention, getEpisodes, getHealth, getNode, getPast } from './api.js';
import { cards, namedOf, worst } from './attention.js';
import { $, el, setText } from './dom.js';
import { episode } from './episodes.js';
import { clock, duration, fixed, now, num, percent, watts, words } from './format.js';
import { gpuTable, healthReasons } from './gpus.js';
import { Session } from './past.js';

// facts are told of a node besides its trouble.
export const facts = [
  ['Score', (n) => (n.score === undefined ? undefined : `${fixed(n.score)}${n.agent_threshold === undefined ? '' : `, threshold ${fixed(n.agent_threshold)}`}`)],
  ['Suspicion', (n) => (n.suspicion === undefined ? undefined : fixed(n.suspicion))],
  ['Rank', (n) => n.rank && num(n.rank)],
  ['Judged by', (n) => n.detection_mode && { fleet: 'the fleet’s threshold', cached: 'the last threshold it got', local: 'its own past', none: 'nothing yet' }[n.detection_mode]],
  ['Gateway', (n) => (n.gateway_reachable === undefined ? undefined : n.gateway_reachable ? 'reachable' : 'not reachable')],
  ['GPU use', (n) => (n.utilization === undefined ? undefined : percent(n.utilization))],
  ['Power', (n) => (n.power_watts === undefined ? undefined : watts(n.power_watts))],
  ['CPU pressure', (n) => (n.cpu_pressure === undefined ? undefined : percent(n.cpu_pressure, 1))],
  ['Job', (n) => n.job_id && `${n.job_id}${n.job_role ? `, ${n.job_role}` : ''}`],
  ['GPUs', (n) => (n.gpu_count.known || n.gpu_count.expected ? `${n.gpu_count.known}${n.gpu_count.expected === undefined ? '' : ` of ${num(n.gpu_count.expected)}`}${n.gpu_count.lost ? `, ${num(n.gpu_count.lost)} lost` : ''}${n.gpu_count.pending ? `, ${num(n.gpu_count.pending)} have not answered yet` : ''}` : undefined)],
];

const SPANS = { '1h': ['1 h', 3600], '24h': ['24 h', 86_400], '7d': ['7 d', 604_800] };

const empty = { t: [], columns: {} };

// Panel shows one node.
export class Panel {
  key = '';
  items = []; // what of the node needs attention
  #past = empty;
  #session = new Session();
  #span = '1h';
  #zoomed; // from and to in seconds

  constructor(close) {
    this.box = $('panel');
    this.onClose = close;
    setInterval(() => this.#age(), 1000);
  }

  // open shows a node, first by the map's brief view.
  open(brief) {
    this.close(false);
    this.key = brief.key;
    document.body.classList.add('opened');
    this.box.hidden = false;
    this.#zoomed = undefined;
    this.#build(brief);
    this.stop = new AbortController();
    return this.#load(brief);
  }

  // retry reads again what could not be read when the node was opened.
  retry() {
    if (this.failed) this.#load(this.failed);
  }

  async #load(brief) {
    const { signal } = this.stop;
    this.failed = undefined;
    for (const section of this.box.querySelectorAll('section')) section.hidden = false;
    setText(this.note, 'Waiting for the gateway’s view of this node …');
    try {
      const [plots, node] = await Promise.all([import('./signals.js'), getNode(brief, signal)]);
      if (signal.aborted) return;
      setText(this.note, '');
      this.lib = plots;
      this.signals ??= new plots.Signals(this.plots, (from, to) => this.#zoom(from, to));
      this.#show(node);
      this.#plot();
      const past = this.#recorded(signal);
      await Promise.all([this.refreshEpisodes(), this.attend()]);
      await past;
    } catch (err) {
      if (signal.aborted) return;
      this.failed = brief;
      const unknown = err.status === 404;
      setText(this.note, unknown ? `No node ${brief.node} of ${brief.cluster ? `cluster ${brief.cluster}` : 'any cluster'} is known to this gateway.` : `This node cannot be read now: ${err.message}`);
      // Nothing is waited for.
      for (const section of this.box.querySelectorAll('section')) section.hidden = unknown;
    }
  }

  close(tell = true) {
    if (!this.key) return;
    this.key = '';
    this.failed = undefined;
    this.stop.abort();
    this.signals?.destroy();
    this.signals = undefined;
    this.node = undefined;
    this.items = [];
    this.#past = empty;
    this.#session = new Session();
    this.box.hidden = true;
    document.body.classList.remove('opened');
    if (tell) this.onClose();
  }

  // refresh reads the node again, which reported: the stream has it in brief.
  async refresh() {
    const { key, node } = this;
    if (!node || this.refreshing === key) return;
    this.refreshing = key;
    try {
      const now = await getNode(node, this.stop.signal);
      if (key === this.key) this.#show(now);
      if (key === this.key) this.#plot();
    } catch {
      // The next report is soon, and the stream says whether the gateway is away.
    } finally {
      if (this.refreshing === key) this.refreshing = '';
    }
  }

  // seen notes a sign of life.
  seen(at, state) {
    if (!this.node) return;
    const changed = this.node.state !== (state || undefined);
    Object.assign(this.node, { last_seen: new Date(at).toISOString(), state: state || undefined });
    this.#session.again(at);
    if (changed) this.#show(this.node);
    this.#age();
    this.#plot();
  }

  async refreshEpisodes() {
    const { key } = this;
    if (!key || !this.node) return;
    const list = await getEpisodes(this.node, this.stop.signal);
    if (key !== this.key) return;
    this.episodes.replaceChildren(...(list.length ? list.map((e) => episode(e, this.node.gpus)) : [el('p', { className: 'none' }, 'None on record.')]));
  }

  // attend says what of the node needs attention.
  async attend() {
    const { key } = this;
    if (!key || !this.node) return;
    const { items } = await getAttention({ cluster: this.node.cluster, node: this.node.node }, this.stop.signal);
    if (key !== this.key) return;
    this.items = items;
    this.#badges();
    this.#table();
    cards(this.trouble, items);
  }

  // gone says that the node is no longer known.
  gone() {
    setText(this.note, 'The gateway no longer knows this node.');
  }

  // theme draws the plots anew: their colours are the theme's.
  theme() {
    if (!this.signals) return;
    this.signals.destroy();
    this.#plot();
  }

  #build(n) {
    this.badges = el('p', { className: 'badges' });
    this.age = el('span', {});
    this.facts = el('dl', { className: 'facts' });
    this.note = el('p', { className: 'none', role: 'status' });
    this.plots = el('div', { className: 'plots' });
    this.pastNote = el('p', { className: 'none', role: 'status' });
    this.episodes = el('div', {}, el('p', { className: 'none' }, 'Waiting for the record …'));
    this.trouble = el('div', {}, el('p', { className: 'none' }, 'Waiting for the gateway’s verdict …'));
    this.plotNote = el('p', { className: 'none' }, 'Waiting for what was recorded …');
    this.unjudged = el('p', {});
    this.reasons = el('div', {});
    this.gpus = el('div', {});
    this.box.setAttribute('aria-labelledby', 'panel-name');
    this.box.replaceChildren(
      el('header', {}, el('h2', { id: 'panel-name' }, n.node), el('button', { type: 'button', className: 'quiet', 'aria-label': 'Close the node', onclick: () => this.close() }, 'Close ✕')),
      el('p', { className: 'where' }, el('bdi', {}, n.cluster || 'no cluster'), ' · ', el('bdi', {}, n.group || 'no group'), ' · ', this.age),
      this.badges, this.note,
      el('section', {}, el('h3', {}, 'Health and what to do'), this.trouble, this.unjudged, this.reasons),
      el('section', {}, el('h3', {}, 'GPUs'), this.gpus),
      el('section', {}, el('h3', {}, 'Against its peers'), this.#times(), this.pastNote, this.plotNote, this.plots),
      el('section', {}, el('h3', {}, 'Episodes'), this.episodes),
      el('section', {}, el('h3', {}, 'The node'), this.facts));
    this.box.scrollTop = 0;
    this.box.focus({ preventScroll: true });
  }

  #show(n) {
    this.node = n;
    this.#session.record(n);
    this.#badges();
    this.#age();
    setText(this.unjudged, n.unjudged_text ? `Not judged: ${n.unjudged_text}` : '');
    this.facts.replaceChildren(...facts.flatMap(([name, f]) => {
      const v = f(n);
      return v === undefined || v === '' ? [] : [el('div', { className: String(v).length > 34 ? 'long' : '' }, el('dt', {}, name), el('dd', {}, v))];
    }));
    const gpus = n.gpus ?? [];
    const told = n.state === 'missing' ? el('p', { className: 'none' }, 'The GPUs are as last reported; how they are now is not known.') : healthReasons(gpus);
    this.reasons.replaceChildren(gpus.length ? told : el('p', { className: 'none' }, 'No GPU of this node has reported.'));
    this.#table();
  }

  #table() {
    const gpus = this.node.gpus ?? [];
    const left = this.gpus.firstElementChild?.scrollLeft;
    this.gpus.replaceChildren(gpus.length ? gpuTable(gpus, namedOf(this.items, 'uuid').get(this.key)) : el('p', { className: 'none' }, 'No GPU of this node has reported.'));
    if (left) this.gpus.firstElementChild.scrollLeft = left;
  }

  #badges() {
    const n = this.node;
    const level = (...kinds) => worst(this.items.filter((i) => kinds.includes(i.kind)).map((i) => i.severity));
    const missing = n.state === 'missing';
    const lost = Math.max((n.gpus ?? []).filter((g) => g.up === false).length, n.gpu_count.lost ?? 0);
    this.badges.replaceChildren(...[
      n.straggler && el('span', { className: 'badge', 'data-level': level('straggler', 'group_fault') }, '▲ straggler'),
      !n.straggler && n.agent_straggler && el('span', { className: 'badge', 'data-level': 'minor' }, 'takes itself for a straggler'),
      el('span', { className: 'badge', 'data-level': missing ? level('missing_node') : '' }, words(n.state ?? 'state unknown')),
      lost > 0 && el('span', { className: 'badge', 'data-level': level('lost_gpu') }, lost === 1 ? '1 GPU lost' : `${lost} GPUs lost`),
      n.health !== 'unknown' && !(lost && n.health === 'healthy') && el('span', { className: 'badge', 'data-level': missing ? '' : level('sick_gpu') }, missing ? `last report: ${n.health}` : n.health),
    ].filter(Boolean));
  }

  #age() {
    if (!this.node) return;
    setText(this.age, `seen ${duration((now() - new Date(this.node.last_seen)) / 1000)} ago`);
    this.age.title = clock(this.node.last_seen);
  }

  #plot() {
    if (!this.signals) return;
    const all = this.lib.merge(this.#past, this.#session);
    this.signals.update(this.lib.inSteps(all, this.#past.unit), this.#shown(all.t[0] / 1000 || undefined));
    setText(this.plotNote, all.t.length < 2 ? 'Plots begin with the next reports: nothing older is kept here.' : '');
  }

  // shown is the time that is looked at, from and to in seconds. The last hour begins where values
  // do: the first minutes of a fleet fill the plot.
  #shown(first = -Infinity) {
    const end = now() / 1000;
    const begin = end - SPANS[this.#span][1];
    return this.#zoomed ?? [this.#span === '1h' ? Math.max(begin, Math.min(first, end - 60)) : begin, end];
  }

  // The times are chosen by buttons, and by dragging over a plot.
  #times() {
    const pick = ([span, [text]]) => el('label', {}, el('input', { type: 'radio', name: 'span', value: span, checked: span === this.#span, onchange: () => {
      this.#span = span;
      this.#zoom();
    } }), el('span', {}, text));
    const button = (label, text, onclick) => el('button', { type: 'button', className: 'quiet', 'aria-label': label, title: label, onclick }, text);
    // What is newest stays.
    const by = (factor) => () => {
      const [from, to] = this.#shown();
      this.#zoom(to - (to - from) * factor, to);
    };
    return el('div', { className: 'times' },
      el('fieldset', { className: 'segments', id: 'span' }, el('legend', {}, 'Past'), Object.entries(SPANS).map(pick)),
      button('Zoom in', '+', by(0.5)), button('Zoom out', '−', by(2)), button('All of it', 'All of it', () => this.#zoom()),
      el('span', { className: 'none' }, 'or drag over a plot'));
  }

  // zoom looks at a time, in seconds, or at all of the chosen one; what is finer there is asked for.
  #zoom(from, to) {
    if (!this.signals) return;
    this.#zoomed = from === undefined || to - from > SPANS[this.#span][1] ? undefined : [from, to];
    this.plots.dataset.zoomed = String(this.#zoomed !== undefined);
    this.#plot();
    this.#recorded(this.stop.signal);
  }

  // The past may be away while the rest is well: a disk, a server of its own.
  async #recorded(signal) {
    const [span, zoomed] = [this.#span, this.#zoomed];
    try {
      const health = await getHealth(signal);
      if (health.history.storage === 'none') return;
      const [since, until] = zoomed?.map((s) => new Date(s * 1000).toISOString()) ?? [span];
      const past = await getPast(this.node, { since, until }, signal);
      if (signal.aborted || span !== this.#span || zoomed !== this.#zoomed) return;
      setText(this.pastNote, '');
      this.#past = this.lib.table(past);
      this.#plot();
    } catch (err) {
      if (!signal.aborted) setText(this.pastNote, `What was recorded cannot be read now: ${err.message}`);
    }
  }
}
