// A hostile program that uses up what it gets, in the way that its argument names. It does not end by itself.
#define _GNU_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BLOCK (100 << 20)

static void fill(int flags) {
  for (int n = 0; n < 4; n++)
    if (fork() == 0) {
      void *block = mmap(0, BLOCK, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
      if (block != MAP_FAILED) memset(block, 1, BLOCK);
      for (;;) pause();
    }
  for (;;) pause();
}
static void fork_without_end(void) {
  for (;;) fork();
}
static void fill_memory_in_children(void) { fill(MAP_PRIVATE); }
static void fill_shared_mappings(void) { fill(MAP_SHARED); }
static void print_without_end(void) {
  static char block[1 << 20];
  for (;;) write(1, memset(block, 'x', sizeof block), sizeof block);
}
static void survive_its_end(void) {
  for (int number = 1; number < 65; number++) signal(number, SIG_IGN);
  if (fork() == 0) {
    setsid();
    if (fork() == 0) {
      close(1);
      close(2);
    }
  }
  for (;;)
    if (write(1, ".", 1) < 0) pause();
}

int main(int count, char **names) {
  const char *bomb = names[count - 1];
  if (strcmp(bomb, "fork_without_end") == 0) fork_without_end();
  if (strcmp(bomb, "fill_memory_in_children") == 0) fill_memory_in_children();
  if (strcmp(bomb, "fill_shared_mappings") == 0) fill_shared_mappings();
  if (strcmp(bomb, "print_without_end") == 0) print_without_end();
  if (strcmp(bomb, "survive_its_end") == 0) survive_its_end();
  return 1;
}
