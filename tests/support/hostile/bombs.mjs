// A hostile program that uses up what it gets, in the way that its argument names. It does not end by itself.

import { spawn } from "node:child_process";
import fs from "node:fs";

const BLOCK = 100 << 20;
const [bomb, role] = process.argv.slice(2);
const start = (name, ...more) =>
  spawn(process.execPath, [process.argv[1], bomb, name], { detached: true, stdio: "ignore" }).on("error", () => {});
const wait = () => setInterval(() => {}, 60_000);

const bombs = {
  fork_without_end() {
    setInterval(() => start("child"), 5);
  },
  fill_memory_in_children() {
    if (role !== "child") for (let n = 0; n < 4; n++) start("child");
    const kept = role === "child" ? Buffer.alloc(BLOCK, 1) : Buffer.alloc(1);
    wait().kept = kept;
  },
  fill_shared_mappings() {
    if (role !== "child") for (let n = 0; n < 4; n++) start("child");
    const kept = new Uint8Array(new SharedArrayBuffer(role === "child" ? BLOCK : 1)).fill(1);
    wait().kept = kept;
  },
  print_without_end() {
    for (;;) fs.writeSync(1, Buffer.alloc(1 << 20, "x"));
  },
  survive_its_end() {
    for (const name of ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR2", "SIGQUIT"]) process.on(name, () => {});
    if (role !== "child") start("child");
    setInterval(() => role !== "child" && fs.writeSync(1, "."), 5);
  },
};
bombs[bomb]();
