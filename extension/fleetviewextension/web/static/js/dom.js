// SPDX-License-Identifier: Apache-2.0
import { legible } from './format.js';

// el makes an element. Properties are set, not attributes, except those with a
// dash or `role`; text is always text, never markup, and legible: names come from outside.
export function el(tag, props, ...children) {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(props ?? {})) {
    if (v === undefined || v === null || v === false) continue;
    if (k.includes('-') || k === 'role' || k === 'colspan' || k === 'for') e.setAttribute(k, v);
    else e[k] = k === 'title' ? legible(v) : v;
  }
  e.append(...flat(children));
  return e;
}

const flat = (children) => children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false)
  .map((c) => (typeof c === 'string' ? legible(c) : c));

// fill puts children in the place of what an element has.
export function fill(e, ...children) {
  e.replaceChildren(...flat(children));
}

export const $ = (id) => document.getElementById(id);

// setText leaves the DOM alone when nothing changed, so that a live region
// says only what is new.
export function setText(e, text) {
  const plain = legible(text);
  if (e.textContent !== plain) e.textContent = plain;
}

const TAIL = 8;

// middle shows a name that loses its middle where there is no room: how it begins and
// ends tells it from its neighbours.
export function middle(name, whole = name) {
  if ([...name].length <= TAIL + 4) return el('span', { className: 'mid', title: whole }, name);
  const letters = [...name];
  return el('span', { className: 'mid', title: whole },
    el('span', { className: 'mid-head' }, letters.slice(0, -TAIL).join('')), el('span', { className: 'mid-tail' }, letters.slice(-TAIL).join('')));
}
