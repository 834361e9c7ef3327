// SPDX-License-Identifier: Apache-2.0
import { authorization } from './auth.js';

// The worker starts before anything else, so that the stream is on its way
// while the rest of the page loads. Its messages wait until somebody listens.
const worker = new Worker(new URL('worker.js', import.meta.url), { type: 'module' });
worker.postMessage({ authorization: authorization() });
const early = [];
worker.onmessage = (e) => early.push(e.data);

// listen hands over the worker and what it said so far.
export function listen(handle, failed) {
  worker.onmessage = (e) => handle(e.data);
  worker.onerror = failed;
  // Not now: who listens may not be ready itself.
  queueMicrotask(() => early.splice(0).forEach(handle));
  return worker;
}
