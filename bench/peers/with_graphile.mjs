// graphile-worker on PostgreSQL, from Node: the settings that its documentation gives for speed (a local queue,
// batched completion, 24 jobs at once). The steps and the record are those of drive.py and kit.py.
import { createRequire } from "node:module";
import fs from "node:fs";

const { BENCH_POSTGRES, BENCH_RECORD, BENCH_NODE_MODULES } = process.env;
const { Logger, makeWorkerUtils, run, runMigrations } = createRequire(`${BENCH_NODE_MODULES}/`)("graphile-worker");
const connectionString = BENCH_POSTGRES;
const logger = new Logger(() => () => {});
const AT_ONCE = 1000;
const WARM_UP = 2n ** 40n;
const WARM_UPS = 10;

const nowNs = () => BigInt(Math.round((performance.timeOrigin + performance.now()) * 1e6));
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
let file;

function hit(key, sentNs) {
  file ??= fs.openSync(BENCH_RECORD, "a");
  const record = Buffer.alloc(24);
  record.writeBigUInt64LE(BigInt(key), 0);
  record.writeBigUInt64LE(BigInt(sentNs), 8);
  record.writeBigUInt64LE(nowNs(), 16);
  fs.writeSync(file, record);
}

async function enqueue(count) {
  const utils = await makeWorkerUtils({ connectionString, logger });
  for (let start = 0; start < count; start += AT_ONCE) {
    const keys = Array.from({ length: Math.min(AT_ONCE, count - start) }, (_, place) => start + place);
    await utils.addJobs(keys.map((key) => ({ identifier: "noop", payload: { key, sentNs: "0" } })));
  }
  await utils.release();
}

// As drive.py does it: who is late waits for his turn.
async function spaced(count, gapS, start) {
  const utils = await makeWorkerUtils({ connectionString, logger });
  const gap = gapS * 1000;
  let due = start * 1000;
  for (let number = -WARM_UPS; number < count; number++) {
    const now = Date.now();
    due += gap * Math.max(0, Math.ceil((now - due) / gap));
    await sleep(due - now);
    const key = number >= 0 ? String(number) : String(WARM_UP - BigInt(number));
    await utils.addJob("noop", { key, sentNs: String(nowNs()) });
    due += gap;
  }
  await utils.release();
}

async function worker() {
  const preset = {
    worker: {
      connectionString,
      concurrentJobs: 24,
      maxPoolSize: 10,
      pollInterval: 1000,
      localQueue: { size: 500, refetchDelay: { durationMs: 10 } },
      completeJobBatchDelay: 0,
      failJobBatchDelay: 0,
    },
  };
  const taskList = { noop: async ({ key, sentNs }) => hit(key, sentNs) };
  const runner = await run({ logger, noHandleSignals: true, taskList, preset });
  await runner.promise;
}

const [step, ...numbers] = process.argv.slice(2);
const steps = { setup: () => runMigrations({ connectionString, logger }), enqueue, spaced, worker };
await steps[step](...numbers.map(Number));
process.exit(0);
