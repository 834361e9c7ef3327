// SPDX-License-Identifier: Apache-2.0

// The page in front of a gateway that wants a credential.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { axe, bigFleet, demo, launch, painted, patient, root, withPage } from './harness.mjs';

const refused = ['status of 401'];
let browser;

before(async () => { browser = await launch(); });
after(async () => { await browser?.close(); });

async function withGuarded(flags, use) {
  const server = await bigFleet(50, ...flags);
  try {
    await withPage(browser, server.url, { unpainted: true }, (page) => use(page, server), [...refused, 'ERR_FAILED']);
  } finally {
    await server.stop();
  }
}

const live = (page) => page.locator('#link[data-state="live"]').waitFor();
const nodes = (page) => page.locator('#figures b').first().innerText();

test('a bearer token is asked for, sent with everything, and kept in the tab', async () => {
  await withGuarded(['-authorization', 'Bearer s3cr3t/+=='], async (page, server) => {
    const sent = new Map();
    page.context().on('request', async (r) => {
      const { pathname, search } = new URL(r.url());
      assert.doesNotMatch(search, /s3cr3t/, 'no address has the token');
      sent.set(pathname, await r.headerValue('authorization'));
    });
    const box = page.getByRole('dialog', { name: 'Log in to the gateway' });
    await box.waitFor();
    await page.screenshot({ path: path.join(root, '.cache/login.png') });
    await axe(page, 'login');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'login-token');
    assert.match(await page.locator('#link').innerText(), /No answer, login needed/);
    assert.equal(await page.locator('#empty').innerText(), 'No answer, login needed');
    assert.equal(await nodes(page), '–', 'nothing is known, which is not 0');
    assert.equal(await page.locator('#items .item').count(), 0);
    const asked = [];
    page.context().on('request', (r) => asked.push(new URL(r.url()).pathname));
    await page.waitForTimeout(3500);
    assert.deepEqual(asked.filter((p) => p.startsWith('/api/')), [], 'nothing is asked while nobody has logged in');

    await page.keyboard.type('a token');
    await page.keyboard.press('Enter');
    assert.match(await page.locator('#login-why').innerText(), /no token/);
    await page.fill('#login-token', 'wrong');
    await page.keyboard.press('Enter');
    await page.locator('#login-why', { hasText: 'does not take that' }).waitFor();
    // As it is pasted from a file or a header.
    await page.fill('#login-token', 'Bearer s3cr3t/+==\n');
    await page.keyboard.press('Enter');
    await live(page);
    await painted(page);
    assert.equal(await box.isVisible(), false);
    assert.equal(await nodes(page), '50');
    assert.equal(await page.inputValue('#login-token'), '', 'it does not stay in the form');

    await page.focus('#scroll');
    await page.keyboard.press('Enter');
    await page.locator('figure[data-signal="throughput"] .u-over').waitFor();
    await page.locator('#panel section', { hasText: 'Episodes' }).locator('.episode, .none', { hasText: /./ }).first().waitFor();
    for (const p of ['/api/v1/observe', '/api/v1/groups', '/api/v1/health', '/api/v1/episodes']) {
      assert.equal(sent.get(p), 'Bearer s3cr3t/+==', p);
    }
    for (const [p, header] of sent) if (!p.startsWith('/api/')) assert.equal(header, null, p);

    await page.reload();
    await live(page);
    assert.equal(await box.isVisible(), false, 'a reload needs no login');
    assert.deepEqual(await page.evaluate(() => [document.cookie, JSON.stringify({ ...localStorage })]), ['', '{}'], 'nothing outlives the tab');

    const other = await page.context().newPage();
    await other.goto(server.url);
    await other.getByRole('dialog').waitFor();
    await other.close();

    await page.getByRole('button', { name: 'Log out' }).click();
    await box.waitFor();
    assert.equal(await page.evaluate(() => sessionStorage.length), 0);
  });
});

test('a token that is no longer taken is asked for anew, and what was shown stays', async () => {
  await withGuarded(['-authorization', 'Bearer one'], async (page) => {
    await page.fill('#login-token', 'one');
    await page.keyboard.press('Enter');
    await live(page);
    // Of the node alone: the list is asked for by the clock, and its refusal may come before the key.
    await page.route('**/api/v1/nodes/*', (route) => route.fulfill({ status: 401, body: 'rotated' }));
    await page.focus('#scroll');
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').waitFor();
    assert.equal(await nodes(page), '50');
    await page.unroute('**/api/v1/nodes/*');
    await page.fill('#login-token', 'one');
    await page.keyboard.press('Enter');
    await page.getByRole('dialog').waitFor({ state: 'hidden' });
    await live(page);
    await page.locator('figure[data-signal="throughput"] .u-over').waitFor();
  });
});

test('user and password, where the gateway says Basic', async () => {
  const basic = `Basic ${Buffer.from('anna:pä:ss').toString('base64')}`;
  await withGuarded(['-authorization', basic, '-challenge', 'Basic realm="fleet", charset="UTF-8"'], async (page) => {
    await page.getByRole('dialog').waitFor();
    assert.equal(await page.locator('#login-token').isVisible(), false);
    assert.equal(await page.locator('#login-kind').isVisible(), false, 'there is nothing to choose');
    await page.getByLabel('User', { exact: true }).fill('anna');
    await page.getByLabel('Password', { exact: true }).fill('pä:ss');
    await page.keyboard.press('Enter');
    await live(page);
    assert.equal(await nodes(page), '50');
  });
});

test('a gateway that says nothing lets choose', async () => {
  await withGuarded(['-authorization', `Basic ${Buffer.from('a:b').toString('base64')}`], async (page) => {
    await page.getByRole('dialog').waitFor();
    await page.keyboard.press('Shift+Tab');
    await page.keyboard.press('ArrowRight');
    await page.keyboard.press('Tab');
    await page.keyboard.type('a');
    await page.keyboard.press('Tab');
    await page.keyboard.type('b');
    await page.keyboard.press('Enter');
    await live(page);
  });
});

test('behind a proxy that lets people log in, its cookie is enough', async () => {
  const server = await bigFleet(50, '-cookie', 'session');
  try {
    const context = await browser.newContext();
    patient(context);
    const page = await context.newPage();
    await page.goto(server.url);
    await page.locator('#link', { hasText: 'the proxy asks for a login: load the page anew' }).waitFor();
    assert.equal(await page.getByRole('dialog').isVisible(), false);
    await context.addCookies([{ name: 'session', value: '1', url: server.url }]);
    await live(page);
    await page.locator('#items .item').first().waitFor();
    assert.equal(await page.locator('#account').isVisible(), false, 'there is nothing to log out from');
    await context.close();
  } finally {
    await server.stop();
  }
});

// With the Collector's own authenticators, as docs and README have them.
for (const [authenticator, config, login] of [
  ['bearertokenauth', '{token: s3cr3t}', async (page) => page.getByLabel('Token', { exact: true }).last().fill('s3cr3t')],
  ['basicauth', '{htpasswd: {inline: "anna:geheim"}}', async (page) => {
    await page.getByLabel('User', { exact: true }).fill('anna');
    await page.getByLabel('Password', { exact: true }).fill('geheim');
  }],
]) {
  test(`the collector with ${authenticator} lets the page in`, async () => {
    const server = await demo(undefined, `{extensions: {${authenticator}: ${config}, fleet_view: {http: {auth: {authenticator: ${authenticator}}}}}, service: {extensions: [${authenticator}, straggler_threshold/agent, straggler_threshold/gateway, exposition, fleet_view]}}`);
    try {
      await withPage(browser, server.url, { unpainted: true }, async (page) => {
        await page.getByRole('dialog').waitFor();
        await login(page);
        await page.keyboard.press('Enter');
        await live(page);
        await page.locator('#figures b', { hasText: '16' }).waitFor();
        await page.focus('#scroll');
        await page.keyboard.press('Enter');
        await page.locator('figure[data-signal="score"] .u-over').waitFor();
        // The live update arrives.
        const at = page.locator('figure[data-signal="score"] .u-legend .u-value').first();
        const before = await at.innerText();
        await page.waitForFunction((was) => document.querySelector('figure[data-signal="score"] .u-legend .u-value').textContent !== was, before);
      }, refused);
    } finally {
      await server.stop();
    }
  });
}
