// SPDX-License-Identifier: Apache-2.0
import { listen } from './boot.js';
import { $, setText } from './dom.js';
import { clock } from './format.js';

// Live passes the worker's messages on, and shows whether the page is live.
export class Live {
  constructor(handlers) {
    this.worker = listen((data) => {
      if (data.type === 'link') this.#link(data);
      else handlers[data.type]?.(data);
    }, () => this.#link({ live: false, last: 0 }));
  }

  // watch names the node to hear everything about, '' for none.
  watch(key) { this.worker.postMessage({ open: key }); }

  #link({ live, last }) {
    $('link').dataset.state = live ? 'live' : 'stale';
    document.body.classList.toggle('stale', !live && last > 0);
    setText($('link-text'), live ? 'Live' : last ? `Stale since ${clock(last)}, reconnecting` : 'No answer, reconnecting');
  }
}
