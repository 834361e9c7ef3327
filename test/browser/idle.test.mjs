// SPDX-License-Identifier: Apache-2.0

// The page of pods that hold GPUs and do not use them.
import assert from 'node:assert/strict';
import path from 'node:path';
import { after, before, test } from 'node:test';
import { axe, bigFleet, launch, root, withPage } from './harness.mjs';

const images = path.join(root, process.env.IMAGES ?? '.cache/images');
let browser;
let server;

before(async () => { [browser, server] = await Promise.all([launch(), bigFleet(0, '-idle')]); });
after(async () => {
  await browser?.close();
  await server?.stop();
});

const held = (options, use, expected) => withPage(browser, `${server.url}idle.html`, { ...options, unpainted: true }, async (page) => {
  await page.locator('#pods .row').first().waitFor();
  await use(page);
}, expected);
const names = (page) => page.locator('#pods .who').allInnerTexts().then((all) => all.map((t) => t.replaceAll('\n', '')));

test('pods and jobs, those first that hold up most, as the API has them', async () => {
  await held({ colorScheme: 'dark' }, async (page) => {
    const { pods, jobs } = await fetch(`${server.url}api/v1/pods/idle`).then((r) => r.json());
    assert.equal(pods.length, 3, 'one works, and one has paused for less than ten minutes');
    assert.deepEqual(await names(page), pods.map((p) => `${p.namespace}/${p.pod}`));
    assert.deepEqual(await names(page), ['training/llama-70b-worker-0', 'training/llama-70b-worker-1', 'lab/<b>notebook-0</b>']);
    const [first, , third] = await page.locator('#pods .row').allInnerTexts();
    assert.match(first, /8 of 8 GPUs[^]*GPU 0, 1, 2, 3, 4, 5, 6, 7 of gpu-h100-r01-n01[^]*job llama-70b[^]*idle since [\d: -]+\(3 h \d min\)[^]*24 GPU-h so far/);
    assert.match(third, /1 of 2 GPUs[^]*GPU 0 of[^]*no job[^]*or earlier \(\d+ min \d+ s\)/);
    assert.deepEqual(jobs.map((j) => [j.job_id, j.pods, j.gpus_idle]), [['llama-70b', 2, 16], ['', 1, 1]]);
    const shown = await page.locator('#jobs .row').allInnerTexts();
    assert.match(shown[0], /llama-70b[^]*16 GPUs[^]*2 pods[^]*40 GPU-h so far/);
    assert.match(shown[1], /no job[^]*1 GPU[^]*1 pod/);
    assert.match(await page.locator('#shown').innerText(), /^17 GPUs, 40\.\d GPU-h so far$/);
    await page.screenshot({ path: path.join(images, 'idle.png') });
  });
});

test('a time, a job and a search narrow the lists, and the address keeps them', async () => {
  await held({}, async (page) => {
    const count = (n) => page.waitForFunction((want) => document.querySelectorAll('#pods .row').length === want, n);
    await page.locator('#jobs .row', { hasText: 'llama-70b' }).click();
    await count(2);
    assert.equal(await page.locator('#jobs .row[aria-pressed="true"]').count(), 1);
    await page.reload();
    await count(2);
    await page.fill('#search', 'WORKER-1');
    await count(1);
    assert.deepEqual(await names(page), ['training/llama-70b-worker-1']);
    await page.keyboard.press('Escape');
    await count(3);
    assert.equal(new URL(page.url()).hash, '');
    await page.selectOption('#minutes', '60');
    await count(2);
    await page.selectOption('#minutes', '1440');
    await page.locator('#pods', { hasText: 'No pod holds a GPU that has been idle for 1 day.' }).waitFor();
    assert.match(page.url(), /minutes=1440/);
    await page.selectOption('#minutes', '10');
    await count(3);
    await page.fill('#search', 'nothing like it');
    await page.locator('#pods', { hasText: 'Nothing is as asked for.' }).waitFor();
  });
});

test('all of it works by keyboard, also while the list is drawn anew', async () => {
  await held({}, async (page) => {
    const focused = () => page.evaluate(() => document.activeElement.dataset.key);
    await page.keyboard.press('ArrowDown');
    const first = await focused();
    assert.match(first, /worker-0/);
    await page.keyboard.press('ArrowDown');
    assert.match(await focused(), /worker-1/);
    await page.keyboard.press('ArrowUp');
    await page.waitForResponse('**/api/v1/pods/idle?*');
    await page.waitForResponse('**/api/v1/pods/idle?*'); // the one before is drawn
    assert.equal(await focused(), first);
    await page.keyboard.press('/');
    assert.equal(await page.evaluate(() => document.activeElement.id), 'search');
    await page.locator('#pods .row').first().focus();
    await page.keyboard.press('Enter');
    await page.locator('#panel h2', { hasText: 'gpu-h100-r01-n01' }).waitFor();
  });
});

test('the fleet’s page leads to it', () => withPage(browser, server.url, {}, async (page) => {
  await page.locator('header a', { hasText: 'Idle GPUs' }).click();
  await page.locator('#pods .row').first().waitFor();
}));

test('it says what it waits for, that nobody answers, and that a login is needed', async () => {
  await held({}, async (page) => {
    let answer;
    await page.route('**/api/v1/pods/idle?*', (route) => answer?.(route));
    await page.reload();
    await page.locator('#pods', { hasText: 'Waiting for the gateway’s first answer' }).waitFor();
    await axe(page, 'waiting');
    answer = (route) => route.fulfill({ status: 401, body: '{}' });
    await page.reload();
    await page.locator('#link', { hasText: 'The gateway wants a login' }).waitFor();
    answer = (route) => route.continue();
    await page.reload();
    await page.locator('#pods .row').first().waitFor();
    answer = (route) => route.abort();
    await page.locator('#link[data-state="stale"]', { hasText: 'The gateway does not answer' }).waitFor();
    assert.equal(await page.locator('#pods .row').count(), 3, 'what was known stays');
    answer = (route) => route.continue();
    await page.locator('#link[data-state="live"]').waitFor();
  }, ['401', 'ERR_FAILED']);
});

test('an empty list says where pods are known', async () => {
  const empty = await bigFleet(0);
  try {
    await withPage(browser, `${empty.url}idle.html`, { unpainted: true }, async (page) => {
      await page.locator('#pods', { hasText: 'No pod holds a GPU that has been idle for 10 minutes. Pods are known where agents ask the kubelet' }).waitFor();
      await axe(page, 'empty');
    });
  } finally {
    await empty.stop();
  }
});

for (const colorScheme of ['dark', 'light']) {
  test(`${colorScheme}: axe-core finds nothing, on a desk and on a phone`, async () => {
    await held({ colorScheme }, (page) => axe(page, 'idle'));
    await held({ colorScheme, viewport: { width: 390, height: 844 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 }, async (page) => {
      assert.ok(await page.evaluate(() => document.documentElement.scrollWidth) <= 390);
      const [jobs, pods] = await Promise.all(['#jobs', '#pods'].map((s) => page.locator(s).boundingBox()));
      assert.ok(pods.y >= jobs.y + jobs.height, 'one below the other');
      await page.screenshot({ path: path.join(root, '.cache', `idle-phone-${colorScheme}.png`) });
      await axe(page, 'phone');
    });
  });
}
