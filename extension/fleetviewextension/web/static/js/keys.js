// SPDX-License-Identifier: Apache-2.0
import { $ } from './dom.js';

const ARROWS = ['ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown'];

// startKeys are the keys that work everywhere on the page.
export function startKeys({ close, help }) {
  addEventListener('keydown', (e) => {
    if (e.altKey || e.ctrlKey || e.metaKey || e.defaultPrevented) return;
    // A dialog has keys of its own.
    if (document.querySelector('dialog[open]')) return;
    const focused = document.activeElement;
    const typing = focused?.matches('select, input:not([type=radio])');
    if (e.key === '/' && !typing) {
      e.preventDefault();
      $('search').select();
      $('search').focus();
    } else if (e.key === '?' && !typing) {
      e.preventDefault();
      help();
    } else if (ARROWS.includes(e.key) && (!focused || focused === document.body)) {
      // Nobody has to find the map with the pointer first.
      e.preventDefault();
      $('scroll').focus();
      $('scroll').dispatchEvent(new KeyboardEvent('keydown', { key: e.key, bubbles: false }));
    } else if (e.key === 'Escape') {
      const search = $('search');
      if (focused === search && search.value) {
        e.preventDefault();
        search.value = '';
        search.dispatchEvent(new Event('input', { bubbles: true }));
      } else if (typing) {
        $('scroll').focus();
      } else {
        close();
      }
    } else if (e.key === 'Enter' && focused === $('search')) {
      e.preventDefault();
      $('scroll').focus();
    }
  });
}
