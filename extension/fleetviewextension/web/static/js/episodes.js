// SPDX-License-Identifier: Apache-2.0
import { el } from './dom.js';
import { clock, duration, num, percent, withUnit, words } from './format.js';
import { holders } from './gpus.js';

// culprit says which part of a node is meant, such as rank 3 (GPU-5, local rank 1).
export function culprit(c) {
  const parts = [c?.rank !== undefined && `rank ${c.rank}`, c?.gpu, c?.local_rank !== undefined && `local rank ${c.local_rank}`].filter(Boolean);
  return parts.length > 1 ? `${parts[0]} (${parts.slice(1).join(', ')})` : parts[0];
}

const SUBJECTS = { group: 'whole group', missing: 'missing nodes', communicator: 'slow communicator', job: 'the job stands still' };

// episodeTitle says in a few words what an episode is about.
export function episodeTitle(e) {
  const what = e.subject === 'node' ? culprit(e.culprit) : SUBJECTS[e.subject] ?? e.subject;
  const why = e.reason ? `${words(e.reason)}${e.observation ? ' (observed)' : ''}` : e.cause ? words(e.cause) : '';
  const how = e.signal ? `${e.signal}${e.gap === undefined ? '' : ` −${percent(e.gap)}`}` : '';
  return [what, why, how].filter(Boolean).join(' · ') || 'no reason given';
}

const fact = (name, value) => value !== undefined && value !== '' && [el('dt', {}, name), el('dd', {}, value)];

function evidence(list, label) {
  return el('div', { className: 'wide', tabIndex: 0, role: 'region', 'aria-label': label }, el('table', { className: 'grid' },
    el('caption', {}, 'Evidence'),
    el('thead', {}, el('tr', {}, ['fact', 'here', 'peers', 'GPU'].map((t) => el('th', { scope: 'col' }, t)))),
    el('tbody', {}, list.map((x) => el('tr', {}, el('td', {}, words(x.fact)), el('td', {}, withUnit(x.value, x.unit)),
      el('td', {}, withUnit(x.peers, x.unit)), el('td', { className: 'id' }, x.gpu ?? ''))))));
}

// episode shows one in full.
export function episode(e) {
  return el('section', { className: 'episode', 'data-open': String(e.open), 'data-level': e.open ? e.severity : undefined },
    el('h4', {}, episodeTitle(e), el('span', { className: 'badge', 'data-level': e.open ? e.severity ?? '' : '' }, e.open ? e.severity || 'open' : 'over')),
    e.text && el('p', {}, e.text),
    el('dl', { className: 'facts' },
      fact('Since', `${clock(e.since)}${e.since_before ? ' or earlier' : ''}`), fact(e.open ? 'So far' : 'Lasted', duration(e.duration_seconds)),
      fact('Confidence', e.confidence === undefined ? undefined : percent(e.confidence)),
      fact('Signal', e.signal && e.value !== undefined ? `${e.signal} ${num(e.value)}, peers ${num(e.median)}` : e.signal),
      fact('Place', e.rank === undefined ? undefined : `${e.rank} of ${e.active ?? '?'} active`),
      fact('GPU hours lost per hour', e.gpu_hours_lost_per_hour === undefined ? undefined : num(e.gpu_hours_lost_per_hour)),
      fact('Held down by', culprit(e.culprit)), fact('GPU', e.gpu), fact('Ran then', holders(e.allocations)), fact('What to do', e.action && words(e.action)), fact('Ended by', e.ended && e.cause && words(e.cause))),
    e.evidence?.length ? evidence(e.evidence, `Evidence since ${clock(e.since)}`) : null);
}
