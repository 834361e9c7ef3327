// SPDX-License-Identifier: Apache-2.0
import { el } from './dom.js';
import { celsius, clock, fixed, gib, mega, NONE, num, percent, words } from './format.js';

const of = (a, b) => (a === NONE || b === NONE ? a : `${a} / ${b}`);

// holders says who holds a GPU, such as job 1234, or ml/train-0.
export const holders = (list) => (list ?? []).map((a) => (a.job ? `job ${a.job}` : [a.namespace, a.pod].filter(Boolean).join('/'))).join(', ');

// down says why a GPU does not answer, and when it last did.
const down = (g) => `${words(g.up_reason)}${g.down_since ? `, last seen ${clock(g.down_since)}` : ''}`;

// columns are those of the table of GPUs.
export const columns = [
  ['GPU', (g) => `${g.index ?? '–'}${g.parent ? ' MIG' : ''}`],
  ['health', (g) => (g.up === false ? `${{ degraded: '◆ ', unhealthy: '◆ ' }[g.health] ?? ''}down: ${down(g)}` : `${g.health === 'degraded' || g.health === 'unhealthy' ? '◆ ' : ''}${g.health}${g.health_score === undefined ? '' : ` ${num(g.health_score)}`}`)],
  ['held by', (g) => holders(g.allocations) || NONE],
  ['temp', (g) => celsius(g.temperature_celsius)],
  ['power W', (g) => of(num(g.power_watts), num(g.power_limit_watts))],
  ['util', (g) => percent(g.utilization)],
  ['tensor', (g) => percent(g.tensor_activity)],
  ['SM MHz', (g) => of(mega(g.sm_clock_hertz), mega(g.sm_clock_limit_hertz))],
  ['memory GiB', (g) => of(gib(g.memory_used_bytes), gib(g.memory_limit_bytes))],
  ['ECC c / u', (g) => of(num(g.ecc_errors?.corrected), num(g.ecc_errors?.uncorrected))],
  ['Xids', (g) => (g.xids ?? []).map((x) => `${x.code}${x.count > 1 ? `×${num(x.count)}` : ''}`).join(', ') || NONE],
  ['throttled by', (g) => (g.throttle_reasons ?? []).map(words).join(', ') || NONE],
  ['model', (g) => g.model ?? NONE],
  ['UUID', (g) => g.uuid],
];

// gpuTable shows the GPUs of a node, without empty columns. named has the severity of those
// that are named, by UUID.
export function gpuTable(gpus, named = new Map()) {
  const used = columns.filter(([, f]) => gpus.some((g) => f(g) !== NONE));
  return el('div', { className: 'wide', tabIndex: 0, role: 'region', 'aria-label': 'Table of GPUs' }, el('table', { className: 'grid' },
    el('thead', {}, el('tr', {}, used.map(([name]) => el('th', { scope: 'col' }, name)))),
    el('tbody', {}, gpus.map((g) => {
      const level = named.get(g.parent ?? g.uuid);
      return el('tr', { 'data-health': g.up === false ? 'down' : g.health, 'data-named': level, title: level && 'What needs attention names this GPU' },
        used.map(([name, f]) => el('td', { className: name === 'UUID' ? 'id' : '' }, name === 'GPU' && level ? `▸ ${f(g)}` : f(g))));
    }))));
}

// healthReasons lists what holds GPUs down and what to do, for those that have any.
export function healthReasons(gpus) {
  const asks = (g) => g.recovery_action && g.recovery_action !== 'none';
  const sick = gpus.filter((g) => g.reasons?.length || asks(g) || g.up === false);
  if (sick.length === 0) return el('p', { className: 'none' }, 'Nothing holds a GPU’s health down.');
  return el('ul', { className: 'reasons' }, sick.map((g) => el('li', {},
    el('b', {}, g.index === undefined ? g.uuid : `GPU ${g.index}`), ` ${g.up === false ? `does not answer: ${words(g.up_reason)}` : `${g.health}${g.health_score === undefined ? '' : `, ${fixed(g.health_score, 0)} of 100`}`}`,
    (g.reasons ?? []).map((r) => el('div', {}, words(r.reason), r.action && r.action !== 'none' && el('span', { className: 'act' }, ` → ${words(r.action)}`))),
    asks(g) && el('div', {}, `the driver asks for: ${words(g.recovery_action)}`))));
}
