// SPDX-License-Identifier: Apache-2.0
import { el } from './dom.js';
import { clock, duration, num, percent, withUnit, words } from './format.js';

// culprit says which part of a node is meant, such as rank 3 (GPU 5, GPU-0f3a, serial 1652, local rank 1).
export function culprit(c) {
  const parts = [c?.rank !== undefined && `rank ${c.rank}`, c?.index !== undefined && `GPU ${c.index}`, c?.gpu, c?.serial && `serial ${c.serial}`, c?.local_rank !== undefined && `local rank ${c.local_rank}`].filter(Boolean);
  return parts.length > 1 ? `${parts[0]} (${parts.slice(1).join(', ')})` : parts[0];
}

// communicator names whose links are slow.
function communicator(c, job) {
  return [c.count === 1 ? `communicator ${c.name || c.ids[0]}` : `${c.count} communicators`, job && `job ${job}`, c.faulty_node].filter(Boolean).join(', ');
}

// episodeTitle says in a few words what an episode is about.
export function episodeTitle(e) {
  const what = e.subject === 'node' ? culprit(e.culprit) : e.subject === 'missing' ? 'missing nodes' : e.communicator ? communicator(e.communicator, e.job) : e.subject === 'job' ? `job ${e.job} stands still` : `whole ${e.subject}`;
  const why = e.reason ? `${words(e.reason)}${e.observation ? ' (observed)' : ''}` : e.cause ? words(e.cause) : '';
  const where = e.topology ? `${e.topology.labels.map((l) => l.replace('=', ' ')).join(', ')}: ${e.topology.nodes} of ${e.topology.nodes_total} nodes` : '';
  const how = e.signal ? `${e.signal}${e.gap === undefined ? '' : ` −${percent(e.gap)}`}` : '';
  return [where || what, why, how].filter(Boolean).join(' · ') || 'no reason given';
}

// pods names those that lose by an episode, as the first of several containers of a pod does.
export const pods = (list) => [...new Set((list ?? []).map((p) => `${p.namespace}/${p.pod}`))].join(', ');

const fact = (name, value) => value !== undefined && value !== '' && [el('dt', {}, name), el('dd', {}, value)];

function evidence(list) {
  return el('div', { className: 'wide', tabIndex: 0, role: 'region', 'aria-label': 'Evidence' }, el('table', { className: 'grid' },
    el('caption', {}, 'Evidence'),
    el('thead', {}, el('tr', {}, ['fact', 'here', 'peers', 'GPU'].map((t) => el('th', { scope: 'col' }, t)))),
    el('tbody', {}, list.map((x) => el('tr', {}, el('td', {}, words(x.fact)), el('td', {}, withUnit(x.value, x.unit)),
      el('td', {}, withUnit(x.peers, x.unit)), el('td', { className: 'id' }, x.gpu ?? ''))))));
}

// episode shows one in full.
export function episode(e) {
  return el('section', { className: 'episode', 'data-open': String(e.open) },
    el('h4', {}, episodeTitle(e), el('span', { className: 'badge', 'data-level': e.severity ?? '' }, e.open ? e.severity || 'open' : 'over')),
    e.text && el('p', {}, e.text),
    el('dl', { className: 'facts' },
      fact('Since', clock(e.since)), fact(e.open ? 'So far' : 'Lasted', duration(e.duration_seconds)),
      fact('Confidence', e.confidence === undefined ? undefined : percent(e.confidence)),
      fact('Signal', e.signal && e.value !== undefined ? `${e.signal} ${num(e.value)}, peers ${num(e.median)}` : e.signal),
      fact('Place', e.rank === undefined ? undefined : `${e.rank} of ${e.active ?? '?'} active`),
      fact('GPU hours lost per hour', e.gpu_hours_lost_per_hour === undefined ? undefined : num(e.gpu_hours_lost_per_hour)),
      fact('Costs the job', e.job_slowdown === undefined ? undefined : percent(1 - 1 / e.job_slowdown)),
      fact('GPU hours lost', e.gpu_hours_lost === undefined ? undefined : num(e.gpu_hours_lost)),
      fact('Waits for', e.laggards?.join('; ')),
      fact('Job', e.job_id), fact('Pods', pods(e.pods)),
      fact('Held down by', culprit(e.culprit)), fact('GPU', e.gpu), fact('What to do', e.action && words(e.action)), fact('Ended by', e.ended && e.cause && words(e.cause))),
    e.evidence?.length ? evidence(e.evidence) : null);
}
