// SPDX-License-Identifier: Apache-2.0

import { authorization, credentials, headers } from './auth.js';

// Paths are relative, so that the page also works below a proxy's prefix.
async function get(path, query, signal) {
  const q = new URLSearchParams(Object.entries(query ?? {}).filter(([, v]) => v !== undefined && v !== ''));
  const credential = authorization();
  const r = await fetch(`api/v1/${path}${q.size ? `?${q}` : ''}`, { signal, cache: 'no-store', credentials: credentials(), headers: headers(credential) });
  if (r.ok) return r.json();
  if (r.status === 401) dispatchEvent(new CustomEvent('refused', { detail: { challenge: r.headers.get('WWW-Authenticate') ?? '', tried: credential } }));
  const problem = await r.json().catch(() => ({}));
  throw Object.assign(new Error(problem.detail ?? `${r.status} ${r.statusText}`), { status: r.status });
}

// one makes a value of a parameter that takes several, separated by commas.
const one = (v) => v?.replaceAll(/[\\,]/g, '\\$&');

export const getNode = (n, signal) => get(`nodes/${encodeURIComponent(n.node)}`, { cluster: n.cluster }, signal);
export const getHealth = (signal) => get('health', null, signal);
export const getStragglers = ({ cluster, group }, signal) => get('stragglers', { limit: 15, cluster: one(cluster), group: one(group) }, signal);

export async function getEpisodes(n, signal) {
  return (await get('episodes', { cluster: one(n.cluster), node: one(n.node), page_size: 20 }, signal)).episodes;
}

// getPast returns the recorded samples of a node's score and signals, oldest
// first: at most five pages of the newest.
export async function getPast(n, signal) {
  const samples = [];
  for (let page = 1; page <= 5; page++) {
    const r = await get('telemetry', {
      cluster: one(n.cluster), host: one(n.node), page, page_size: 1000,
      metric: 'gpu.node.health_score,gpu.node.signal,gpu.agent.threshold',
    }, signal);
    samples.push(...r.samples);
    if (!r.more) break;
  }
  return samples.reverse();
}
