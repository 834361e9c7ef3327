// SPDX-License-Identifier: Apache-2.0
import { el } from './dom.js';
import { clock, duration, num, percent, withUnit, words } from './format.js';
import { holders } from './gpus.js';

// gpuName names a GPU by its index among a node's, or another device by its name.
const gpuName = (id, gpus = []) => {
  const index = gpus.find((g) => g.uuid === id)?.index;
  if (index !== undefined) return `GPU ${index}`;
  return /^(GPU|MIG)-/.test(id) ? 'a GPU' : id;
};

// culprit says which part of a node is meant, such as rank 3 (GPU 5, local rank 1).
export function culprit(c, gpus) {
  const parts = [c?.rank !== undefined && `rank ${c.rank}`, gpuName(c?.gpu, gpus), c?.local_rank !== undefined && `local rank ${c.local_rank}`].filter(Boolean);
  return parts.length > 1 ? `${parts[0]} (${parts.slice(1).join(', ')})` : parts[0];
}

const SUBJECTS = { group: 'whole group', missing: 'missing nodes', communicator: 'slow communicator', job: 'the job stands still' };

// episodeTitle says in a few words what an episode is about.
export function episodeTitle(e, gpus) {
  const what = e.subject === 'node' ? culprit(e.culprit?.gpu || !e.gpu ? e.culprit : { ...e.culprit, gpu: e.gpu }, gpus) : SUBJECTS[e.subject] ?? e.subject;
  const why = e.reason ? `${words(e.reason)}${e.observation ? ' (observed)' : ''}` : e.cause ? words(e.cause) : '';
  const how = e.signal ? `${e.signal}${e.gap === undefined ? '' : ` −${percent(e.gap)}`}` : '';
  return [what, why, how].filter(Boolean).join(' · ') || 'no reason given';
}

const fact = (name, value) => value !== undefined && value !== '' && [el('dt', {}, name), el('dd', {}, value)];

function evidence(list, label, gpus) {
  return el('div', { className: 'wide', tabIndex: 0, role: 'region', 'aria-label': label }, el('table', { className: 'grid' },
    el('caption', {}, 'Evidence'),
    el('thead', {}, el('tr', {}, ['fact', 'here', 'peers', 'GPU'].map((t) => el('th', { scope: 'col' }, t)))),
    el('tbody', {}, list.map((x) => el('tr', {}, el('td', {}, words(x.fact)), el('td', {}, withUnit(x.value, x.unit)),
      el('td', {}, withUnit(x.peers, x.unit)), el('td', {}, gpuName(x.gpu, gpus) ?? ''))))));
}

// episode shows one of a node. What is open has its reason, cost and advice in what needs attention.
export function episode(e, gpus) {
  return el('section', { className: 'episode', 'data-open': String(e.open), 'data-level': e.open ? e.severity : undefined },
    el('h4', {}, episodeTitle(e, gpus), el('span', { className: 'badge', 'data-level': e.open ? e.severity ?? '' : '' }, e.open ? e.severity || 'open' : 'over')),
    !e.open && e.text && el('p', {}, e.text),
    el('dl', { className: 'facts' },
      fact('Since', `${clock(e.since)}${e.since_before ? ' or earlier' : ''}`), fact(e.open ? 'So far' : 'Lasted', duration(e.duration_seconds)),
      fact('Signal', e.signal && e.value !== undefined ? `${e.signal} ${num(e.value)}, peers ${num(e.median)}` : e.signal),
      fact('Place', e.rank === undefined ? undefined : `${e.rank} of ${e.active ?? '?'} active`),
      fact('Ran then', holders(e.allocations)), fact('Ended by', e.ended && e.cause && words(e.cause))),
    e.evidence?.length ? evidence(e.evidence, `Evidence since ${clock(e.since)}`, gpus) : null);
}
