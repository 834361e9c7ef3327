// SPDX-License-Identifier: Apache-2.0
import { el, setText } from './dom.js';
import { describe } from './legend.js';

const AROUND = 3;

// Options is the list that a screen reader reads in place of the canvas: the
// selected node and its neighbours, of a list as long as the map's.
export class Options {
  constructor(box, list) {
    this.box = box;
    this.list = list;
  }

  setLayout(l) {
    this.layout = l;
    this.first = undefined;
  }

  update(fleet, selected) {
    const i = this.layout?.index.get(selected);
    if (i === undefined) {
      this.list.replaceChildren();
      this.box.removeAttribute('aria-activedescendant');
      this.first = undefined;
      return;
    }
    const from = Math.max(0, i - AROUND);
    const to = Math.min(this.layout.keys.length, i + AROUND + 1);
    if (this.first !== from || this.list.children.length !== to - from) {
      this.first = from;
      this.list.replaceChildren(...this.layout.keys.slice(from, to).map((_, k) => el('div', {
        id: `option-${from + k}`, role: 'option', 'aria-setsize': this.layout.keys.length, 'aria-posinset': from + k + 1,
      })));
    }
    for (let k = from; k < to; k++) {
      const option = this.list.children[k - from];
      setText(option, describe(fleet.nodes.get(this.layout.keys[k]), fleet.named.get(this.layout.keys[k])));
      option.setAttribute('aria-selected', k === i);
    }
    this.box.setAttribute('aria-activedescendant', `option-${i}`);
  }
}
