// A hostile native program. Tries to leave its sandbox, and prints as JSON which attempts worked.
// Each attack runs in a process of its own: some of them end it. It returns a value below 0 if it failed.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/keyctl.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/msg.h>
#include <sys/mount.h>
#include <sys/personality.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/sem.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *target(const char *name) { return getenv(name); }
static long number(const char *name) { return atol(target(name)); }

static long open_any_family(void) {
  for (int family = 2; family < 46; family++)
    for (int kind = 1; kind <= 3; kind++)
      if (syscall(SYS_socket, family, kind, 0) >= 0) return family;
  return -1;
}
static long connect_to_the_host(void) {
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(number("PORT"))};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return connect(socket(AF_INET, SOCK_STREAM, 0), (void *)&address, sizeof address);
}
static long connect_to_every_listening_port(void) {
  long reached = -1;
  char *ports = strdup(target("PORTS"));
  for (char *port = strtok(ports, ","); port; port = strtok(0, ",")) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int client = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(client, (void *)&address, sizeof address) == 0) reached = atoi(port);
    close(client);
  }
  return reached;
}
static long connect_unix(const char *name, int is_abstract) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  strncpy(address.sun_path + is_abstract, name, sizeof address.sun_path - 2);
  socklen_t length = sizeof(sa_family_t) + is_abstract + strlen(name);
  return connect(socket(AF_UNIX, SOCK_STREAM, 0), (void *)&address, length);
}
static long connect_to_an_abstract_socket(void) { return connect_unix(target("ABSTRACT"), 1); }
static long connect_to_a_socket_file(void) { return connect_unix(target("SOCKET"), 0); }
static long read_a_secret(void) { return open(target("SECRET"), O_RDONLY); }
static long read_a_secret_below_pid_1(void) {
  char path[4096];
  snprintf(path, sizeof path, "/proc/1/root%s", target("SECRET"));
  return open(path, O_RDONLY);
}
static long read_a_secret_through_a_link(void) {
  symlink(target("SECRET"), "/tmp/native-link");
  return open("/tmp/native-link", O_RDONLY);
}
static long read_a_secret_by_openat2(void) {
  uint64_t how[3] = {O_RDONLY, 0, 0};
  return syscall(SYS_openat2, AT_FDCWD, target("SECRET"), how, sizeof how);
}
static long read_password_hashes(void) { return open("/etc/shadow", O_RDONLY); }
static long read_the_memory_of_pid_1(void) { return open("/proc/1/mem", O_RDONLY); }
static long read_the_environment_of_pid_1(void) {
  char content[64];
  long got = read(open("/proc/1/environ", O_RDONLY), content, sizeof content);
  return got > 0 ? got : -1;
}
static long find_in_processes(const char *text, const char *file) {
  static char path[64], content[1 << 16];
  for (int pid = 1; pid < 1 << 16; pid++) {
    snprintf(path, sizeof path, "/proc/%d/%s", pid, file);
    int opened = open(path, O_RDONLY);
    long got = opened < 0 ? -1 : read(opened, content, sizeof content);
    if (opened >= 0) close(opened);
    // This program and its parent know what they look for.
    if (got > 0 && pid != getpid() && pid != getppid() && memmem(content, got, text, strlen(text))) return pid;
  }
  return -1;
}
static long find_the_token_of_another_function(void) {
  return find_in_processes(target("TOKEN"), "environ") & find_in_processes(target("TOKEN"), "cmdline");
}
static long find_the_environment_of_the_launcher(void) {
  char canary[256] = "";
  const char *reversed = target("REVERSED_CANARY");
  for (size_t length = strlen(reversed), n = 0; n < length; n++) canary[n] = reversed[length - n - 1];
  return find_in_processes(canary, "environ");
}
static long use_inherited_descriptors(void) {
  for (int descriptor = 3; descriptor < 256; descriptor++)
    if (fcntl(descriptor, F_GETFD) >= 0) return descriptor;
  return -1;
}
static long see_the_name_of_the_host(void) {
  char name[256];
  gethostname(name, sizeof name);
  return strcmp(name, target("HOST")) == 0 ? 0 : -1;
}
static long write_into_the_memory_of_the_parent(void) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/mem", getppid());
  char byte = 0;
  return pwrite(open(path, O_RDWR), &byte, 1, (long)&errno);
}
static long be_the_last_to_be_ended_for_its_memory(void) {
  return write(open("/proc/self/oom_score_adj", O_WRONLY), "-1000", 5);
}
static long use_all_inodes(void) {
  char path[64];
  if (!number("INODES")) return -1;
  mkdir("/tmp/many-of-native", 0700);
  for (long n = 0; n < number("TEMPORARY_FILES") + 10; n++) {
    snprintf(path, sizeof path, "/tmp/many-of-native/%ld", n);
    int file = open(path, O_CREAT | O_WRONLY, 0600);
    if (file < 0) return -1;
    close(file);
  }
  return 0;
}
static long fill_shared_memory(void) {
  static char block[1 << 20];
  int file = open("/dev/shm/filled", O_CREAT | O_WRONLY, 0600);
  long written = 0, got;
  while (written <= number("TEMPORARY_BYTES") && (got = write(file, block, sizeof block)) > 0) written += got;
  unlink("/dev/shm/filled");
  return written > number("TEMPORARY_BYTES") ? written : -1;
}
static long write_to_the_bundle(void) { return open("/var/task/new", O_CREAT | O_WRONLY, 0600); }
static long write_to_the_root(void) { return open("/new", O_CREAT | O_WRONLY, 0600); }
static long write_to_dev(void) { return open("/dev/new", O_CREAT | O_WRONLY, 0600); }
static long change_a_library(void) { return open("/usr/lib/os-release", O_WRONLY); }
static long link_the_bundle_into_tmp(void) { return link("/var/task/attacks", "/tmp/native-hard"); }
static long make_a_device(void) { return mknod("/tmp/disk", S_IFBLK | 0600, 0x800); }
static long open_by_handle(void) {
  struct { unsigned bytes; int kind; char handle[64]; } handle = {.bytes = 8, .kind = 1};
  return syscall(SYS_open_by_handle_at, AT_FDCWD, &handle, O_RDONLY);
}
static long signal_a_process_of_the_host(void) { return kill(number("PID"), 0); }
static long trace_pid_1(void) { return ptrace(PTRACE_SEIZE, 1, 0, 0); }
static long trace_the_parent(void) { return ptrace(PTRACE_ATTACH, getppid(), 0, 0); }
static long read_memory_of_the_parent(void) {
  char byte;
  struct iovec here = {&byte, 1}, there = {&errno, 1};
  return process_vm_readv(getppid(), &here, 1, &there, 1, 0);
}
static long take_a_descriptor_of_pid_1(void) {
  return syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, 1, 0), 0, 0);
}
static long enter_the_namespace_of_pid_1(void) { return setns(open("/proc/1/ns/mnt", O_RDONLY), 0); }
static long become_root(void) { return setresuid(0, 0, 0); }
static long get_a_user_namespace(void) { return unshare(CLONE_NEWUSER); }
static long get_a_network_namespace(void) { return unshare(CLONE_NEWUSER | CLONE_NEWNET); }
static long get_a_namespace_by_clone(void) {
  return syscall(SYS_clone, CLONE_NEWUSER | SIGCHLD, 0, 0, 0, 0);
}
static long get_a_namespace_by_clone3(void) {
  uint64_t arguments[11] = {CLONE_NEWUSER, 0, 0, 0, SIGCHLD};
  return syscall(SYS_clone3, arguments, sizeof arguments);
}
static long mount_a_file_system(void) { return mount("none", "/tmp", "tmpfs", 0, ""); }
static long open_a_file_system(void) { return syscall(SYS_fsopen, "tmpfs", 0); }
static long copy_a_mount(void) { return syscall(SYS_open_tree, AT_FDCWD, "/", 1); }
static long change_the_root(void) { return chroot("/tmp"); }
static long pivot_the_root(void) { return syscall(SYS_pivot_root, "/tmp", "/tmp"); }
static long unmount_the_root(void) { return umount2("/", MNT_DETACH); }
static long add_a_key(void) { return syscall(SYS_add_key, "user", "trace", "x", 1, -3); }
static long join_a_keyring(void) { return syscall(SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, 0); }
static long load_a_bpf_program(void) {
  char attributes[128] = {0};
  return syscall(SYS_bpf, 0, attributes, sizeof attributes);
}
static long start_io_uring(void) {
  char parameters[120] = {0};
  return syscall(SYS_io_uring_setup, 8, parameters);
}
static long count_events_of_the_processor(void) {
  uint32_t attributes[32] = {1, 128};
  return syscall(SYS_perf_event_open, attributes, 0, -1, -1, 0);
}
static long handle_page_faults(void) { return syscall(SYS_userfaultfd, 0); }
static long make_a_file_in_memory(void) { return memfd_create("hidden", 0); }
static long keep_memory_in_no_process(void) { return shmget(IPC_PRIVATE, 1 << 20, IPC_CREAT | 0600); }
static long keep_messages_in_the_kernel(void) { return msgget(IPC_PRIVATE, IPC_CREAT | 0600); }
static long keep_semaphores_in_the_kernel(void) { return semget(IPC_PRIVATE, 10, IPC_CREAT | 0600); }
static long keep_messages_in_a_posix_queue(void) { return syscall(SYS_mq_open, "hidden", O_CREAT | O_RDWR, 0600, 0); }
static long find_a_message_queue_of_the_host(void) { return msgget(number("IPC_KEY"), 0); }
static long find_shared_memory_of_the_host(void) { return shmget(number("IPC_KEY"), 0, 0); }
static long open_too_many_files(void) {
  for (long n = 0; n <= number("OPEN_FILES"); n++)
    if (open("/dev/null", O_RDONLY) < 0) return -1;
  return 0;
}
static long load_a_module(void) { return syscall(SYS_init_module, "", 0, ""); }
static long start_another_kernel(void) { return syscall(SYS_kexec_load, 0, 0, 0, 0); }
static long restart_the_machine(void) { return syscall(SYS_reboot, 0xfee1dead, 672274793, 0, 0); }
static long change_the_clock(void) {
  struct timespec start = {0};
  return clock_settime(CLOCK_REALTIME, &start);
}
static long change_the_personality(void) { return personality(ADDR_NO_RANDOMIZE); }
static long type_into_the_terminal(void) { return ioctl(0, 0x5412, "x"); }
static long take_real_time_priority(void) {
  struct sched_param parameters = {.sched_priority = 50};
  return sched_setscheduler(0, SCHED_FIFO, &parameters);
}
static long raise_a_limit(void) {
  struct rlimit more = {1 << 20, 1 << 20};
  return setrlimit(RLIMIT_NPROC, &more);
}
static long lock_memory(void) { return mlock(malloc(1 << 22), 1 << 22); }
static long remove_the_call_filter(void) { return prctl(PR_SET_SECCOMP, 0, 0); }
static long allow_new_privileges(void) { return prctl(PR_SET_NO_NEW_PRIVS, 0, 0, 0, 0); }
static long start_a_shell(void) {
  char *arguments[] = {"sh", "-c", "exit 0", 0};
  return execv("/bin/sh", arguments);
}
static long start_a_program_from_tmp(void) {
  char content[1 << 16];
  int from = open("/proc/self/exe", O_RDONLY), to = open("/tmp/copied", O_CREAT | O_WRONLY, 0755);
  for (long got; (got = read(from, content, sizeof content)) > 0;) write(to, content, got);
  close(to);
  char *arguments[] = {"copied", "none", 0};
  return execv("/tmp/copied", arguments);
}
static long call_as_a_32_bit_program(void) {
#ifdef __x86_64__
  long result = 20;
  __asm__ volatile("int $0x80" : "+a"(result));
  return result;
#else
  return -1;
#endif
}
static long call_by_an_x32_number(void) { return syscall(0x40000000 | SYS_getpid); }
static long call_an_unknown_number(void) { return syscall(600); }
static long start_too_many_processes(void) {
  pid_t started[4096];
  long count = 0, most = number("PROCESSES");
  while (count <= most && (started[count] = fork()) >= 0) {
    if (started[count++] == 0) {
      pause();
      _exit(0);
    }
  }
  for (long n = 0; n < count; n++) kill(started[n], SIGKILL);
  while (wait(0) > 0) continue;
  return count > most ? count : -1;
}
static long fill_the_temporary_directory(void) {
  static char block[1 << 20];
  int file = open("/tmp/native-filled", O_CREAT | O_WRONLY, 0600);
  long written = 0, got;
  while (written <= number("TEMPORARY_BYTES") && (got = write(file, block, sizeof block)) > 0) written += got;
  unlink("/tmp/native-filled");
  return written > number("TEMPORARY_BYTES") ? written : -1;
}

#define ATTACK(name) {#name, name}
static const struct { const char *name; long (*run)(void); } attacks[] = {
    ATTACK(open_any_family), ATTACK(connect_to_the_host), ATTACK(connect_to_an_abstract_socket),
    ATTACK(connect_to_a_socket_file), ATTACK(read_a_secret), ATTACK(read_a_secret_below_pid_1),
    ATTACK(read_a_secret_through_a_link), ATTACK(read_a_secret_by_openat2), ATTACK(read_password_hashes),
    ATTACK(read_the_memory_of_pid_1), ATTACK(read_the_environment_of_pid_1), ATTACK(write_to_the_bundle),
    ATTACK(write_to_the_root), ATTACK(write_to_dev), ATTACK(change_a_library),
    ATTACK(link_the_bundle_into_tmp), ATTACK(make_a_device), ATTACK(open_by_handle),
    ATTACK(signal_a_process_of_the_host), ATTACK(trace_pid_1), ATTACK(trace_the_parent),
    ATTACK(read_memory_of_the_parent), ATTACK(take_a_descriptor_of_pid_1),
    ATTACK(enter_the_namespace_of_pid_1), ATTACK(become_root), ATTACK(get_a_user_namespace),
    ATTACK(get_a_network_namespace), ATTACK(get_a_namespace_by_clone), ATTACK(get_a_namespace_by_clone3),
    ATTACK(mount_a_file_system), ATTACK(open_a_file_system), ATTACK(copy_a_mount), ATTACK(change_the_root),
    ATTACK(pivot_the_root), ATTACK(unmount_the_root), ATTACK(add_a_key), ATTACK(join_a_keyring),
    ATTACK(load_a_bpf_program), ATTACK(start_io_uring), ATTACK(count_events_of_the_processor),
    ATTACK(handle_page_faults), ATTACK(make_a_file_in_memory), ATTACK(load_a_module),
    ATTACK(keep_memory_in_no_process), ATTACK(keep_messages_in_the_kernel),
    ATTACK(keep_semaphores_in_the_kernel), ATTACK(keep_messages_in_a_posix_queue),
    ATTACK(find_a_message_queue_of_the_host), ATTACK(find_shared_memory_of_the_host),
    ATTACK(open_too_many_files),
    ATTACK(start_another_kernel), ATTACK(restart_the_machine), ATTACK(change_the_clock),
    ATTACK(change_the_personality), ATTACK(type_into_the_terminal), ATTACK(take_real_time_priority),
    ATTACK(raise_a_limit), ATTACK(lock_memory), ATTACK(remove_the_call_filter), ATTACK(allow_new_privileges),
    ATTACK(start_a_shell), ATTACK(start_a_program_from_tmp), ATTACK(call_as_a_32_bit_program),
    ATTACK(call_by_an_x32_number), ATTACK(call_an_unknown_number), ATTACK(start_too_many_processes),
    ATTACK(fill_the_temporary_directory), ATTACK(connect_to_every_listening_port),
    ATTACK(find_the_token_of_another_function), ATTACK(find_the_environment_of_the_launcher),
    ATTACK(use_inherited_descriptors), ATTACK(see_the_name_of_the_host),
    ATTACK(write_into_the_memory_of_the_parent), ATTACK(be_the_last_to_be_ended_for_its_memory),
    ATTACK(use_all_inodes), ATTACK(fill_shared_memory),
};

static int is_wanted(const char *name, int count, char **names) {
  for (int n = 1; n < count; n++)
    if (strcmp(names[n], name) == 0) return 1;
  return count < 2;
}

int main(int count, char **names) {
  int tried = 0;
  const char *separator = "";
  printf("{\"succeeded\": {");
  for (size_t n = 0; n < sizeof attacks / sizeof *attacks; n++) {
    if (!is_wanted(attacks[n].name, count, names)) continue;
    tried++;
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
      setpgid(0, 0);
      close(1);
      _exit(attacks[n].run() < 0 ? 1 : 0);
    }
    int status;
    waitpid(pid, &status, 0);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) {
      printf("%s\"%s\": \"worked\"", separator, attacks[n].name);
      separator = ", ";
    }
  }
  printf("}, \"tried\": %d}\n", tried);
  return 0;
}
