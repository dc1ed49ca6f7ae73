// A hostile program in Node. Tries to leave its sandbox, and prints as JSON which attempts worked.
// An attack that fails throws, or returns false.

import cluster from "node:cluster";
import { execFileSync, spawn } from "node:child_process";
import dgram from "node:dgram";
import dns from "node:dns/promises";
import fs from "node:fs";
import inspector from "node:inspector";
import net from "node:net";
import os from "node:os";

const targets = JSON.parse(process.env.TARGETS);
const SECONDS = 3000;

function connect(options) {
  return new Promise((resolve, reject) => {
    const socket = net.connect({ ...options, timeout: SECONDS }, () => resolve(socket.destroy()));
    socket.on("error", reject);
    socket.on("timeout", () => reject(socket.destroy()));
  });
}

function fill(directory, most) {
  const block = Buffer.alloc(1 << 20);
  const file = fs.openSync(`${directory}/filled`, "w");
  try {
    for (let written = 0; written <= most; ) written += fs.writeSync(file, block);
    return true;
  } finally {
    fs.closeSync(file);
    fs.unlinkSync(`${directory}/filled`);
  }
}

const otherPids = () => fs.readdirSync("/proc").filter((name) => Number(name) && Number(name) !== process.pid);

/** Return whether a file of these processes has the text. */
function find(text, pids, names) {
  return pids.some((pid) => names.some((name) => {
    try {
      return fs.readFileSync(`/proc/${pid}/${name}`).includes(text);
    } catch {
      return false;
    }
  }));
}

const attacks = {
  connect_to_the_host: () => connect({ host: "127.0.0.1", port: targets.port }),
  connect_to_the_host_by_ipv6: () => connect({ host: "::1", port: targets.port }),
  connect_to_every_listening_port: async () => {
    const tries = targets.listeners.map(([host, port]) => connect({ host, port }));
    return (await Promise.allSettled(tries)).some(({ status }) => status === "fulfilled");
  },
  connect_to_an_abstract_socket: () => connect({ path: `\0${targets.abstract}` }),
  connect_to_a_socket_file: () => connect({ path: targets.socket }),
  listen_on_a_port: () =>
    new Promise((resolve, reject) => {
      const server = net.createServer().on("error", reject);
      server.listen(0, "127.0.0.1", () => resolve(server.close()));
    }),
  send_a_datagram: () =>
    new Promise((resolve, reject) => {
      const socket = dgram.createSocket("udp4").on("error", reject);
      socket.send("x", targets.port, "127.0.0.1", (error) => (error ? reject(error) : resolve(socket.close())));
    }),
  fetch_metadata: async () => (await fetch("http://169.254.169.254/", { signal: AbortSignal.timeout(SECONDS) })).status,
  resolve_a_name: () => dns.resolve4("example.com"),
  open_the_inspector: () => {
    inspector.open(0);
    return inspector.url() !== undefined;
  },
  read_a_secret: () => fs.readFileSync(targets.secret),
  read_a_secret_through_root_of_pid_1: () => fs.readFileSync("/proc/1/root" + targets.secret),
  read_a_secret_through_a_link: () => {
    fs.symlinkSync(targets.secret, "/tmp/link.js");
    return fs.readFileSync("/tmp/link.js");
  },
  read_password_hashes: () => fs.readFileSync("/etc/shadow"),
  list_home_directories: () => fs.readdirSync("/home").concat(fs.readdirSync("/root")),
  list_the_root: () => fs.readdirSync("/"),
  read_the_environment_of_pid_1: () => fs.readFileSync("/proc/1/environ").length > 0,
  read_the_memory_of_pid_1: () => fs.openSync("/proc/1/mem", "r"),
  find_the_token_of_another_function: () => find(targets.token, otherPids(), ["environ", "cmdline"]),
  find_the_environment_of_the_launcher: () => 
    find([...targets.reversed_canary].reverse().join(""), ["self", ...otherPids()], ["environ"]),
  see_the_name_of_the_host: () => os.hostname() === targets.host,
  see_host_paths_in_the_command_of_pid_1: () => fs.readFileSync("/proc/1/cmdline", "utf8").includes(targets.directory),
  debug_a_process_of_the_host: () => process._debugProcess(targets.pid),
  write_into_the_memory_of_the_parent: () => fs.openSync(`/proc/${process.ppid}/mem`, "r+"),
  write_to_dev: () => fs.writeFileSync("/dev/new", ""),
  write_beside_the_socket: () => fs.writeFileSync("/run/new", ""),
  be_the_last_to_be_ended_for_its_memory: () => fs.writeFileSync("/proc/self/oom_score_adj", "-1000"),
  use_io_uring: () => {
    const code = `
      const fs = require("node:fs");
      fs.promises.readFile("/proc/self/stat").then(() => {
        const links = fs.readdirSync("/proc/self/fd").map((fd) => {
          try { return fs.readlinkSync("/proc/self/fd/" + fd); } catch { return ""; }
        });
        process.exit(links.some((link) => link.includes("io_uring")) ? 0 : 1);
      });`;
    return execFileSync(process.execPath, ["-e", code], { env: { UV_USE_IO_URING: "1" }, stdio: "ignore" });
  },
  use_all_inodes: () => {
    if (!targets.inodes_are_limited) return false;
    fs.mkdirSync("/tmp/many-of-node");
    for (let n = 0; n < targets.temporary_files + 10; n++) fs.writeFileSync(`/tmp/many-of-node/${n}`, "");
  },
  write_to_the_bundle: () => fs.writeFileSync("/var/task/attacks.mjs", ""),
  write_beside_the_bundle: () => fs.writeFileSync("/var/task/new", ""),
  write_to_the_sdk: () => fs.writeFileSync("/node_modules/trace-etl/index.js", ""),
  write_to_node: () => fs.openSync(process.execPath, "r+"),
  write_to_the_root: () => fs.writeFileSync("/new", ""),
  link_the_bundle_into_tmp: () => fs.linkSync("/var/task/attacks.mjs", "/tmp/hard"),
  change_a_kernel_setting: () => fs.writeFileSync("/proc/sys/kernel/hostname", "owned"),
  start_a_shell: () => execFileSync("/bin/sh", ["-c", "id"]),
  start_a_program_from_tmp: () => {
    fs.copyFileSync(process.execPath, "/tmp/node");
    return execFileSync("/tmp/node", ["--version"]);
  },
  start_a_program_with_privileges: () => execFileSync("/usr/bin/su", ["-c", "id"]),
  signal_a_process_of_the_host: () => process.kill(targets.pid, 0),
  see_other_processes: () => fs.readdirSync("/proc").some((name) => Number(name) > 100),
  become_root: () => {
    process.setuid(0);
    return process.getuid() === 0;
  },
  take_a_higher_priority: () => {
    os.setPriority(-20);
    return os.getPriority() < 0;
  },
  use_inherited_descriptors: () => {
    for (let number = 3; number < 256; number++) {
      try {
        if (fs.fstatSync(number).isFile() || fs.fstatSync(number).isDirectory()) return true;
      } catch {
        continue;
      }
    }
    return false;
  },
  fork_a_cluster_beyond_the_limit: () => spawnMany(targets.processes + 1),
  start_too_many_threads: () => {
    const code = `
      const { Worker } = require("node:worker_threads");
      let online = 0;
      for (let n = 0; n < ${targets.processes * 4}; n++) {
        const worker = new Worker("setTimeout(() => {}, 60000)", { eval: true });
        worker.on("error", () => process.exit(1));
        worker.on("online", () => ++online === ${targets.processes * 4} && process.exit(0));
      }`;
    return execFileSync(process.execPath, ["-e", code], { stdio: "ignore", timeout: 20_000 });
  },
  fill_the_temporary_directory: () => fill("/tmp", targets.temporary_bytes),
  fill_shared_memory: () => fill("/dev/shm", targets.temporary_bytes),
};

/** Start programs that wait. Fails as soon as one cannot be started. */
async function spawnMany(wanted) {
  const children = [];
  try {
    for (let n = 0; n < wanted; n++) {
      const child = spawn(process.execPath, ["-e", "setTimeout(() => {}, 60000)"]);
      children.push(child);
      await new Promise((resolve, reject) => {
        child.on("spawn", resolve).on("error", reject);
        child.on("exit", (code) => reject(new Error(`exit ${code}`)));
      });
    }
    return cluster.isPrimary;
  } finally {
    for (const child of children) child.kill("SIGKILL");
  }
}

const names = process.argv.length > 2 ? process.argv.slice(2) : Object.keys(attacks);
const succeeded = {};
for (const name of names) {
  try {
    const result = await attacks[name]();
    if (result !== false) succeeded[name] = String(result).slice(0, 200);
  } catch {
    continue;
  }
}
process.stdout.write(JSON.stringify({ tried: names.length, succeeded }) + "\n", () => process.exit(0));
