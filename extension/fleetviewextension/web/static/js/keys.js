// SPDX-License-Identifier: Apache-2.0
import { $ } from './dom.js';

// startKeys are the keys that work everywhere on the page.
export function startKeys({ close }) {
  addEventListener('keydown', (e) => {
    if (e.altKey || e.ctrlKey || e.metaKey || e.defaultPrevented) return;
    // A dialog has keys of its own.
    if (document.querySelector('dialog[open]')) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(document.activeElement?.tagName ?? '');
    if (e.key === '/' && !typing) {
      e.preventDefault();
      $('search').select();
      $('search').focus();
    } else if (e.key === 'Escape') {
      const search = $('search');
      if (document.activeElement === search && search.value) {
        e.preventDefault();
        search.value = '';
        search.dispatchEvent(new Event('input', { bubbles: true }));
      } else if (typing) {
        $('scroll').focus();
      } else {
        close();
      }
    } else if (e.key === 'Enter' && document.activeElement === $('search')) {
      e.preventDefault();
      $('scroll').focus();
    }
  });
}
