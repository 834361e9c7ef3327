// SPDX-License-Identifier: Apache-2.0

// What needs attention, over a fleet with one trouble of each kind.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { axe, bigFleet, launch, root, withPage } from './harness.mjs';

const images = path.join(root, process.env.IMAGES ?? '.cache/images');
const SLOW = 'gpu-h100-r03-n06.train-east.example.net';
const quiet = ['willReadFrequently'];
let browser;
let server;

before(async () => { [browser, server] = await Promise.all([launch(), bigFleet(96, '-sick')]); });
after(async () => {
  await browser?.close();
  await server?.stop();
});

const sick = (options, use) => withPage(browser, server.url, options, async (page) => {
  await page.locator('#items .item').first().waitFor();
  await use(page);
}, quiet);

const slow = (page) => page.locator('#items .item[data-kind="straggler"]');

test('the page begins with the list, the worst first, with what to do, since when and the cost', async () => {
  await sick({ colorScheme: 'dark', viewport: { width: 1440, height: 860 } }, async (page) => {
    assert.equal(await page.evaluate(() => document.querySelector('main').firstElementChild.id), 'attention');
    const items = page.locator('#items .item');
    assert.deepEqual(await items.evaluateAll((all) => all.map((e) => e.dataset.kind)), ['straggler', 'lost_gpu', 'sick_gpu', 'group_fault', 'missing_node', 'sick_gpu', 'sick_gpu']);
    const levels = await items.evaluateAll((all) => all.map((e) => e.dataset.level));
    assert.deepEqual(levels, ['critical', 'critical', 'critical', 'major', 'major', 'major', 'major']);
    const text = await slow(page).innerText();
    assert.match(text, /28 % behind its peers in throughput\. The job loses 21\.9 %\. The hardware lowers the clocks because of heat\./);
    assert.match(text, /Check fans, airflow and coolant of the node/);
    assert.match(text, /since [\d: -]+\(34 min \d+ s\)\s*42 GPU-h\/h, 2\d(\.\d)? GPU-h so far/);
    // The map stands beside it, and no table lists healthy nodes.
    const [list, map] = await Promise.all(['#attention', '.map'].map((s) => page.locator(s).boundingBox()));
    assert.ok(map.x >= list.x + list.width - 1 && Math.abs(map.y - list.y) < 2);
    assert.equal(await page.locator('table').count(), 0);
    await page.mouse.move(5, 5);
    await page.waitForTimeout(500);
    await page.screenshot({ path: path.join(images, 'attention.png') });
  });
});

test('the list is the one of the API, with the same sentences', async () => {
  await sick({}, async (page) => {
    const { items, counts } = await fetch(`${server.url}api/v1/attention`).then((r) => r.json());
    const shown = await page.locator('#items .what').evaluateAll((all) => all.map((e) => e.lastChild.textContent));
    assert.deepEqual(shown, items.map((i) => i.text));
    assert.equal(await page.locator('#figures [data-show="lost"] b').innerText(), String(counts.lost_gpus));
  });
});

test('each count shows only what it counts, in the list and on the map', async () => {
  await sick({}, async (page) => {
    for (const [show, kinds, nodes] of [['stragglers', ['straggler'], '1'], ['lost', ['lost_gpu'], '1'], ['sick', ['sick_gpu', 'sick_gpu', 'sick_gpu'], '3'], ['missing', ['missing_node'], '1'], ['faults', ['group_fault'], '6']]) {
      await page.locator(`#figures [data-show="${show}"]`).click();
      await page.locator('#shown', { hasText: `${nodes} of 96 nodes` }).waitFor();
      await page.waitForFunction((n) => document.querySelectorAll('#items .item').length === n, kinds.length);
      assert.deepEqual(await page.locator('#items .item').evaluateAll((all) => all.map((e) => e.dataset.kind)), kinds);
      assert.equal(await page.locator(`#figures [data-show="${show}"]`).getAttribute('aria-pressed'), 'true');
      assert.match(page.url(), new RegExp(`show=${show}`));
      await page.locator(`#figures [data-show="${show}"]`).click(); // once more ends it
      await page.waitForFunction(() => document.getElementById('shown').textContent === '');
    }
  });
});

test('a node has its health and what to do first, then its GPUs, then plots with its peers', async () => {
  await sick({ colorScheme: 'dark', viewport: { width: 1440, height: 860 } }, async (page) => {
    await slow(page).click();
    await page.locator('figure[data-signal="step"] .u-over').waitFor();
    assert.deepEqual(await page.locator('#panel h3').allInnerTexts(), ['Health and what to do', 'GPUs', 'Against its peers', 'Episodes']);
    const first = page.locator('#panel .episode').first();
    assert.match(await first.innerText(), /straggler · rank 139 \(GPU 3\)[^]*Check fans/);
    assert.match(await page.locator('#panel table').first().innerText(), /ranks[^]*139/);
    assert.match(await page.locator('#panel table').first().innerText(), /pods[^]*training\/llama-70b-worker-17/);
    // The host beside its GPUs.
    const host = page.locator('#panel section:not(.episode) > .facts > div');
    assert.deepEqual((await host.allInnerTexts()).map((t) => t.split(/\s*\n\s*/)).filter(([name]) => /pressure|steal|Load|Host/.test(name)), [
      ['CPU pressure', '1.0 %'], ['Memory pressure', '0.4 %'], ['IO pressure', '2.3 %'], ['CPU steal', '0.0 %'], ['Load', '41.5'], ['Host memory', '37 %'],
    ]);
    // The job and the pod that lose, while the episode is open.
    const episodes = page.locator('#panel section', { has: page.locator('h3', { hasText: 'Episodes' }) }).locator('.episode');
    assert.match(await episodes.filter({ hasText: 'behind its peers for 34 minutes' }).innerText(), /Job\s+llama-70b\s+Pods\s+training\/llama-70b-worker-17\s/);
    assert.doesNotMatch(await episodes.filter({ hasText: 'for an hour' }).innerText(), /Pods/);
    await page.waitForTimeout(300);
    await page.screenshot({ path: path.join(images, 'node-sick.png') });
    // Seconds of a step: this node's beside its peers'.
    const legend = page.locator('figure[data-signal="step"] .u-legend');
    await legend.filter({ hasText: 'peers’ median' }).waitFor();
    const [own, peers] = (await legend.locator('.u-value').allInnerTexts()).slice(1, 3).map(Number);
    assert.ok(own > 0.5 && own < 0.65, `${own} s`);
    assert.ok(peers > 0.4 && peers < 0.42, `${peers} s`);
    // What is over is grey, what is open has its level.
    assert.equal(await page.locator('#panel .episode[data-open="false"]').count(), 1);
  });
});

test('the past is of an hour, a day or a week, and can be zoomed by pointer and by keyboard', async () => {
  await sick({}, async (page) => {
    const first = page.waitForResponse('**/past?*');
    await slow(page).click();
    const over = page.locator('figure[data-signal="step"] .u-over');
    await Promise.all([over.waitFor(), first]);
    const asked = () => page.waitForResponse('**/past?*').then((r) => r.json()).then(({ since, until }) => (Date.parse(until) - Date.parse(since)) / 3_600_000);
    for (const [label, hours] of [['24 h', 24], ['7 d', 168], ['1 h', 1]]) {
      const answer = asked();
      await page.locator('#hours label', { hasText: label }).click();
      assert.equal(Math.round(await answer), hours);
    }
    await over.scrollIntoViewIfNeeded();
    const box = await over.boundingBox();
    const zoomed = asked();
    let requests = 0; // the plots share the pointer; one of them asks
    page.on('request', (r) => { requests += r.url().includes('/past?') ? 1 : 0; });
    await page.mouse.move(box.x + box.width * 0.25, box.y + 30);
    await page.mouse.down();
    await page.mouse.move(box.x + box.width * 0.5, box.y + 30, { steps: 5 });
    await page.mouse.up();
    const hours = await zoomed;
    assert.ok(hours > 0.2 && hours < 0.3, `a quarter of an hour, not ${hours} h`);
    assert.equal(await page.locator('#panel .plots').getAttribute('data-zoomed'), 'true');
    assert.equal(requests, 1);
    const reset = asked();
    await page.getByRole('button', { name: 'All of it' }).press('Enter');
    assert.equal(Math.round(await reset), 1);
    const closer = asked();
    await page.getByRole('button', { name: 'Zoom in' }).press('Enter');
    assert.ok(Math.abs(await closer - 0.5) < 0.05);
  });
});

test('the browser’s way back closes the node, and forward opens it again', async () => {
  await sick({}, async (page) => {
    await slow(page).click();
    await page.locator('#panel h2', { hasText: SLOW }).waitFor();
    await page.goBack();
    await page.locator('#panel').waitFor({ state: 'hidden' });
    assert.equal(new URL(page.url()).hash, '');
    assert.ok(await page.locator('#items .item').first().isVisible());
    await page.goForward();
    await page.locator('#panel h2', { hasText: SLOW }).waitFor();
    // Closing it by key is the same step back: there is no second one to take.
    await page.keyboard.press('Escape');
    await page.locator('#panel').waitFor({ state: 'hidden' });
    await page.waitForFunction(() => location.hash === '');
  });
});

test('arrow keys work at once, on the map and in the list', async () => {
  await sick({}, async (page) => {
    assert.equal(await page.evaluate(() => document.activeElement.tagName), 'BODY');
    await page.keyboard.press('ArrowRight');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'scroll');
    assert.match(await page.evaluate(() => document.querySelector('[role=option][aria-selected=true]').textContent), /r01-n02/);
    await page.locator('#items .item').first().focus();
    await page.keyboard.press('ArrowDown');
    assert.equal(await page.evaluate(() => document.activeElement.dataset.kind), 'lost_gpu');
    await page.keyboard.press('Enter');
    await page.locator('#panel h2', { hasText: 'r07-n05' }).waitFor();
  });
});

test('? explains the words', async () => {
  await sick({}, async (page) => {
    await page.keyboard.press('?');
    await page.locator('#help dt', { hasText: /^Suspicion$/ }).waitFor();
    assert.ok(await page.locator('#help dt').count() > 50);
    await axe(page, 'help');
    await page.keyboard.press('Escape');
    assert.equal(await page.locator('#help').isVisible(), false);
    await page.locator('#help-open').click();
    assert.ok(await page.locator('#help').isVisible());
  });
});

test('long names lose their middle, and labels omit what names share', async () => {
  await sick({ viewport: { width: 390, height: 844 } }, async (page) => {
    // Squeezed, a name shows how it begins and ends.
    const who = slow(page).locator('.mid');
    assert.equal(await who.getAttribute('title'), SLOW);
    const [head, tail] = [who.locator('.mid-head'), who.locator('.mid-tail')];
    const name = (await who.textContent()).replaceAll(/[\u2068\u2069]/g, '');
    assert.equal(name, 'gpu-h100-r03-n06', 'less what all names share');
    assert.ok(await tail.evaluate((e) => e.scrollWidth <= e.clientWidth || e.clientWidth === 0), 'the end is whole');
    // In a list that is narrower than the name it is the middle that goes.
    await who.evaluate((e) => { e.style.width = '9em'; });
    assert.ok(await head.evaluate((e) => e.scrollWidth > e.clientWidth), 'the beginning is cut at its end');
    const [box, end] = [await who.boundingBox(), await tail.boundingBox()];
    assert.ok(end.x + end.width <= box.x + box.width + 1, 'the end of the name is inside');
  });
  await withPage(browser, server.url, { unpainted: true }, async (page) => {
    await page.addInitScript(() => {
      window.drawn_ = new Set();
      const { fillText } = CanvasRenderingContext2D.prototype;
      CanvasRenderingContext2D.prototype.fillText = function draw(text, ...rest) {
        window.drawn_.add(text.replaceAll(/[\u2068\u2069]/g, ''));
        return fillText.call(this, text, ...rest);
      };
    });
    await page.reload();
    await page.locator('#items .item').first().waitFor();
    await page.waitForFunction(() => window.drawn_.size > 90);
    const drawn = await page.evaluate(() => [...window.drawn_]);
    assert.ok(drawn.includes('r03-n06'), `${drawn.slice(0, 20)}`);
    assert.ok(drawn.some((t) => t.startsWith('stage-0')));
    assert.ok(!drawn.some((t) => t.includes('example.net')));
  }, quiet);
});

test('a phone shows the list first, and a node as a sheet', async () => {
  await sick({ viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2, colorScheme: 'dark' }, async (page) => {
    const box = (s) => page.locator(s).boundingBox();
    const [list, map] = [await box('#attention'), await box('.map')];
    assert.ok(list.y < 300 && map.y >= list.y + list.height - 1, 'the map is below the list');
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= 390);
    await page.screenshot({ path: path.join(images, 'phone.png') });
    await page.locator('#items .item').nth(1).tap();
    await page.locator('#panel .episode').first().waitFor();
    const sheet = await box('#panel');
    assert.ok(sheet.y > 50 && sheet.y + sheet.height >= 843, 'a sheet at the bottom');
    assert.equal(sheet.width, 390);
    await axe(page, 'sheet');
    await page.getByRole('button', { name: 'Close the node' }).tap();
    await page.locator('#panel').waitFor({ state: 'hidden' });
  });
});

test('red is critical, amber is major, grey is over, and nothing else has these colours', async () => {
  await sick({ colorScheme: 'dark' }, async (page) => {
    await slow(page).click();
    await page.locator('#panel .episode[data-open="false"]').waitFor();
    const edge = (s) => page.locator(s).first().evaluate((e) => getComputedStyle(e).borderLeftColor);
    const named = (name) => page.evaluate((n) => {
      const probe = document.body.appendChild(document.createElement('i'));
      probe.style.color = `var(--${n})`;
      const { color } = getComputedStyle(probe);
      probe.remove();
      return color;
    }, name);
    assert.equal(await edge('#panel .episode[data-level="critical"]'), await named('critical'));
    assert.equal(await edge('#panel .episode[data-level="major"]'), await named('major'));
    assert.equal(await edge('#panel .episode[data-open="false"]'), await named('over'));
    const alarming = [await named('critical'), await named('major')];
    const misused = await page.evaluate((colours) => [...document.querySelectorAll('body *')].filter((e) => {
      const s = getComputedStyle(e);
      const level = e.closest('[data-level="critical"], [data-level="major"], [data-health]');
      return !level && e.textContent && (colours.includes(s.color) || colours.includes(s.backgroundColor));
    }).map((e) => e.outerHTML.slice(0, 80)), alarming);
    assert.deepEqual(misused, []);
  });
});

test('loading says what the page waits for', async () => {
  await withPage(browser, server.url, { unpainted: true }, async (page) => {
    await page.route('**/api/v1/observe*', () => {}); // no answer
    await page.reload();
    await page.locator('#items', { hasText: 'Waiting for the gateway’s first answer' }).waitFor();
    await page.locator('#empty', { hasText: 'Waiting for the gateway’s list of nodes' }).waitFor();
  }, quiet);
  await sick({}, async (page) => {
    let go;
    const wait = new Promise((done) => { go = done; });
    await page.route('**/api/v1/nodes/*', async (route) => { await wait; await route.continue(); });
    await slow(page).click();
    await page.locator('#panel', { hasText: 'Waiting for the gateway’s view of this node' }).waitFor();
    await page.locator('#panel', { hasText: 'Waiting for the gateway’s verdict' }).waitFor();
    go();
    await page.locator('#panel .episode').first().waitFor();
  });
});

test('an empty gateway says what it waits for', async () => {
  const empty = await bigFleet(0);
  try {
    await withPage(browser, empty.url, { colorScheme: 'dark' }, async (page) => {
      await page.locator('#items', { hasText: 'No node has reported to this gateway yet. Point an agent at it.' }).waitFor();
      await page.locator('#empty', { hasText: 'The map waits for the first push of an agent.' }).waitFor();
      // It is seen, and not covered by the map.
      assert.equal(await page.evaluate(() => {
        const e = document.getElementById('empty');
        e.style.pointerEvents = 'auto';
        const b = e.getBoundingClientRect();
        return document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2).id;
      }), 'empty');
      await axe(page, 'empty');
      await page.screenshot({ path: path.join(root, '.cache/empty.png') });
    });
  } finally {
    await empty.stop();
  }
});

for (const colorScheme of ['dark', 'light']) {
  test(`${colorScheme}: axe-core finds nothing`, async () => {
    await sick({ colorScheme }, async (page) => {
      await axe(page, 'list');
      await slow(page).click();
      await page.locator('figure[data-signal="step"] .u-over').waitFor();
      await page.locator('#panel .episode[data-open="false"]').waitFor();
      await axe(page, 'node');
    });
  });
}
