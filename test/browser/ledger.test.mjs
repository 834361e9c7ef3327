// SPDX-License-Identifier: Apache-2.0

// The page of boards and silences, over the demo, with an authenticator and without.
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { demo, freePort, launch, withPage } from './harness.mjs';

const auth = 'extensions: {basicauth: {htpasswd: {inline: "ann:secret"}}, fleet_view: {http: {auth: {authenticator: basicauth}}}}\nservice: {extensions: [basicauth, straggler_threshold/agent, straggler_threshold/gateway, exposition, fleet_view]}';

let browser;
let open;
let guarded;
let otlp;
before(async () => {
  otlp = await freePort();
  const http = `receivers: {otlp: {protocols: {http: {endpoint: "127.0.0.1:${otlp}"}}}}`;
  [browser, open, guarded] = await Promise.all([launch(), demo(undefined, http), demo(undefined, auth)]);
});
after(async () => { await browser?.close(); await open?.stop(); await guarded?.stop(); });

async function silence(page) {
  await page.fill('#silence [name=cluster]', 'demo');
  await page.fill('#silence [name=name]', 'n,1');
  await page.fill('#silence [name=reason]', '<b>psu</b>');
  await page.click('#silence button');
}

test('without an authenticator nobody writes', () => withPage(browser, `${open.url}ledger.html`, { unpainted: true }, async (page) => {
  await silence(page);
  await page.locator('#note', { hasText: 'set `http::auth`' }).waitFor();
  await page.locator('#silences li', { hasText: 'Nothing is silenced.' }).waitFor();
}, ['403']));

// The login is that of the fleet's page, for this tab.
const login = `Basic ${btoa('ann:secret')}`;
test('a person silences a node and ends that', () => withPage(browser, `${guarded.url}ledger.html`, { unpainted: true }, async (page) => {
  await page.evaluate((v) => sessionStorage.setItem('authorization /', v), login);
  await page.reload();
  await silence(page);
  await page.locator('#silences li', { hasText: 'node n,1 of demo' }).waitFor();
  const text = await page.locator('#silences li').first().textContent();
  assert.match(text, /<b>psu<\/b> \(ann\)/, 'text is text');
  await page.reload();
  await page.locator('#silences button').click();
  await page.locator('#note', { hasText: 'The silence has ended.' }).waitFor();
  await page.locator('#silences li', { hasText: 'Nothing is silenced.' }).waitFor();
}, ['401']));

// report tells of a node with one GPU; the demo's own nodes have none.
async function report(node, uuid) {
  const attributes = (list) => Object.entries(list).map(([key, value]) => ({ key, value: { stringValue: value } }));
  const gauge = (name, more) => ({ name, unit: '1', gauge: { dataPoints: [
    { timeUnixNano: `${Date.now()}000000`, asInt: '1', attributes: attributes({ 'hw.id': uuid, 'hw.type': 'gpu', ...more }) }] } });
  const metrics = [gauge('hw.gpu.info', { 'hw.serial_number': `s-${uuid}` }), gauge('hw.gpu.health.state', { state: 'healthy' }),
    { ...gauge('hw.gpu.memory.remapped_rows', { cause: 'uncorrected' }), unit: '{row}' }];
  const resource = { attributes: attributes({ 'k8s.cluster.name': 'demo', 'host.name': node }) };
  const body = JSON.stringify({ resourceMetrics: [{ resource, scopeMetrics: [{ metrics }] }] });
  const r = await fetch(`http://127.0.0.1:${otlp}/v1/metrics`, { method: 'POST', headers: { 'Content-Type': 'application/json' }, body });
  assert.equal(r.status, 200, await r.text());
}

test('the fleet’s page leads to the boards, and a node’s panel to its own', () => withPage(browser, open.url, { unpainted: true }, async (page) => {
  page.setDefaultTimeout(30_000);
  await report('g1', 'GPU-a,1');
  await report('g2', 'GPU-b');
  await page.locator('header a', { hasText: 'Boards' }).click();
  await page.locator('h1', { hasText: 'Boards and silences' }).waitFor();
  await page.locator('#boards article').nth(1).waitFor();

  await page.goto(`${open.url}#${new URLSearchParams({ in: 'demo', node: 'g1' })}`);
  await page.locator('#panel td.id a').click();
  await page.locator('#boards p', { hasText: '1 of 1' }).waitFor();
  assert.match(await page.locator('#boards article h3').textContent(), /^GPU-a,1 · serial s-GPU-a,1 · demo$/);
  assert.equal(await page.inputValue('#find [name=name]'), 'GPU-a,1');
  await page.locator('#boards p', { hasText: 'remapped rows, uncorrected: 1' }).waitFor();
  assert.deepEqual(await page.locator('#boards table').first().locator('th').allTextContents(), ['From', 'To', 'Node', 'Slot', 'Index', 'Module', 'Replaced by']);
}));
