// SPDX-License-Identifier: Apache-2.0
// Renders the OpenAPI document of this server. Text goes in as text, never as markup.

const el = (tag, attributes = {}, ...children) => {
  const e = Object.assign(document.createElement(tag), attributes);
  e.append(...children.filter((c) => c !== undefined && c !== null));
  return e;
};

const typeOf = (schema) => {
  if (!schema) return '';
  if (schema.$ref) return schema.$ref.split('/').pop();
  const type = [schema.type].flat().filter((t) => t !== 'null').join(' or ');
  if (type === 'array') return `list of ${typeOf(schema.items)}`;
  if (schema.additionalProperties) return `map of ${typeOf(schema.additionalProperties)}`;
  return [type, schema.format].filter(Boolean).join(', ');
};

const limits = (schema = {}) => {
  const of = schema.items ?? schema;
  return [
    of.enum && `one of ${of.enum.join(', ')}`,
    schema.minimum !== undefined && `at least ${schema.minimum}`,
    schema.maximum !== undefined && `at most ${schema.maximum}`,
    schema.maxItems && `at most ${schema.maxItems} values`,
    schema.default !== undefined && `by default ${schema.default}`,
  ].filter(Boolean).join('; ');
};

const row = (...cells) => el('tr', {}, ...cells.map((c) => el('td', {}, c)));

const operation = (path, method, op) => {
  const params = el('table', {}, ...(op.parameters ?? []).map((p) =>
    row(el('code', {}, p.name), p.in, typeOf(p.schema), [p.description, limits(p.schema)].filter(Boolean).join('. '))));
  const answers = Object.entries(op.responses ?? {}).flatMap(([status, response]) =>
    Object.entries(response.content ?? {}).map(([media, content]) =>
      row(status, media, link(typeOf(content.schema)))));
  return el('section', { id: op.operationId },
    el('h3', {}, el('code', {}, `${method.toUpperCase()} ${path}`)),
    el('p', {}, op.summary ?? ''), op.description && el('p', {}, op.description),
    params, el('details', {}, el('summary', {}, 'Answers'), el('table', {}, ...answers)));
};

const link = (name) => (/^[A-Z]/.test(name) ? el('a', { href: `#schema-${name}` }, name) : name);

const schemaSection = ([name, schema]) => el('section', { id: `schema-${name}` },
  el('h3', {}, name),
  el('table', {}, ...Object.entries(schema.properties ?? {}).map(([key, s]) =>
    row(el('code', {}, key), link(typeOf(s)), (schema.required ?? []).includes(key) ? '' : 'optional',
      [s.description, limits(s)].filter(Boolean).join('. ')))));

const main = document.getElementById('api');
try {
  const answer = await fetch('../openapi.json');
  if (!answer.ok) throw new Error(`the server answered ${answer.status}`);
  const api = await answer.json();
  main.replaceChildren(
    el('h1', {}, api.info.title), el('p', {}, `Version ${api.info.version}. ${api.info.description ?? ''}`),
    el('p', {}, el('a', { href: '../openapi.json' }, 'openapi.json'), ' (3.1), ',
      el('a', { href: '../openapi-3.0.json' }, 'openapi-3.0.json')),
    el('h2', {}, 'Operations'),
    ...Object.entries(api.paths).flatMap(([path, item]) =>
      Object.entries(item).map(([method, op]) => operation(path, method, op))),
    el('h2', {}, 'Types'), ...Object.entries(api.components?.schemas ?? {}).map(schemaSection));
} catch (err) {
  main.replaceChildren(el('p', {}, `openapi.json cannot be read: ${err.message}`));
}
