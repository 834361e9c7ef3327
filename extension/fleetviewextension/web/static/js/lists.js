// SPDX-License-Identifier: Apache-2.0
import { getStragglers } from './api.js';
import { $, el, fill } from './dom.js';
import { episodeTitle } from './episodes.js';
import { keyOf } from './fleet.js';
import { clock, duration, fixed, now, percent } from './format.js';

const EVERY = 3000; // ms

function replace(box, ...children) {
  // A list that is rebuilt under the keyboard keeps its focus.
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  fill(box, children);
  if (focused !== undefined) [...box.querySelectorAll('button')].find((b) => b.dataset.key === focused)?.focus();
}

// drawEpisodes lists the open episodes, the newest first.
export function drawEpisodes(fleet, open) {
  if (!fleet.episodes) return;
  const f = fleet.filter;
  const list = fleet.episodes.filter((e) => (!f.cluster || e.cluster === f.cluster) && (!f.group || e.group === f.group));
  if (list.length === 0) {
    replace($('episodes'), el('p', { className: 'none' }, 'None.'));
    return;
  }
  replace($('episodes'), el('ul', { className: 'rows' }, list.slice(0, 100).map((e) => {
    const key = e.node ? keyOf(e.cluster, e.node) : '';
    const body = [
      el('span', { className: 'main' }, el('b', {}, e.node || e.group || e.cluster), el('span', { className: 'badge', 'data-level': e.severity ?? '' }, e.severity ?? e.subject)),
      el('span', { className: 'sub' }, episodeTitle(e)),
      el('span', { className: 'sub' }, `since ${clock(e.since)} (${duration((now() - Date.parse(e.since)) / 1000)})${e.confidence === undefined ? '' : `, confidence ${percent(e.confidence)}`}`),
    ];
    if (!key) return el('li', {}, el('div', { className: 'row' }, body));
    const b = el('button', { type: 'button', className: 'row', onclick: () => open(key) }, body);
    b.dataset.key = keyOf(e.cluster, e.id); // IDs of two clusters may be the same
    return el('li', {}, b);
  })), list.length > 100 && el('p', { className: 'none' }, `and ${list.length - 100} more`));
}

function drawRank({ stragglers, ranked }, open) {
  if (stragglers.length === 0) {
    replace($('rank'), el('p', { className: 'none' }, 'Nothing is known of any node yet.'));
    return;
  }
  replace($('rank'), el('table', { className: 'rank' },
    el('thead', {}, el('tr', {}, ['place', 'node', 'suspicion', 'score', 'peers'].map((t) => el('th', { scope: 'col' }, t)))),
    el('tbody', {}, stragglers.map((s) => {
      const key = keyOf(s.cluster, s.node);
      const b = el('button', { type: 'button', onclick: () => open(key), title: s.group ?? '' }, s.straggler ? '▲ ' : '', s.node);
      b.dataset.key = key;
      return el('tr', { className: s.straggler ? 'named' : '' }, el('td', {}, `${s.place}`), el('td', {}, b),
        [fixed(s.suspicion), fixed(s.score), fixed(s.group_median)].map((t) => el('td', {}, t)));
    }))), el('p', { className: 'none' }, `of ${ranked} ranked`));
}

// startRank asks for the ranking now and then while the page is looked at and live.
// The returned function asks at once.
export function startRank(fleet, open, live) {
  let asking = false;
  const ask = async () => {
    if (asking || !live() || document.hidden || $('side').hidden) return;
    asking = true;
    try {
      drawRank(await getStragglers({ cluster: fleet.filter.cluster, group: fleet.filter.group }), open);
    } catch {
      // The line on top says that the server is away; the last ranking stays.
    }
    asking = false;
  };
  setInterval(ask, EVERY);
  return ask;
}
