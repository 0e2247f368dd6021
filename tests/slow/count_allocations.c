/* Counts requests for memory of every thread while counting is on. Loaded with LD_PRELOAD by test_allocations.py; forwards to
 * glibc. operator new calls malloc, so C++ is covered; anonymous mappings are counted by wrapping mmap. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

extern void* __libc_malloc(size_t);
extern void* __libc_calloc(size_t, size_t);
extern void* __libc_realloc(void*, size_t);
extern void* __libc_memalign(size_t, size_t);

static atomic_int on;
static atomic_long count;

static void note(void) {
    if (atomic_load_explicit(&on, memory_order_relaxed)) atomic_fetch_add(&count, 1);
}

void count_from_here(void) {
    atomic_store(&count, 0);
    atomic_store(&on, 1);
}

long counted_so_far(void) {
    atomic_store(&on, 0);
    return atomic_load(&count);
}

void* malloc(size_t n) { note(); return __libc_malloc(n); }
void* calloc(size_t n, size_t m) { note(); return __libc_calloc(n, m); }
void* realloc(void* p, size_t n) { note(); return __libc_realloc(p, n); }
void* memalign(size_t a, size_t n) { note(); return __libc_memalign(a, n); }
void* aligned_alloc(size_t a, size_t n) { note(); return __libc_memalign(a, n); }
int posix_memalign(void** p, size_t a, size_t n) {
    note();
    *p = __libc_memalign(a, n);
    return *p ? 0 : ENOMEM;
}
void* mmap(void* at, size_t n, int protection, int flags, int file, off_t offset) {
    note();
    return (void*)syscall(SYS_mmap, at, n, protection, flags, file, offset);
}
