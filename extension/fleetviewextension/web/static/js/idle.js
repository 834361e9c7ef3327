// SPDX-License-Identifier: Apache-2.0

// The page of pods that hold GPUs and do not use them, by pod and by job.
import { getIdlePods } from './api.js';
import { $, el, fill, setText } from './dom.js';
import { clock, duration, heardAt, num } from './format.js';
import { middle } from './names.js';
import { startTheme } from './theme.js';

const EVERY = 5000; // ms
const MOST = 1000; // pods, a page of the API
const SPANS = { 10: '10 minutes', 30: '30 minutes', 60: '1 hour', 120: '2 hours', 1440: '1 day' };

const NO_JOB = 'no job';
const keyOf = (cluster, job) => JSON.stringify([cluster, job]);
const jobOf = (p) => keyOf(p.cluster, p.job_id ?? '');

// wanted is what the tools select; job is a key, '' for all.
const wanted = { minutes: '10', job: '', search: '' };
let list; // undefined until the gateway has answered
let failed = '';

const many = (n, one) => `${n.toLocaleString('en')} ${one}${n === 1 ? '' : 's'}`;
const hours = (v) => `${num(v)} GPU-h so far`;
const several = () => new Set(list.jobs.map((j) => j.cluster)).size > 1;
const jobName = (j) => `${j.job_id || NO_JOB}${several() ? ` in ${j.cluster}` : ''}`;

// The search is for what is written in a row.
const matches = (...texts) => texts.some((t) => t?.toLowerCase().includes(wanted.search));
const pods = () => list.pods.filter((p) => (!wanted.job || jobOf(p) === wanted.job) && matches(`${p.namespace}/${p.pod}`, p.node, p.job_id));

// longest is the GPU that has been idle for the longest time.
const longest = (gpus) => gpus.reduce((a, b) => (b.idle_seconds > a.idle_seconds ? b : a));

function pod(p) {
  const g = longest(p.gpus);
  const link = el('a', { className: 'row item', href: `./#${new URLSearchParams({ in: p.cluster, node: p.node })}`, title: `Open ${p.node}` },
    el('span', { className: 'main' }, el('b', { className: 'who' }, middle(`${p.namespace}/${p.pod}`)), el('span', { className: 'badge' }, `${p.gpus.length} of ${many(p.gpus_held, 'GPU')}`)),
    el('span', { className: 'what' }, el('span', { className: 'kind' }, `GPU ${p.gpus.map((x) => x.index ?? x.uuid).join(', ')} of `), p.node, several() && ` in ${p.cluster}`, el('span', { className: 'kind' }, ` · ${p.job_id ? `job ${p.job_id}` : NO_JOB}`)),
    el('span', { className: 'sub main' }, el('span', {}, `idle since ${clock(g.since)}${g.since_before ? ' or earlier' : ''} (${duration(g.idle_seconds)})`), el('span', { className: 'cost' }, hours(p.gpu_hours_idle))));
  link.dataset.key = JSON.stringify([p.cluster, p.node, p.namespace, p.pod]);
  return el('li', {}, link);
}

function job(j) {
  const key = keyOf(j.cluster, j.job_id);
  const button = el('button', { type: 'button', className: 'row item', 'aria-pressed': String(wanted.job === key), onclick: () => only(wanted.job === key ? '' : key) },
    el('span', { className: 'main' }, el('b', { className: 'who' }, middle(jobName(j))), el('span', { className: 'badge' }, many(j.gpus_idle, 'GPU'))),
    el('span', { className: 'sub main' }, el('span', {}, many(j.pods, 'pod')), el('span', { className: 'cost' }, hours(j.gpu_hours_idle))));
  button.dataset.key = key;
  return el('li', {}, button);
}

// rows fills a list. One that is rebuilt under the keyboard keeps its focus.
function rows(box, items, nothing) {
  const focused = box.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  fill(box, items.length ? el('ol', { className: 'rows' }, items) : el('p', { className: list ? 'well' : 'none' }, nothing));
  if (focused !== undefined) [...box.querySelectorAll('.row')].find((r) => r.dataset.key === focused)?.focus({ preventScroll: true });
}

function draw() {
  setText($('link-text'), failed || (list ? 'Live' : 'Connecting'));
  $('link').dataset.state = failed ? 'stale' : list ? 'live' : 'connecting';
  if (!list) {
    const waits = failed || 'Waiting for the gateway’s first answer …';
    rows($('jobs'), [], waits);
    rows($('pods'), [], waits);
    return;
  }
  choices();
  const shown = pods();
  const jobs = list.jobs.filter((j) => matches(j.job_id || NO_JOB) || shown.some((p) => jobOf(p) === keyOf(j.cluster, j.job_id)));
  const none = list.total === 0 ? `No pod holds a GPU that has been idle for ${SPANS[wanted.minutes]}. Pods are known where agents ask the kubelet (hw.gpu.allocation).` : 'Nothing is as asked for.';
  rows($('jobs'), jobs.map(job), none);
  rows($('pods'), shown.map(pod), none);
  setText($('jobs-count'), jobs.length ? String(jobs.length) : '');
  setText($('pods-count'), shown.length ? String(shown.length) : '');
  const more = list.total - list.pods.length;
  const gpus = shown.reduce((n, p) => n + p.gpus.length, 0);
  setText($('shown'), [shown.length ? `${many(gpus, 'GPU')}, ${hours(shown.reduce((n, p) => n + p.gpu_hours_idle, 0))}` : '', more > 0 ? `${many(more, 'more pod')}: ask api/v1/pods/idle` : ''].filter(Boolean).join(', and '));
}

// choices offers the jobs of the answer, and the one that is looked at.
function choices() {
  const select = $('job');
  const values = [['', 'all'], ...list.jobs.map((j) => [keyOf(j.cluster, j.job_id), jobName(j)])];
  if (wanted.job && !values.some(([v]) => v === wanted.job)) values.push([wanted.job, JSON.parse(wanted.job)[1] || NO_JOB]);
  const text = JSON.stringify(values);
  if (select.dataset.list !== text) {
    select.dataset.list = text;
    select.replaceChildren(...values.map(([value, label]) => el('option', { value }, label)));
  }
  select.value = wanted.job;
}

let asking = false;
let again = false;
async function ask() {
  if (document.hidden) return;
  if (asking) { again = true; return; }
  asking = true;
  try {
    const answer = await getIdlePods({ minutes: wanted.minutes, limit: MOST });
    heardAt(Date.parse(answer.at), !list);
    list = answer;
    failed = '';
  } catch (err) {
    failed = err.status === 401 ? 'The gateway wants a login: log in on the fleet’s page' : err.status ? err.message : 'The gateway does not answer';
  }
  asking = false;
  draw();
  if (again) { again = false; ask(); }
}

// The address keeps what is looked at, so that it can be sent to somebody.
function remember() {
  const q = new URLSearchParams(Object.entries(wanted).filter(([k, v]) => v && !(k === 'minutes' && v === '10')));
  history.replaceState(null, '', q.size ? `#${q}` : location.pathname + location.search);
}

// key accepts only what keyOf makes.
function key(text) {
  try {
    const pair = JSON.parse(text);
    return Array.isArray(pair) && pair.length === 2 && pair.every((s) => typeof s === 'string') ? keyOf(...pair) : '';
  } catch { return ''; }
}

function recall() {
  const q = new URLSearchParams(location.hash.slice(1));
  wanted.minutes = Object.hasOwn(SPANS, q.get('minutes')) ? q.get('minutes') : '10';
  wanted.job = key(q.get('job'));
  wanted.search = (q.get('search') ?? '').toLowerCase();
  $('minutes').value = wanted.minutes;
  $('search').value = wanted.search;
}

function only(job) {
  wanted.job = job;
  remember();
  draw();
}

$('minutes').append(...Object.entries(SPANS).map(([value, label]) => el('option', { value }, label)));
recall();
$('tools').addEventListener('submit', (e) => e.preventDefault());
$('tools').addEventListener('input', () => {
  const span = wanted.minutes;
  Object.assign(wanted, { minutes: $('minutes').value, job: $('job').value, search: $('search').value.trim().toLowerCase() });
  remember();
  if (list) draw();
  if (span !== wanted.minutes) ask();
});
addEventListener('hashchange', () => { recall(); draw(); ask(); });
addEventListener('visibilitychange', ask);
addEventListener('keydown', (e) => {
  if (e.altKey || e.ctrlKey || e.metaKey || e.defaultPrevented) return;
  const focused = document.activeElement;
  const typing = /^(INPUT|SELECT)$/.test(focused?.tagName ?? '');
  const by = { ArrowDown: 1, ArrowUp: -1 }[e.key];
  if (by && !typing) {
    // From nowhere the arrows lead into the pods.
    const box = focused?.closest('.list') ?? $('pods');
    const all = [...box.querySelectorAll('.row')];
    if (!all.length) return;
    e.preventDefault();
    all[Math.min(all.length - 1, Math.max(0, all.indexOf(focused) + by))].focus();
  } else if (e.key === '/' && !typing) {
    e.preventDefault();
    $('search').select();
    $('search').focus();
  } else if (e.key === 'Escape' && (wanted.job || wanted.search)) {
    $('search').value = wanted.search = '';
    only('');
  }
});
startTheme(() => {});
draw();
ask();
setInterval(ask, EVERY);
