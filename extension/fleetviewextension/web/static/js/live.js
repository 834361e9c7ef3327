// SPDX-License-Identifier: Apache-2.0
import { useCredentials } from './auth.js';
import { listen } from './boot.js';
import { $, setText } from './dom.js';
import { clock } from './format.js';

// Live passes the worker's messages on, and shows whether the page is live.
// handlers.link is told of each change.
export class Live {
  constructor(handlers) {
    this.handlers = handlers;
    this.worker = listen((data) => {
      if (data.type === 'link') this.#link(data);
      else handlers[data.type]?.(data);
    }, () => this.#link({ live: false, last: 0, why: 'a part of the page did not load', credentials: 'omit' }));
  }

  // authorize starts the stream anew with a credential, '' for none.
  authorize(authorization) { this.worker.postMessage({ authorization }); }

  #link({ live, last, why, credentials }) {
    useCredentials(credentials);
    $('link').dataset.state = live ? 'live' : 'stale';
    document.body.classList.toggle('stale', !live && last > 0);
    const until = why || 'reconnecting';
    setText($('link-text'), live ? 'Live' : last ? `Stale since ${clock(last)}, ${until}` : `No answer, ${until}`);
    this.handlers.link(live);
  }
}
