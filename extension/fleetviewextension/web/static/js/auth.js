// SPDX-License-Identifier: Apache-2.0

// The `Authorization` of every request, for gateways with an authenticator. It
// is kept for this tab, until it is closed; by path too, since a proxy may have
// several gateways under one origin.
const KEY = `authorization ${new URL('../', import.meta.url).pathname}`;

function stored() {
  try { return sessionStorage.getItem(KEY) ?? ''; } catch { return ''; }
}

let value = stored();

export const authorization = () => value;

// outdated reports whether another login was entered after a request began, be it the same.
let entered = 0;
export const outdated = (began) => value !== '' && began < entered;

export function keep(credential) {
  value = credential;
  entered = performance.now();
  try {
    if (value) sessionStorage.setItem(KEY, value);
    else sessionStorage.removeItem(KEY);
  } catch { /* a browser that stores nothing forgets it with the page */ }
}

// headers are those that a credential adds to a request.
export const headers = (credential) => (credential ? { Authorization: credential } : {});

// Cookies are sent only where it does not go without, as behind a proxy with a
// login of its own: on a refusal of a request that may have them, Basic makes
// the browser ask in a window of its own.
let cookies = 'omit';
export const credentials = () => cookies;
export function useCredentials(mode) { cookies = mode; }

// RFC 6750, section 2.1: what a token may be made of.
const TOKEN = /^[A-Za-z0-9._~+/-]+=*$/;

// bearer returns '' for what can be no token.
export function bearer(token) {
  const t = token.trim().replace(/^bearer\s+/i, '');
  return TOKEN.test(t) ? `Bearer ${t}` : '';
}

// basic is RFC 7617's, in UTF-8.
export const basic = (user, password) => `Basic ${btoa(String.fromCharCode(...new TextEncoder().encode(`${user}:${password}`)))}`;

// schemes are what a 401 says would be taken; the Collector's own server says nothing.
export function schemes(challenge) {
  const has = (name) => new RegExp(`(^|,)\\s*${name}(\\s|,|$)`, 'i').test(challenge ?? '');
  return { bearer: has('Bearer'), basic: has('Basic') };
}
