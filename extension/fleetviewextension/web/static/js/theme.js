// SPDX-License-Identifier: Apache-2.0
import { $ } from './dom.js';

const next = { system: 'dark', dark: 'light', light: 'system' };
const names = { system: 'Theme: system', dark: 'Theme: dark', light: 'Theme: light' };
const system = matchMedia('(prefers-color-scheme: dark)');

function stored() {
  try { return localStorage.getItem('theme') ?? 'system'; } catch { return 'system'; }
}

let choice = next[stored()] ? stored() : 'system';

export const theme = () => (choice === 'system' ? (system.matches ? 'dark' : 'light') : choice);

// startTheme calls changed whenever the page turns dark or light.
export function startTheme(changed) {
  const button = $('theme');
  const apply = () => {
    document.documentElement.dataset.theme = theme();
    button.textContent = names[choice];
    changed();
  };
  system.addEventListener('change', apply);
  button.addEventListener('click', () => {
    choice = next[choice];
    try { localStorage.setItem('theme', choice); } catch { /* a browser that stores nothing forgets it */ }
    apply();
  });
  apply();
}
