// SPDX-License-Identifier: Apache-2.0

const SEPARATORS = /[-._/:]/;

// shared returns how many letters all names begin with and end with, up to a separator.
// Of one name nothing is shared.
export function shared(names, separators = SEPARATORS) {
  if (names.length < 2) return { head: 0, tail: 0, begin: '' };
  const [first, ...rest] = names;
  const shortest = names.reduce((n, name) => Math.min(n, name.length), Infinity);
  let head = 0;
  while (head < shortest - 1 && rest.every((n) => n[head] === first[head])) head++;
  while (head > 0 && !separators.test(first[head - 1])) head--;
  let tail = 0;
  const at = (name, i) => name[name.length - 1 - i];
  while (tail < shortest - head - 1 && rest.every((n) => at(n, tail) === at(first, tail))) tail++;
  while (tail > 0 && !separators.test(first[first.length - tail])) tail--;
  return { head, tail, begin: first.slice(0, head) };
}

// PATH separates the parts of a group's name: `stage-0` is one.
export const PATH = /[/]/;

// omit leaves out what a name shares with its neighbours.
export const omit = (name, s) => (s ? name.slice(s.head, name.length - s.tail) || name : name);
