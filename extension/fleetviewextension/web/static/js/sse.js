// SPDX-License-Identifier: Apache-2.0

// Events reads the text of an event stream
// (https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation)
// as it comes, in pieces of any length. An EventSource would, but sends no
// `Authorization` and keeps comments, the server's signs of life, to itself.
// Lines end in LF or CRLF; the server's end in LF.
export class Events {
  #line = []; // the pieces of a line whose end has not come
  #name = '';
  #data = [];

  // handle is called with the name and the data of each event.
  constructor(handle) { this.handle = handle; }

  push(text) {
    let from = 0;
    for (let end; (end = text.indexOf('\n', from)) >= 0; from = end + 1) {
      this.#line.push(text.slice(from, end));
      const line = this.#line.join('');
      this.#line = [];
      this.#take(line.endsWith('\r') ? line.slice(0, -1) : line);
    }
    if (from < text.length) this.#line.push(text.slice(from));
  }

  #take(line) {
    if (line === '') {
      const [name, data] = [this.#name || 'message', this.#data];
      this.#name = '';
      this.#data = [];
      if (data.length) this.handle(name, data.join('\n'));
      return;
    }
    const colon = line.indexOf(':');
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? '' : line.slice(colon + (line[colon + 1] === ' ' ? 2 : 1));
    if (field === 'data') this.#data.push(value);
    else if (field === 'event') this.#name = value;
  }
}
