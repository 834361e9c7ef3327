// SPDX-License-Identifier: Apache-2.0

// The page over the demo that `make run` starts, in a real browser.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { demo, launch, root, withPage } from './harness.mjs';

let browser;
let server;

before(async () => {
  [browser, server] = await Promise.all([launch(), demo()]);
});
after(async () => {
  await browser?.close();
  await server?.stop();
});

// The straggler is found within a minute of the demo's start.
async function untilStraggler(page) {
  await page.locator('#items .item[data-kind="straggler"] .who', { hasText: 'dp0-pp0' }).waitFor({ timeout: 150_000 });
  // The map hears of it from the node's next report.
  await page.locator('#figures [data-show="stragglers"] b', { hasText: '1' }).waitFor();
}

// shade returns the colour of the map in the middle of the selected cell, without its text.
async function cell(page, name) {
  await page.fill('#search', name);
  await page.waitForFunction(() => document.getElementById('shown').textContent.startsWith('1 of'));
  const rgb = await page.evaluate(() => {
    const c = document.getElementById('cells');
    const r = c.width / c.clientWidth;
    return [...c.getContext('2d').getImageData(100 * r, 72 * r, 1, 1).data].slice(0, 3);
  });
  await page.fill('#search', '');
  await page.waitForFunction(() => document.getElementById('shown').textContent === '');
  return rgb;
}

const luminance = ([r, g, b]) => 0.2126 * r + 0.7152 * g + 0.0722 * b;

test('the straggler is seen, opened by a click, and its reason can be read', async () => {
  await withPage(browser, server.url, { colorScheme: 'dark' }, async (page) => {
    await untilStraggler(page);
    const [slow, fast] = [await cell(page, 'dp0-pp0'), await cell(page, 'dp1-pp0')];
    assert.ok(luminance(slow) > luminance(fast) + 50, `the straggler's ${slow} stands out from ${fast}`);

    // The first node of the first group.
    await page.locator('#scroll').click({ position: { x: 60, y: 70 } });
    await page.locator('#panel h2', { hasText: 'dp0-pp0' }).waitFor();
    const advice = page.locator('#panel .episode dd.next', { hasText: /burn-in/ }).first();
    await advice.waitFor();
    const record = page.locator('#panel .episode', { hasText: /Signal\s*throughput 0\.0\d+, peers 0\.0\d+/ }).first();
    await record.waitFor();
    assert.doesNotMatch(await record.innerText(), /Straggler dp0/, 'the card says it already');
    assert.match(await page.locator('#panel .badges').innerText(), /straggler/);

    // The plots: this node, its peers' median, and the threshold.
    await page.locator('figure[data-signal="step"] .u-over').waitFor();
    for (const name of ['score', 'step']) {
      assert.match(await page.locator(`figure[data-signal="${name}"]`).innerText(), /this node[^]*peers’ median[^]*threshold/);
    }
    await page.screenshot({ path: path.join(root, '.cache/node-dark.png') });
  }, ['willReadFrequently']);
});

test('news arrive without a reload', async () => {
  await withPage(browser, `${server.url}#in=demo&node=dp0-pp0`, {}, async (page) => {
    const at = page.locator('figure[data-signal="step"] .u-legend .u-value').first();
    const value = page.locator('figure[data-signal="step"] .u-legend .u-value').nth(1);
    await value.waitFor();
    const [before, was] = [await at.innerText(), await value.innerText()];
    await page.waitForFunction(([a, v]) => {
      const [at, value] = document.querySelectorAll('figure[data-signal="step"] .u-legend .u-value');
      return at.textContent !== a && value.textContent !== v;
    }, [before, was], { timeout: 150_000 });
    assert.equal(await page.evaluate(() => performance.getEntriesByType('navigation').length), 1);
  });
});

test('plots begin before the page was opened, with the history', async () => {
  await withPage(browser, server.url, {}, async (page) => {
    await untilStraggler(page);
    // The page asks once for the past, whose points are 10 s apart.
    const recorded = () => fetch(new URL('api/v1/nodes/dp0-pp0/past?since=1h', server.url)).then((r) => r.json());
    while (!(Date.parse((await recorded()).at?.[0]) < Date.now() - 10_000)) await page.waitForTimeout(500);
    await page.goto(`${server.url}#in=demo&node=dp0-pp0`);
    await page.reload();
    const opened = Date.now();
    const plot = page.locator('figure[data-signal="step"]');
    const first = async () => {
      const box = await plot.locator('.u-over').boundingBox();
      await page.mouse.move(box.x + 1, box.y + 20);
      const [h, m, s] = (await plot.locator('.u-value').first().innerText()).split(':').map(Number);
      return new Date(opened).setHours(h, m, s, 0);
    };
    await plot.locator('.u-over').scrollIntoViewIfNeeded();
    for (const end = Date.now() + 150_000; !(await first() < opened - 5000);) {
      assert.ok(Date.now() < end, 'the plot begins with what was recorded');
      await page.waitForTimeout(200);
    }
  });
});

test('plots show the peers of the time that is chosen', async () => {
  await withPage(browser, server.url, {}, async (page) => {
    await untilStraggler(page);
    const answer = () => page.waitForResponse('**/api/v1/nodes/dp0-pp0/past?*').then((r) => r.json());
    const first = answer();
    await page.goto(`${server.url}#in=demo&node=dp0-pp0`);
    await page.reload();
    const throughput = (await first).signals.find((s) => s.signal === 'throughput');
    for (const list of ['value', 'median', 'scale']) assert.ok(throughput[list].some((v) => v !== null), list);
    await page.locator('figure[data-signal="step"] .u-legend', { hasText: 'peers’ median' }).waitFor();
    const week = answer();
    await page.locator('#span label', { hasText: '7 d' }).click();
    const { since, until } = await week;
    assert.equal(Math.round((Date.parse(until) - Date.parse(since)) / 86_400_000), 7);
  });
});

test('all of it works by keyboard, and a screen reader is told', async () => {
  await withPage(browser, server.url, { colorScheme: 'light' }, async (page) => {
    await untilStraggler(page);
    const said = () => page.evaluate(() => {
      const box = document.getElementById('scroll');
      const option = document.getElementById(box.getAttribute('aria-activedescendant'));
      return option?.getAttribute('aria-selected') === 'true' ? `${option.textContent} ${option.getAttribute('aria-posinset')}/${option.getAttribute('aria-setsize')}` : '';
    });
    await page.focus('#scroll');
    assert.match(await said(), /^dp0-pp0 · straggler · active · score 0\.\d\d .* 1\/16$/);
    for (const [key, name] of [['ArrowRight', 'dp1-pp0'], ['ArrowDown', 'dp3-pp0'], ['ArrowLeft', 'dp2-pp0'], ['ArrowUp', 'dp0-pp0'], ['End', 'dp3-pp3'], ['Home', 'dp0-pp0']]) {
      await page.keyboard.press(key);
      assert.ok((await said()).startsWith(name), `${key} leads to ${name}, not to ${await said()}`);
    }
    await page.keyboard.press('Enter');
    await page.locator('#panel h2', { hasText: 'dp0-pp0' }).waitFor();
    await page.locator('figure[data-signal="step"] .u-over').waitFor();
    assert.equal(await page.evaluate(() => document.activeElement.id), 'panel');
    await page.keyboard.press('Escape');
    assert.equal(await page.locator('#panel').isVisible(), false);
    assert.equal(await page.evaluate(() => document.activeElement.id), 'scroll');

    await page.keyboard.press('/');
    await page.keyboard.type('pp1');
    await page.locator('#shown', { hasText: '4 of 16 nodes' }).waitFor();
    await page.keyboard.press('Enter');
    assert.match(await said(), /^dp0-pp1 .* 1\/4$/);
    await page.keyboard.press('/');
    await page.keyboard.press('Escape');
    await page.waitForFunction(() => document.getElementById('shown').textContent === '');
  });
});

test('dark and light follow the system, and the switch wins', async () => {
  await withPage(browser, server.url, { colorScheme: 'light' }, async (page) => {
    const back = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).map(Number));
    assert.ok(luminance(await back()) > 200);
    await page.click('#theme');
    assert.ok(luminance(await back()) < 60);
    await page.reload();
    assert.ok(luminance(await back()) < 60, 'the choice is kept');
    await page.click('#theme');
    assert.ok(luminance(await back()) > 200);
  });
});

test('filters, colours and the open node are in the address', async () => {
  await withPage(browser, server.url, {}, async (page) => {
    await page.selectOption('#group', 'AR/stage-2');
    await page.locator('#shown', { hasText: '4 of 16 nodes' }).waitFor();
    await page.locator('#colour label', { hasText: 'Suspicion' }).click();
    assert.match(await page.locator('#legend').innerText(), /a straggler/);
    await page.focus('#scroll');
    await page.keyboard.press('Enter');
    await page.locator('#panel h2', { hasText: 'dp0-pp2' }).waitFor();
    const hash = new URL(page.url()).hash;
    assert.equal(hash, '#colour=suspicion&group=AR%2Fstage-2&in=demo&node=dp0-pp2');
    await page.reload();
    await page.locator('#panel h2', { hasText: 'dp0-pp2' }).waitFor();
    assert.equal(await page.inputValue('#group'), 'AR/stage-2');
    assert.equal(await page.locator('#colour :checked').inputValue(), 'suspicion');
  });
});

test('while the gateway is away the page says since when, and it comes back by itself', async () => {
  let own = await demo();
  try {
    await withPage(browser, own.url, {}, async (page) => {
      const nodes = page.locator('#figures b').first();
      await nodes.filter({ hasText: '16' }).waitFor();
      await page.locator('#link[data-state="live"]').waitFor();
      await own.stop();
      await page.locator('#link[data-state="stale"]').waitFor();
      assert.match(await page.locator('#link').innerText(), /Stale since \d\d:\d\d:\d\d, reconnecting/);
      assert.equal(await nodes.innerText(), '16', 'the last state stays');
      own = await demo(own.port);
      await page.locator('#link[data-state="live"]').waitFor();
    }, ['ERR_CONNECTION_REFUSED', 'ERR_INCOMPLETE_CHUNKED_ENCODING', 'ERR_CONNECTION_RESET']);
  } finally {
    await own.stop();
  }
});
