// SPDX-License-Identifier: Apache-2.0

const SEPARATORS = /[-._/:]/;

// shared returns how many letters all names begin with and end with, up to a separator,
// and which words all have at the same place in between. Of one name nothing is shared.
export function shared(names, separators = SEPARATORS) {
  if (names.length < 2) return { head: 0, tail: 0, begin: '', words: [] };
  const [first, ...rest] = names;
  const shortest = names.reduce((n, name) => Math.min(n, name.length), Infinity);
  let head = 0;
  while (head < shortest - 1 && rest.every((n) => n[head] === first[head])) head++;
  while (head > 0 && !separators.test(first[head - 1])) head--;
  let tail = 0;
  const at = (name, i) => name[name.length - 1 - i];
  while (tail < shortest - head - 1 && rest.every((n) => at(n, tail) === at(first, tail))) tail++;
  while (tail > 0 && !separators.test(first[first.length - tail])) tail--;
  const [some, ...others] = names.map((name) => wordsOf(omit(name, { head, tail })));
  return { head, tail, begin: first.slice(0, head), words: some.map((w, i) => (others.every((of) => of[i] === w) ? w : undefined)) };
}

const wordsOf = (name) => name.match(/\p{L}+|\p{N}+|[^\p{L}\p{N}]+/gu) ?? [];

// brief keeps only the first letter of the words that a label shares with its neighbours:
// r1-n1 of rack1-node1.
export const brief = (label, s) => (s ? wordsOf(label).map((w, i) => (s.words[i] === w ? [...w][0] : w)).join('') : label);

// PATH separates the parts of a group's name: `stage-0` is one.
const PATH = /[/]/;

// sharedOf is of groups. A lone one needs no model, its third part, to be told from others.
export function sharedOf(groups) {
  const [job, role, ...model] = groups.length === 1 ? groups[0].split(PATH) : [];
  return { ...shared(groups, PATH), ...(model?.length && { tail: groups[0].length - (role ? `${job}/${role}` : job).length }) };
}

// omit leaves out what a name shares with its neighbours.
export const omit = (name, s) => (s ? name.slice(s.head, name.length - s.tail) || name : name);
