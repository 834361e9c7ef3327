// SPDX-License-Identifier: Apache-2.0

// The page of the boards' ledger and of silences. It asks when it is told to, and
// watches nothing.
import { authorization, credentials, headers } from './auth.js';
import { $, el, fill, setText } from './dom.js';

async function ask(path, method = 'GET', body = undefined) {
  const head = { ...headers(authorization()), ...(body && { 'Content-Type': 'application/json' }) };
  const r = await fetch(`api/v1/${path}`, { method, cache: 'no-store', credentials: credentials(), headers: head, body: body && JSON.stringify(body) });
  const answer = await r.json().catch(() => ({}));
  if (!r.ok) throw new Error([answer.detail ?? `${r.status} ${r.statusText}`, ...(answer.errors ?? []).map((e) => e.message)].join(': '));
  return answer;
}

// told runs what a person asked for, and says what became of it.
async function told(what, done) {
  try {
    await what();
    setText($('note'), done);
  } catch (err) {
    setText($('note'), `Refused: ${err.message}`);
  }
}

const time = (text) => (text ? new Date(text).toISOString().replace(/\.\d+Z$/, 'Z').replace('T', ' ') : '');
const value = (text) => encodeURIComponent(text.replaceAll(/[\\,]/g, '\\$&'));

async function silences() {
  const { silences: list } = await ask('silences?active=true');
  fill($('silences'), list.map((s) => el('li', {},
    `${s.node ? 'node' : s.job_id ? 'job' : 'group'} ${s.node ?? s.job_id ?? s.group} of ${s.cluster}, until ${time(s.until)}: ${s.reason} (${s.by}) `,
    el('button', { type: 'button', onclick: () => told(async () => { await ask(`silences/${encodeURIComponent(s.id)}`, 'DELETE'); await silences(); }, 'The silence has ended.') }, 'End it'))),
  list.length ? null : el('li', {}, 'Nothing is silenced.'));
}

const table = (caption, head, rows) => el('table', {}, el('caption', {}, caption),
  el('thead', {}, el('tr', {}, head.map((h) => el('th', { scope: 'col' }, h)))),
  el('tbody', {}, rows.map((r) => el('tr', {}, r.map((c) => el('td', {}, c ?? ''))))));

const what = (e) => [e.xid && `Xid ${e.xid}`, e.count > 1 && `${e.count} times`, e.text, (e.from || e.to) && `${e.from ?? '-'} to ${e.to ?? '-'}`, e.severity, e.signal,
  e.test && `${e.test}, exit ${e.exit_code}`, e.rma_number, e.reason, e.action, e.outcome, e.whole_node && 'of the whole node'].filter(Boolean).join(', ');

const counters = [['remapped_rows_corrected', 'remapped rows, corrected'], ['remapped_rows_uncorrected', 'remapped rows, uncorrected'], ['ecc_corrected', 'ECC errors, corrected'],
  ['ecc_uncorrected', 'ECC errors, uncorrected'], ['retired_pages_single_bit', 'retired pages, single bit'], ['retired_pages_double_bit', 'retired pages, double bit']];
const counted = (b) => [...counters.map(([key, name]) => b.counters[key] !== undefined && `${name}: ${b.counters[key]}`), ...b.xids.map((x) => `Xid ${x.code}: ${x.count}`)].filter(Boolean);

const board = (b) => el('article', {}, el('h3', {}, `${b.uuid} · serial ${b.serial ?? 'unknown'} · ${b.cluster}`),
  el('p', {}, [b.model, b.part_number, b.vbios, b.inforom].filter(Boolean).join(' · ')),
  counted(b).length ? el('p', {}, counted(b).join(' · ')) : null,
  table('Places', ['From', 'To', 'Node', 'Slot', 'Index', 'Module', 'Replaced by'], b.places.map((p) => [time(p.from), time(p.to) || 'now', p.node, p.slot, p.index, p.module, p.replaced_by])),
  b.entries.length ? table('History', ['At', 'Kind', 'Node', 'By', 'What'], b.entries.map((e) => [time(e.at), e.kind, e.node, e.by, what(e)])) : el('p', {}, 'Nothing has happened to it.'));

async function boards(name) {
  const queries = name ? ['uuid', 'serial', 'node'].map((k) => `boards?entries=true&${k}=${value(name)}`) : ['boards?entries=true'];
  for (const q of queries) {
    const page = await ask(q);
    if (page.boards.length) {
      fill($('boards'), el('p', {}, `${page.boards.length} of ${page.total}`), page.boards.map(board));
      return;
    }
  }
  fill($('boards'), el('p', {}, name ? `No board, serial number or node ${name} is known.` : 'No board has been reported yet.'));
}

$('silence').addEventListener('submit', (event) => {
  event.preventDefault();
  const f = new FormData(event.target);
  const until = new Date(Date.now() + Number(f.get('hours')) * 3_600_000).toISOString();
  told(async () => {
    await ask('silences', 'POST', { cluster: f.get('cluster'), [f.get('kind')]: f.get('name'), reason: f.get('reason'), until });
    await silences();
  }, 'Silenced.');
});
$('find').addEventListener('submit', (event) => {
  event.preventDefault();
  told(() => boards(new FormData(event.target).get('name').trim()), '');
});
// The fragment names a board or a node: the fleet's page links to one.
const named = () => decodeURIComponent(location.hash.slice(1));
function find() {
  $('find').elements.name.value = named();
  return boards(named());
}
addEventListener('hashchange', () => told(find, ''));
told(() => Promise.all([silences(), find()]), '');
