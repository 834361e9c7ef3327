// SPDX-License-Identifier: Apache-2.0
import { el } from './dom.js';
import { merge } from './past.js';
import { Plot } from './plot.js';
import { inSteps, titles } from './titles.js';

export { inSteps, merge };

// table turns an answer of the API into columns.
export function table({ at, signals }) {
  const out = { t: at.map((text) => Date.parse(text)), columns: {}, unit: signals.find((s) => s.signal === 'throughput')?.unit };
  for (const s of signals) {
    out.columns[s.signal] = s.value;
    for (const of of ['median', 'scale', 'threshold']) {
      if (s[of].some((v) => v !== null)) out.columns[`${s.signal}:${of}`] = s[of];
    }
  }
  return out;
}

// A spread is a share of the level for signals without a limit of their own. A
// fraction has the level 1.
const relative = new Set(['throughput', 'power', 'step']);
const SPREADS = 2; // about nineteen of twenty healthy peers, were they normally distributed

// range returns what is usual among the peers, from and to, where it is known.
function range(name, columns) {
  const [median, scale] = [columns[`${name}:median`], columns[`${name}:scale`]];
  if (!median || !scale) return null;
  const edge = (sign) => median.map((m, i) => (m === null || scale[i] === null ? null
    : m + sign * SPREADS * scale[i] * (relative.has(name) ? Math.abs(m) : 1)));
  return [edge(-1), edge(1)];
}

// Signals plots whatever a node is compared by.
export class Signals {
  #plots = new Map();
  // zoom is told of another time to look at.
  constructor(box, zoomed) {
    this.box = box;
    this.zoom = { span: [0, 1], to: (from, to) => zoomed(from, to) };
  }

  // update shows columns in a span, from and to in seconds.
  update({ t, columns }, span) {
    this.zoom.span = span;
    const seconds = t.map((ms) => ms / 1000);
    for (const name of Object.keys(titles)) {
      if (!columns[name]) {
        this.#remove(name);
        continue;
      }
      const series = [['node', 'this node', name], ['median', 'peers’ median', `${name}:median`], ['threshold', 'threshold', `${name}:threshold`]]
        .filter(([, , column]) => columns[column]);
      const usual = range(name, columns);
      const shape = [...series.map(([line]) => line), usual ? 'range' : ''].join();
      let p = this.#plots.get(name);
      if (p && p.shape !== shape) p = this.#remove(name);
      if (!p) {
        const [title, unit] = titles[name];
        const area = el('div', { className: 'area' });
        const none = el('p', { className: 'none', hidden: true }, 'Nothing was recorded in this time.');
        const figure = el('figure', { 'data-signal': name }, el('figcaption', {}, el('b', {}, title), ' ', el('span', {}, unit)), none, area);
        // In their own order, whichever is known first.
        const order = Object.keys(titles);
        const next = [...this.box.children].find((f) => order.indexOf(f.dataset.signal) > order.indexOf(name));
        this.box.insertBefore(figure, next ?? null);
        p = { shape, figure, none, plot: new Plot(area, series, usual !== null, this.zoom) };
        this.#plots.set(name, p);
      }
      p.none.hidden = series.some(([, , column]) => columns[column].some((v, i) => v !== null && seconds[i] >= span[0] && seconds[i] <= span[1]));
      p.plot.set(seconds, [...series.map(([, , column]) => columns[column]), ...(usual ?? [])]);
    }
  }

  #remove(name) {
    const p = this.#plots.get(name);
    p?.plot.destroy();
    p?.figure.remove();
    this.#plots.delete(name);
  }

  destroy() {
    for (const name of this.#plots.keys()) this.#remove(name);
  }
}
