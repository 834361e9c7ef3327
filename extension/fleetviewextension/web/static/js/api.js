// SPDX-License-Identifier: Apache-2.0

import { authorization, credentials, headers, outdated } from './auth.js';

// Paths are relative, so that the page also works below a proxy's prefix.
async function get(path, query, signal) {
  const q = new URLSearchParams(Object.entries(query ?? {}).filter(([, v]) => v !== undefined && v !== ''));
  const credential = authorization();
  const began = performance.now();
  const r = await fetch(`api/v1/${path}${q.size ? `?${q}` : ''}`, { signal, cache: 'no-store', credentials: credentials(), headers: headers(credential) });
  if (r.ok) return r.json();
  // A late refusal says nothing of a newer login.
  if (r.status === 401 && outdated(began)) return get(path, query, signal);
  if (r.status === 401) dispatchEvent(new CustomEvent('refused', { detail: { challenge: r.headers.get('WWW-Authenticate') ?? '', tried: credential } }));
  const problem = await r.json().catch(() => ({}));
  throw Object.assign(new Error(problem.detail ?? `${r.status} ${r.statusText}`), { status: r.status });
}

// one makes a value of a parameter that takes several, separated by commas.
const one = (v) => v?.replaceAll(/[\\,]/g, '\\$&');

export const getNode = (n, signal) => get(`nodes/${encodeURIComponent(n.node)}`, { cluster: n.cluster }, signal);
export const getHealth = (signal) => get('health', null, signal);
export const getAttention = ({ cluster, group, node, ...more }, signal) => get('attention', { cluster: one(cluster), group: one(group), node: one(node), ...more }, signal);

// everyPage joins the pages of the list of that name; ask asks for the one after a cursor.
export async function everyPage(name, ask) {
  const all = [];
  for (let after = ''; after !== undefined;) {
    const answer = await ask(after);
    all.push(...answer[name]);
    after = answer.next;
  }
  return all;
}

export async function getEpisodes(n, signal) {
  return (await get('episodes', { cluster: one(n.cluster), node: one(n.node), limit: 20 }, signal)).episodes;
}

// getPast returns what is recorded of a node and its peers in the span, {since, until}.
export const getPast = (n, span, signal) => get(`nodes/${encodeURIComponent(n.node)}/past`, { cluster: n.cluster, ...span }, signal);
